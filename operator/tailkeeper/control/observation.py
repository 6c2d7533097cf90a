"""What the tuner knows of one instance at one tick: `Value`, `Idle` or `Unknown`; never a number for "no idea"."""

from dataclasses import dataclass
from typing import Final, Literal

from tailkeeper.control.samples import NO_COUNTS, Counts, Gauges, Unknown
from tailkeeper.model.quantile import Quantile

LOOK_BACKS_S: Final = (15.0, 60.0, 300.0, 900.0)
"""Short and long of the breach test, then further back for low rates."""
NEWEST_S: Final = 5.0
MIN_INTERVALS: Final = 4
"""A look-back spans at least so many scrape intervals: with fewer, one late scrape halves the counts."""


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Growth of one tier's counters under one settings generation."""

    generation: int
    tier: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class LookBack:
    """Growth of all workers' counters over the last `span_s` seconds."""

    asked_s: float
    span_s: float
    """What the samples' own timestamps really span; shorter while not `whole`."""
    whole: bool
    """The samples reach that far back."""
    tiers: tuple[TierCounts, ...]
    rate_per_s: float
    """Arrivals of all tiers under all generations: requests ended, and growth of the queues."""
    busy_s: float
    work: float

    def counts(self, generation: int, tier: str) -> Counts:
        """One tier's growth under one generation; zeros when it served nothing then."""
        for row in self.tiers:
            if row.generation == generation and row.tier == tier:
                return row.counts
        return NO_COUNTS

    @property
    def requests(self) -> float:
        """Requests that ended, of all tiers and generations."""
        return sum(row.counts.requests for row in self.tiers)


@dataclass(frozen=True, slots=True)
class TierLatency:
    """Latency of one tier as people read it. No decision depends on it."""

    tier: str
    mean_s: float
    p95: Quantile
    p99: Quantile


@dataclass(frozen=True, slots=True)
class Value:
    """Good counters of every worker."""

    age_s: float
    """Since the stalest worker's newest sample came in."""
    interval_s: float
    """Between samples."""
    pods: int
    look_backs: tuple[LookBack, ...]
    """By length, as `LOOK_BACKS_S` has them, none under `MIN_INTERVALS` intervals."""
    newest: LookBack
    """The last few seconds, one interval at least: only for seeing that the load changed."""
    gauges: Gauges
    """Of all workers: queues added up, the rest their mean."""
    latencies: tuple[TierLatency, ...] = ()
    """Read at a slower pace; empty when not (yet) read."""
    kind: Literal["value"] = "value"

    @property
    def short(self) -> LookBack:
        """The shortest look-back: is it happening now?"""
        return self.look_backs[0]

    @property
    def long(self) -> LookBack:
        """The minute: did it happen often enough to matter?"""
        return self.look_backs[1]


@dataclass(frozen=True, slots=True)
class Idle:
    """The request series are there, did not grow for the long look-back, and nothing waits."""

    age_s: float
    kind: Literal["idle"] = "idle"


Observation = Value | Idle | Unknown
