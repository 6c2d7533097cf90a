"""Latencies for people from the workers' histograms: what they grew by, as mean, p95 and p99."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailkeeper.control.observation import TierLatency
from tailkeeper.control.samples import InstanceKey
from tailkeeper.model.quantile import bucket_quantile
from tailkeeper.signals.counters import PREFIX, Point

SECONDS: Final = PREFIX + "request_seconds"
BUCKET: Final = SECONDS + "_bucket"
SUM: Final = SECONDS + "_sum"

Latencies = Mapping[InstanceKey, tuple[TierLatency, ...]]


class Series(NamedTuple):
    """One tier of one worker."""

    key: InstanceKey
    pod: str
    tier: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper edge in seconds, and the sum of all latencies."""

    buckets: Mapping[float, float]
    sum_s: float


def histograms(key: InstanceKey, pod: str, points: Iterable[Point]) -> dict[Series, Histogram]:
    """Those of one worker's page, by tier."""
    buckets: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for point in points:
        tier = point.labels.get("tier", "")
        if point.name == BUCKET:
            buckets.setdefault(tier, {})[float(point.labels.get("le", "inf"))] = point.value
        elif point.name == SUM:
            sums[tier] = point.value
    return {Series(key, pod, tier): Histogram(counts, sums.get(tier, math.nan)) for tier, counts in buckets.items()}


def tier_latency(tier: str, grown: Histogram) -> TierLatency | None:
    """None when nothing was counted, or the histogram is broken."""
    edges = sorted(grown.buckets)
    cumulative = [grown.buckets[edge] for edge in edges]
    p95, p99 = bucket_quantile(edges, cumulative, 0.95), bucket_quantile(edges, cumulative, 0.99)
    if p95 is None or p99 is None or not math.isfinite(grown.sum_s):
        return None
    return TierLatency(tier, grown.sum_s / cumulative[-1], p95, p99)


@dataclass
class Growth:
    """Keeps reads of all workers and says what they grew by over the last seconds."""

    _reads: deque[tuple[float, Mapping[Series, Histogram]]] = field(default_factory=deque)

    def add(self, read: Mapping[Series, Histogram], now_s: float, over_s: float) -> Latencies:
        """Latencies of the last `over_s` seconds, less in the beginning. A worker that began anew counts from then."""
        while len(self._reads) > 1 and self._reads[1][0] <= now_s - over_s:
            self._reads.popleft()
        oldest = self._reads[0][1] if self._reads else {}
        self._reads.append((now_s, read))
        grown: dict[InstanceKey, dict[str, Histogram]] = {}
        for series, now in read.items():
            before = oldest.get(series)
            if before is None:
                continue
            tiers = grown.setdefault(series.key, {})
            tiers[series.tier] = _plus(tiers.get(series.tier), _since(now, before))
        return {
            key: tuple(each for tier, of in sorted(tiers.items()) if (each := tier_latency(tier, of)) is not None)
            for key, tiers in grown.items()
        }


def _since(now: Histogram, before: Histogram) -> Histogram:
    restarted = any(count < before.buckets.get(edge, 0.0) for edge, count in now.buckets.items())
    if restarted:
        return now
    counts = {edge: count - before.buckets.get(edge, 0.0) for edge, count in now.buckets.items()}
    return Histogram(counts, now.sum_s - before.sum_s)


def _plus(one: Histogram | None, other: Histogram) -> Histogram:
    """Workers of one instance have the same edges, except for a moment after its SLA changed: then the newer counts."""
    if one is None or one.buckets.keys() != other.buckets.keys():
        return other
    return Histogram(
        {edge: count + other.buckets[edge] for edge, count in one.buckets.items()}, one.sum_s + other.sum_s
    )
