"""Which inputs of a batch are padded together. One long text among thirty short ones would make all of them long;
running it apart costs one more forward pass. Both are counted in padded tokens, and the cheapest split is taken."""

from collections.abc import Sequence

MULTIPLE = 8
"""Lengths are rounded up to this: few distinct shapes, and what matrix units like."""


def padded(tokens: int, most: int) -> int:
    """Length that an input of so many tokens is padded to, never over `most`."""
    return min(most, -(-tokens // MULTIPLE) * MULTIPLE)


def split(tokens: Sequence[int], most: int, pass_cost_tokens: int) -> list[list[int]]:
    """Groups of indices, the longest first, that cost least; a group costs `pass_cost_tokens` + size · longest padded.

    Dynamic programming over the distinct padded lengths, of which there are at most most/8: 64 for 512 tokens."""
    order = sorted(range(len(tokens)), key=lambda index: -tokens[index])
    starts, lengths = _runs([padded(tokens[index], most) for index in order])
    bounds = [*starts, len(order)]
    best = [0] * (len(starts) + 1)
    cut = [0] * len(starts)
    for first in range(len(starts) - 1, -1, -1):
        costs = [
            pass_cost_tokens + (bounds[last + 1] - bounds[first]) * lengths[first] + best[last + 1]
            for last in range(first, len(starts))
        ]
        best[first] = min(costs)
        cut[first] = first + costs.index(best[first]) + 1
    groups = []
    run = 0
    while run < len(starts):
        groups.append(order[bounds[run] : bounds[cut[run]]])
        run = cut[run]
    return groups


def _runs(lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Where each run of equal lengths starts, and that length."""
    starts = [index for index, length in enumerate(lengths) if index == 0 or length != lengths[index - 1]]
    return starts, [lengths[index] for index in starts]
