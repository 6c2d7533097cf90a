"""Which inputs are padded together: nobody is lost, and no other split by length is cheaper."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engines.padding import MULTIPLE, padded, split

MOST = 128
LENGTHS = st.lists(st.integers(1, MOST), min_size=1, max_size=9)
COSTS = st.integers(0, 200)


def cost(groups: list[list[int]], tokens: list[int], pass_cost: int) -> int:
    return sum(pass_cost + len(group) * padded(max(tokens[index] for index in group), MOST) for group in groups)


def every_split(tokens: list[int]) -> list[list[list[int]]]:
    order = sorted(range(len(tokens)), key=lambda index: -tokens[index])
    cuts = range(1, len(order))
    return [
        [order[a:b] for a, b in zip((0, *chosen), (*chosen, len(order)), strict=True)]
        for size in range(len(order))
        for chosen in combinations(cuts, size)
    ]


@given(LENGTHS, COSTS)
def test_every_input_is_in_one_group_and_the_longest_comes_first(tokens: list[int], pass_cost: int) -> None:
    groups = split(tokens, MOST, pass_cost)
    assert sorted(index for group in groups for index in group) == list(range(len(tokens)))
    for group in groups:
        assert tokens[group[0]] == max(tokens[index] for index in group)


@given(LENGTHS, COSTS)
def test_no_other_split_by_length_is_cheaper(tokens: list[int], pass_cost: int) -> None:
    best = min(cost(groups, tokens, pass_cost) for groups in every_split(tokens))
    assert cost(split(tokens, MOST, pass_cost), tokens, pass_cost) == best


def test_one_long_text_does_not_stretch_thirty_short_ones() -> None:
    groups = split([256] + [8] * 30, 256, 24)
    assert groups == [[0], list(range(1, 31))]


def test_lengths_are_rounded_up_but_never_beyond_what_the_model_takes() -> None:
    assert [padded(tokens, 250) for tokens in (1, 8, 9, 249, 250)] == [MULTIPLE, 8, 16, 250, 250]
