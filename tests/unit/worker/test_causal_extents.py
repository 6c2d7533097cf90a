"""KV memory: nobody's overlaps another's, none is lost, and what is free can be had, in one piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.causal.extents import Extents, Full, rounded

TOKENS = 320


def test_a_gap_in_the_middle_is_used_again() -> None:
    extents = Extents(48)
    for owner in "abc":
        assert extents.take(owner, 16) == []
    extents.free("b")
    assert extents.take("d", 10) == []
    assert extents.start("d") == 16


def test_more_than_there_is_is_refused_and_changes_nothing() -> None:
    extents = Extents(48)
    extents.take("a", 20)
    with pytest.raises(Full):
        extents.take("b", 17)
    assert extents.owners == {"a"}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 120)), max_size=60))
def test_contents_survive_whatever_comes_and_goes(calls: list[tuple[int, int]]) -> None:
    extents = Extents(TOKENS)
    memory = [""] * TOKENS
    sizes: dict[str, int] = {}
    for number, tokens in calls:
        owner = str(number)
        if owner in sizes:
            extents.free(owner)
            del sizes[owner]
            continue
        free = TOKENS - sum(map(rounded, sizes.values()))
        if rounded(tokens) > free:
            with pytest.raises(Full):
                extents.take(owner, tokens)
            continue
        for move in extents.take(owner, tokens):
            memory[move.target : move.target + move.tokens] = memory[move.source : move.source + move.tokens]
        sizes[owner] = tokens
        start = extents.start(owner)
        assert start is not None
        memory[start : start + tokens] = [owner] * tokens
        for other, size in sizes.items():
            begin = extents.start(other)
            assert begin is not None
            assert memory[begin : begin + size] == [other] * size
        assert extents.used == sum(map(rounded, sizes.values()))
