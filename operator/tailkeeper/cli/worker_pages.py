"""What workers export, as far as `status` shows it. Counters are kept by worker: two reads can be subtracted."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailkeeper.model.quantile import Quantile, bucket_quantile

REQUEST_BUCKET: Final = "tailkeeper_request_seconds_bucket"
HOLD_BUCKET: Final = "tailkeeper_batch_wait_seconds_bucket"
BUSY: Final = "tailkeeper_engine_busy_seconds_total"
REQUESTS: Final = "tailkeeper_requests_total"
LATE: Final = "tailkeeper_late_total"
WINDOW: Final = "tailkeeper_window"
EFFICIENCY: Final = "tailkeeper_efficiency"
QUEUE: Final = "tailkeeper_queue_length"

WANTED: Final = frozenset({REQUEST_BUCKET, HOLD_BUCKET, BUSY, REQUESTS, LATE, WINDOW, EFFICIENCY, QUEUE})

_SERIES: Final = re.compile(r"^([a-z_]+)\{([^}]*)\} (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class Point(NamedTuple):
    """One series."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass
class Reading:
    """Counters and gauges of one worker, or what the counters of several grew by."""

    latency: dict[str, dict[float, float]] = field(default_factory=dict)
    """By tier: cumulative counts by upper edge in seconds."""
    hold: dict[str, dict[float, float]] = field(default_factory=dict)
    busy_s: float = 0.0
    requests: float = 0.0
    timeouts: float = 0.0
    window: float | None = None
    efficiency: float | None = None
    queue: float = 0.0


class TierSummary(NamedTuple):
    """Latency of one tier; None where nothing was counted."""

    p95: Quantile | None
    p99: Quantile | None
    hold_p99: Quantile | None


@dataclass(frozen=True)
class Summary:
    """One instance as its workers tell it."""

    workers: int
    tiers: Mapping[str, TierSummary]
    window: float | None
    """Mean of the workers."""
    efficiency: float | None
    queue: float
    busy_fraction: float | None
    """Share of the time, mean of the workers; None without two reads."""
    timeout_ratio: float | None
    """Of the requests; None when there was none."""


def parse(page: str) -> Iterator[Point]:
    """The series that are wanted of a page in Prometheus' text format; other lines pass by."""
    for line in page.splitlines():
        if (match := _SERIES.match(line)) and match[1] in WANTED:
            try:
                value = float(match[3])
            except ValueError:
                continue
            yield Point(match[1], dict(_LABEL.findall(match[2])), value)


def read(points: Iterable[Point]) -> Reading:
    """One worker's."""
    reading = Reading()
    for name, labels, value in points:
        if not math.isfinite(value):
            continue
        tier = labels.get("tier", "")
        if name in (REQUEST_BUCKET, HOLD_BUCKET):
            of = reading.latency if name == REQUEST_BUCKET else reading.hold
            edge = float(labels.get("le", "inf"))
            counts = of.setdefault(tier, {})
            counts[edge] = counts.get(edge, 0.0) + value
        elif name == BUSY:
            reading.busy_s += value
        elif name == REQUESTS:
            reading.requests += value
        elif name == LATE and labels.get("objective") == "timeout":
            reading.timeouts += value
        elif name == WINDOW:
            reading.window = value
        elif name == EFFICIENCY:
            reading.efficiency = value
        elif name == QUEUE:
            reading.queue += value
    return reading


def grown(now: Mapping[str, Reading], before: Mapping[str, Reading]) -> dict[str, Reading]:
    """What each worker's counters grew by; those that only one of the reads has are left out. A worker that began anew
    counts from then. Gauges are those of now."""
    return {pod: _since(reading, before[pod]) for pod, reading in now.items() if pod in before}


def summarise(counters: Mapping[str, Reading], gauges: Mapping[str, Reading], busy: Mapping[str, float]) -> Summary:
    """`counters`: what is counted over, by worker; `gauges`: the newest read; `busy`: each worker's share."""
    latency, hold = _added(one.latency for one in counters.values()), _added(one.hold for one in counters.values())
    requests = sum(one.requests for one in counters.values())
    return Summary(
        workers=len(gauges),
        tiers={
            tier: TierSummary(_quantile(counts, 0.95), _quantile(counts, 0.99), _quantile(hold.get(tier, {}), 0.99))
            for tier, counts in sorted(latency.items())
        },
        window=_mean(one.window for one in gauges.values()),
        efficiency=_mean(one.efficiency for one in gauges.values()),
        queue=sum(one.queue for one in gauges.values()),
        busy_fraction=_mean(busy.values()),
        timeout_ratio=sum(one.timeouts for one in counters.values()) / requests if requests > 0 else None,
    )


def busy_shares(grown: Mapping[str, Reading], seconds: float) -> dict[str, float]:
    """Of each worker, over these seconds."""
    return {pod: min(1.0, one.busy_s / seconds) for pod, one in grown.items()} if seconds > 0 else {}


def _since(now: Reading, before: Reading) -> Reading:
    if now.requests < before.requests or now.busy_s < before.busy_s:
        return now
    return Reading(
        latency=_less(now.latency, before.latency),
        hold=_less(now.hold, before.hold),
        busy_s=now.busy_s - before.busy_s,
        requests=now.requests - before.requests,
        timeouts=now.timeouts - before.timeouts,
        window=now.window,
        efficiency=now.efficiency,
        queue=now.queue,
    )


def _less(
    now: Mapping[str, Mapping[float, float]], before: Mapping[str, Mapping[float, float]]
) -> dict[str, dict[float, float]]:
    """Edges move when an SLA changes: then what is there counts whole."""
    found = {}
    for tier, counts in now.items():
        then = before.get(tier, {})
        same = then.keys() == counts.keys()
        found[tier] = {edge: count - then[edge] if same else count for edge, count in counts.items()}
    return found


def _added(every: Iterable[Mapping[str, Mapping[float, float]]]) -> dict[str, dict[float, float]]:
    total: dict[str, dict[float, float]] = {}
    for tiers in every:
        for tier, counts in tiers.items():
            sums = total.setdefault(tier, {})
            if sums and sums.keys() != counts.keys():
                continue  # a worker that has other edges for a moment cannot be added
            for edge, count in counts.items():
                sums[edge] = sums.get(edge, 0.0) + count
    return total


def _quantile(counts: Mapping[float, float], q: float) -> Quantile | None:
    edges = sorted(counts)
    return bucket_quantile(edges, [counts[edge] for edge in edges], q)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
