"""Reads the tuner's counters from Prometheus, or what speaks its query API (Thanos, Mimir, VictoriaMetrics).

One PromQL query per signal for all instances of all namespaces, whatever their number. All are evaluated at one time of
the server's own clock, so that ours may differ; and the samples' own timestamps are read before and after: a worker
that was scraped in between is left for the next read, since its counters do not belong together.

Nothing here is ever zero because it could not be read: it is `Unknown`, with a text that says what to do."""

import asyncio
import concurrent.futures
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from tailkeeper.control.observation import TierLatency
from tailkeeper.control.samples import InstanceKey, PodSample, Reading, Unknown, UnknownReason
from tailkeeper.signals.counters import (
    BUSY,
    GAUGES,
    GENERATION,
    INSTANCE_LABELS,
    MODEL,
    PREFIX,
    QUEUE,
    REQUESTS,
    SPLIT,
    WORK,
    Point,
    instance_of,
    pod_sample,
)
from tailkeeper.signals.histograms import Histogram, tier_latency
from tailkeeper.signals.query import Access, Answer, Failed, QueryClient

T = TypeVar("T")

_WHO: Final = ", ".join((*INSTANCE_LABELS, "pod", "instance"))


def _once(metric: str, *labels: str) -> str:
    """Each worker's series once, also where two jobs or two replicas of Prometheus scrape it: a sum would double it."""
    return f"max by ({', '.join((_WHO, *labels))}) ({metric})"


TIMES: Final = f"max by ({_WHO}) (timestamp({GENERATION}))"
"""When each worker was scraped last."""
COUNTERS: Final[Mapping[str, str]] = {
    REQUESTS: f"sum by ({_WHO}, tier, generation) ({_once(REQUESTS, 'tier', 'generation', 'outcome')})",
    **{name: f"{_once(name, 'tier', 'generation', label)} != 0" for name, (label, _) in SPLIT.items()},
    QUEUE: f"{_once(QUEUE, 'tier')} != 0",
    MODEL: _once(MODEL, "coefficient"),
    "": _once(f'{{__name__=~"{"|".join((BUSY, WORK, *GAUGES))}"}}', "__name__"),
}
"""Queries by the metric that they are for; the last one's series carry their names. Series at zero are left out where
absence means the same, which is most of them: `!= 0` keeps NaN, `> 0` would not."""


class Worker(NamedTuple):
    """One scraped process."""

    key: InstanceKey
    pod: str
    """Its address where the scrape does not name the pod, as Kubernetes discovery does."""
    address: str


class PrometheusSource:
    """Reads in a thread of its own, since the client library blocks. Use inside one event loop; `close` at the end."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client = QueryClient(access)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "prometheus")
        self._running: concurrent.futures.Future[Any] | None = None

    async def read(self) -> Reading | Unknown:
        """Counters of every worker that Prometheus knows, within `access.timeout_s`."""
        return await self._in_time(self._read)

    async def read_latencies(self, over_s: float) -> Mapping[InstanceKey, tuple[TierLatency, ...]] | Unknown:
        """Mean, p95 and p99 of the last `over_s` seconds, for people."""
        return await self._in_time(lambda by_s: self._read_latencies(over_s, by_s))

    def close(self) -> None:
        """Lets the thread go and ends the connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _in_time(self, read: Callable[[float], T]) -> T | Unknown:
        """A timeout of the library counts from byte to byte; a server that drips is only cut off from here."""
        slow = Unknown(
            UnknownReason.ERROR, f"Prometheus at {self._access.url} did not answer within {self._access.timeout_s:g} s"
        )
        if self._running is not None and not self._running.done():
            return slow

        def answer() -> T | Unknown:
            try:
                return read(time.monotonic() + self._access.timeout_s)
            except Failed as failed:
                return failed.unknown

        self._running = running = self._thread.submit(answer)
        try:
            async with asyncio.timeout(self._access.timeout_s):
                return await asyncio.shield(asyncio.wrap_future(running))
        except TimeoutError:
            return slow

    def _read(self, by_s: float) -> Reading:
        scraped = self._client.query(TIMES, by_s)
        at_s = scraped.time_s
        if at_s is None:
            return Reading()
        points: dict[Worker, list[Point]] = {}
        for name, promql in COUNTERS.items():
            for point in self._client.query(promql, by_s, at_s).points:
                if (worker := _worker(point)) is not None:
                    named = Point(name or point.name, point.labels, point.value)
                    points.setdefault(worker, []).append(named)
        before, after = _times(scraped.points), _times(self._client.query(TIMES, by_s, at_s).points)
        whole = {worker: time_s for worker, time_s in before.items() if after.get(worker) == time_s}
        return _reading(whole, points)

    def _read_latencies(self, over_s: float, by_s: float) -> Mapping[InstanceKey, tuple[TierLatency, ...]]:
        def grown(suffix: str, at_s: float | None, *labels: str) -> Answer:
            by = ", ".join((*INSTANCE_LABELS, "tier", *labels))
            series = f"increase({PREFIX}request_seconds_{suffix}[{over_s:.0f}s])"
            return self._client.query(f"sum by ({by}) ({series})", by_s, at_s)

        counts = grown("bucket", None, "le")
        buckets: dict[tuple[InstanceKey, str], dict[float, float]] = {}
        for point in counts.points:
            if (of := _tier(point)) is not None and math.isfinite(point.value):
                buckets.setdefault(of, {})[float(point.labels.get("le", "inf"))] = point.value
        sums = {of: point.value for point in grown("sum", counts.time_s).points if (of := _tier(point)) is not None}
        found: dict[InstanceKey, list[TierLatency]] = {}
        for (key, tier), counted in sorted(buckets.items()):
            latency = tier_latency(tier, Histogram(counted, sums.get((key, tier), math.nan)))
            if latency is not None:
                found.setdefault(key, []).append(latency)
        return {key: tuple(latencies) for key, latencies in found.items()}


def _reading(times: Mapping[Worker, float], points: Mapping[Worker, Iterable[Point]]) -> Reading:
    newest: dict[tuple[InstanceKey, str], Worker] = {}
    for worker in sorted(times, key=lambda worker: (times[worker], worker.address)):
        newest[worker.key, worker.pod] = worker  # a pod that two jobs scrape under two addresses is still one worker
    samples: dict[InstanceKey, list[PodSample]] = {}
    faults: dict[InstanceKey, Unknown] = {}
    for worker in newest.values():
        sample = pod_sample(worker.pod, times[worker], points.get(worker, ()))
        if isinstance(sample, PodSample):
            samples.setdefault(worker.key, []).append(sample)
        elif sample.reason is not UnknownReason.ABSENT:
            faults.setdefault(worker.key, sample)
    return Reading({key: tuple(found) for key, found in samples.items()}, faults)


def _times(points: Iterable[Point]) -> dict[Worker, float]:
    return {worker: point.value for point in points if (worker := _worker(point)) is not None}


def _worker(point: Point) -> Worker | None:
    key, address = instance_of(point.labels), point.labels.get("instance", "")
    pod = point.labels.get("pod") or address
    return Worker(key, pod, address) if key is not None and pod else None


def _tier(point: Point) -> tuple[InstanceKey, str] | None:
    key, tier = instance_of(point.labels), point.labels.get("tier", "")
    return (key, tier) if key is not None and tier else None
