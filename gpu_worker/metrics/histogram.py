"""Histograms whose edges follow the SLA. `prometheus_client` fixes the edges of a histogram at its creation, and the
SLA is a setting that changes live; a rebuilt histogram starts at zero, which a Prometheus reader takes as a counter
reset."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.utils import floatToGoString

_BELOW, _ABOVE = 13, 10
"""Steps from SLA/16 up to the SLA, and from there to 8·SLA: 24 edges, ratios 1.238 and 1.231."""


def edges_s(sla_s: float) -> tuple[float, ...]:
    """24 edges in seconds from SLA/16 to 8·SLA, one of them exactly the SLA: the share over the SLA is then exact."""
    below = [sla_s * 16 ** (step / _BELOW - 1) for step in range(_BELOW)]
    above = [sla_s * 8 ** (step / _ABOVE) for step in range(1, _ABOVE + 1)]
    return (*(_rounded(edge) for edge in below), sla_s, *(_rounded(edge) for edge in above))


def _rounded(edge: float) -> float:
    """Four digits: the edge becomes a label that people read."""
    return float(f"{edge:.4g}")


class Histogram:
    """Counts by bucket. Not thread-safe; the event loop owns it."""

    __slots__ = ("_counts", "_labels", "edges", "sum_s")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.sum_s = 0.0
        self._counts = [0] * (len(self.edges) + 1)
        self._labels = [*(floatToGoString(edge) for edge in self.edges), "+Inf"]  # type: ignore[no-untyped-call]

    def observe(self, value_s: float) -> None:
        """A value equal to an edge counts under it (`le`)."""
        self._counts[bisect_left(self.edges, value_s)] += 1
        self.sum_s += value_s

    def buckets(self) -> list[tuple[str, float]]:
        """(`le`, cumulative count), the last one +Inf."""
        total = 0
        result: list[tuple[str, float]] = []
        for label, count in zip(self._labels, self._counts, strict=True):
            total += count
            result.append((label, total))
        return result
