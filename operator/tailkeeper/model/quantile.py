"""Quantiles from histogram buckets, for people to read. Past the last finite edge one is only known to lie beyond."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantile:
    """Seconds; when `beyond`, the true value lies somewhere above."""

    seconds: float
    beyond: bool = False

    def text(self) -> str:
        """`940ms`, or `>8000ms` when only that much is known."""
        return f"{'>' if self.beyond else ''}{self.seconds * 1000:.0f}ms"


def bucket_quantile(edges_s: Sequence[float], cumulative: Sequence[float], q: float) -> Quantile | None:
    """The q-quantile of cumulative counts `cumulative[i]` at or below `edges_s[i]`, the last edge infinite.

    None when nothing was counted. Linear inside a bucket, from 0 in the first; in the last it is `beyond` the highest
    finite edge: that edge must never be taken for the value."""
    if not cumulative or cumulative[-1] <= 0:
        return None
    wanted = q * cumulative[-1]
    below_s, below = 0.0, 0.0
    for edge_s, count in zip(edges_s, cumulative, strict=True):
        if count >= wanted and count > below:
            if math.isinf(edge_s):
                return Quantile(below_s, beyond=True)
            return Quantile(below_s + (edge_s - below_s) * (wanted - below) / (count - below))
        below_s, below = edge_s, count
    return Quantile(below_s if math.isfinite(below_s) else edges_s[-2], beyond=True)
