"""Streamed text: joined it is the whole text, no piece holds half a character or what belongs to a stop string."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.causal.text import TextStream


def decode(tokens: Sequence[int]) -> str:
    """One token, one byte."""
    return bytes(tokens).decode("utf-8", errors="replace")


def stream(data: bytes, stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    text = TextStream(decode, stops)
    pieces = []
    for byte in data:
        pieces.append(text.push(byte))
        if text.stopped:
            return pieces, True
    pieces.append(text.finish())
    return pieces, text.stopped


@given(st.text())
def test_pieces_join_to_the_text_and_each_is_whole_characters(text: str) -> None:
    pieces, _ = stream(text.encode("utf-8", errors="ignore"))
    clean = text.encode("utf-8", errors="ignore").decode()
    assert "".join(pieces) == clean
    if "�" not in clean:
        assert not any("�" in piece for piece in pieces)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_come_out_as_the_decoder_says(data: bytes) -> None:
    assert "".join(stream(data)[0]) == decode(data)


@given(st.text("ab€", max_size=30), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string_to_be_complete(text: str, stops: list[str]) -> None:
    pieces, stopped = stream(text.encode(), stops)
    complete = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not complete:
        assert not stopped
        assert "".join(pieces) == text
        return
    whole = text[: complete[0]]
    assert stopped
    assert "".join(pieces) == whole[: min(whole.find(stop) for stop in stops if stop in whole)]


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    text = TextStream(decode, ["STOP"])
    assert [text.push(byte) for byte in b"aSTxSTO"] == ["a", "", "", "STx", "", "", ""]
    assert text.finish() == "STO"


@pytest.mark.parametrize("stop", ["🎉", "é!"])
def test_a_stop_string_of_several_bytes(stop: str) -> None:
    assert "".join(stream(f"so {stop} it ends".encode(), [stop])[0]) == "so "
