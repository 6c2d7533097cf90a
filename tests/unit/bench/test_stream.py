"""Streamed answers: what is a token, when the first came, and how the stream ended, wherever the network cuts it."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.bench.server_timing import Waits
from tailkeeper.bench.stream import StreamReader


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(**content: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": content}]})


CHAT = (
    delta(role="assistant", content="")
    + delta(content="Hel")
    + delta(content="lö")
    + delta()
    + event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}})
    + b": server-timing hold;dur=1.5, busy;dur=2, slot;dur=0, exec;dur=9\n\n"
    + b"data: [DONE]\n\n"
)


def read(*pieces: tuple[float, bytes]) -> StreamReader:
    reader = StreamReader()
    for now_s, data in pieces:
        reader.feed(data, now_s)
    return reader


def test_a_chat_is_read() -> None:
    reader = read((1.0, CHAT))
    assert (reader.tokens, reader.completion_tokens, reader.done, reader.error) == (2, 7, True, None)
    assert reader.waits == Waits(1.5, 2.0, 0.0, 9.0)


def test_the_role_is_not_the_first_token() -> None:
    reader = read((1.0, delta(role="assistant", content="")), (3.0, delta(content="a")), (3.5, delta(content="b")))
    assert reader.first_s == 3.0
    assert reader.gaps_s == [0.5]


def test_completions_and_reasoning_and_tool_calls_are_tokens_too() -> None:
    reader = read(
        (1.0, event({"choices": [{"text": "a"}]})),
        (2.0, delta(reasoning_content="hm")),
        (3.0, delta(tool_calls=[{"index": 0}])),
    )
    assert reader.tokens == 3


@given(st.lists(st.integers(0, len(CHAT)), max_size=12))
def test_the_network_may_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(CHAT)]
    reader = read(*((float(n), CHAT[a:b]) for n, (a, b) in enumerate(pairwise(edges))))
    assert (reader.tokens, reader.completion_tokens, reader.done, reader.error) == (2, 7, True, None)


def test_lines_may_end_as_windows_ends_them() -> None:
    assert read((1.0, CHAT.replace(b"\n", b"\r\n"))).done


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (event({"error": {"message": "out of memory", "code": 500}}), "out of memory"),
        (event({"error": "gone"}), "gone"),
        (b"data: <html>\n\n", "an event that is no answer: <html>"),
        (b"data: [1]\n\n", "an event that is no answer: [1]"),
        (event({"usage": {}}), None),
        (event({"usage": {"total": 1}}), 'an event that is no answer: {"usage": {"total": 1}}'),
    ],
)
def test_errors_in_the_stream_are_seen(data: bytes, error: str | None) -> None:
    assert read((1.0, data)).error == error


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    read((0.0, b"data: " + data + b"\n"), (1.0, data))
