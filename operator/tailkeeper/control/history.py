"""From single reads to look-backs: a thinned ring of samples per worker.

Raw counters are kept, not rates of the source: `rate()` extrapolates, needs two scrapes inside its window, and cannot
tell a worker that restarted from one that was replaced. A restart is seen by any counter that fell; what the new
process counted is added to what was counted before. Workers that no longer exist are dropped with what they counted."""

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from tailkeeper.control.observation import (
    LOOK_BACKS_S,
    MIN_INTERVALS,
    NEWEST_S,
    Idle,
    LookBack,
    Observation,
    TierCounts,
    Value,
)
from tailkeeper.control.samples import NO_COUNTS, CounterKey, Counts, Gauges, PodSample, Unknown, UnknownReason

STALE_INTERVALS: Final = 3
STALE_MIN_S: Final = 10.0
UNKNOWN_INTERVAL_S: Final = 15.0
"""Taken for the scrape interval until two samples were seen: the commonest one."""

_THINNING: Final = ((20.0, 0.0), (90.0, 5.0), (390.0, 30.0), (float("inf"), 60.0))
"""Up to that age, at most one sample per so many seconds: 40 samples (60 kB a worker) reach back 15 minutes."""
THIN_EVERY: Final = 8
"""Samples; thinning looks at all of them."""
_KEEP_S: Final = LOOK_BACKS_S[-1] + 60.0


@dataclass(frozen=True, slots=True)
class _Point:
    """One worker's counters at one time, resets taken out."""

    time_s: float
    counts: Mapping[CounterKey, Counts]
    requests: float
    """Of all tiers and generations; also those whose series is gone by now."""
    busy_s: float
    work: float
    queued: float


class _PodHistory:
    """Samples of one worker, oldest first."""

    __slots__ = ("_since_thinned", "advanced_s", "last", "points")

    def __init__(self, sample: PodSample, now_s: float) -> None:
        self.last = sample
        self.advanced_s = now_s
        self._since_thinned = 0
        self.points = [
            _Point(sample.time_s, sample.counts, 0.0, sample.busy_s, sample.work, sum(sample.gauges.queue.values()))
        ]

    def add(self, sample: PodSample, now_s: float) -> None:
        """Takes in a sample that is newer than the last one; others say nothing new."""
        if sample.time_s <= self.last.time_s:
            return
        before, last = self.points[-1], self.last
        restarted = _restarted(last, sample)
        counts = dict(_carried(before.counts, sample.counts))
        grown = 0.0
        for key, now in sample.counts.items():
            then = NO_COUNTS if restarted else last.counts.get(key, NO_COUNTS)
            if now == then and key in counts:
                continue  # shares the object: most tiers of most workers are quiet
            growth = now.less(then)
            grown += growth.requests
            counts[key] = before.counts.get(key, NO_COUNTS).plus(growth)
        point = _Point(
            time_s=sample.time_s,
            counts=counts,
            requests=before.requests + grown,
            busy_s=before.busy_s + sample.busy_s - (0.0 if restarted else last.busy_s),
            work=before.work + sample.work - (0.0 if restarted else last.work),
            queued=sum(sample.gauges.queue.values()),
        )
        self.points.append(point)
        self._since_thinned += 1
        if self._since_thinned >= THIN_EVERY:
            self.points, self._since_thinned = _thinned(self.points), 0
        self.last, self.advanced_s = sample, now_s

    @property
    def interval_s(self) -> float | None:
        """Median time between the newest samples, which thinning leaves alone; None while there is only one."""
        recent = self.points[-9:]
        gaps = [later.time_s - earlier.time_s for earlier, later in itertools.pairwise(recent)]
        return median(gaps) if gaps else None

    def since(self, length_s: float) -> tuple[_Point, _Point, bool]:
        """First and last point of a look-back of at least that length, and whether the samples reach so far."""
        last = self.points[-1]
        for point in reversed(self.points):
            if point.time_s <= last.time_s - length_s + 1e-6:
                return point, last, True
        return self.points[0], last, False


class History:
    """Samples of one instance. `observe` takes one read in and says what is known now."""

    def __init__(self) -> None:
        self._pods: dict[str, _PodHistory] = {}

    def observe(self, read: Iterable[PodSample] | Unknown, pods: Collection[str] | None, now_s: float) -> Observation:
        """`pods` are the workers that exist and are ready; None: those of the read are all there are.

        `now_s` is only compared with earlier `now_s`: the source's clock may differ from ours."""
        if isinstance(read, Unknown):
            return read
        samples = {sample.pod: sample for sample in read if pods is None or sample.pod in pods}
        existing = samples.keys() if pods is None else set(pods)
        self._pods = {pod: history for pod, history in self._pods.items() if pod in existing}
        for pod, sample in samples.items():
            if pod in self._pods:
                self._pods[pod].add(sample, now_s)
            else:
                self._pods[pod] = _PodHistory(sample, now_s)
        missing = sorted(existing - samples.keys())
        if not samples:
            return _absent(missing)
        if missing:
            return Unknown(UnknownReason.PARTIAL, f"no samples of {_names(missing)}: is that pod scraped?")
        return self._known(now_s)

    def _known(self, now_s: float) -> Observation:
        histories = self._pods.values()
        intervals_s = [history.interval_s for history in histories if history.interval_s is not None]
        interval_s = max(intervals_s, default=UNKNOWN_INTERVAL_S)
        age_s = max(now_s - history.advanced_s for history in histories)
        if age_s > max(STALE_MIN_S, STALE_INTERVALS * interval_s):
            stale = sorted(pod for pod, history in self._pods.items() if now_s - history.advanced_s >= age_s)
            return Unknown(
                UnknownReason.STALE, f"no new sample of {_names(stale)} for {age_s:.0f} s: is it still scraped?"
            )
        look_backs = tuple(self._look_back(max(length, MIN_INTERVALS * interval_s)) for length in LOOK_BACKS_S)
        gauges = _together([history.last for history in histories])
        long = look_backs[1]
        if long.whole and long.requests == 0 and not any(gauges.queue.values()):
            return Idle(age_s)
        return Value(age_s, interval_s, len(self._pods), look_backs, self._look_back(NEWEST_S), gauges)

    def _look_back(self, length_s: float) -> LookBack:
        tiers: dict[CounterKey, Counts] = {}
        span_s = busy_s = work = rate = 0.0
        whole = False
        for history in self._pods.values():
            first, last, reaches = history.since(length_s)
            span = last.time_s - first.time_s
            span_s, whole = max(span_s, span), whole or reaches
            busy_s += last.busy_s - first.busy_s
            work += last.work - first.work
            if span > 0:
                rate += max(0.0, last.requests - first.requests + last.queued - first.queued) / span
            for key, counts in last.counts.items():
                growth = counts.less(first.counts.get(key, NO_COUNTS))
                if growth.requests > 0 or growth.late > 0:
                    tiers[key] = tiers[key].plus(growth) if key in tiers else growth
        rows = tuple(TierCounts(key.generation, key.tier, counts) for key, counts in sorted(tiers.items()))
        return LookBack(length_s, span_s, whole, rows, rate, busy_s, work)


def _restarted(last: PodSample, new: PodSample) -> bool:
    if new.busy_s < last.busy_s or new.work < last.work:
        return True
    shared = ((counts, last.counts[key]) for key, counts in new.counts.items() if key in last.counts)
    return any(now.fell_below(then) for now, then in shared if now is not then)


def _carried(
    before: Mapping[CounterKey, Counts], new: Mapping[CounterKey, Counts]
) -> Iterable[tuple[CounterKey, Counts]]:
    """Counters that the worker no longer shows, as long as their generation is the current or the previous one."""
    newest = max((key.generation for key in new), default=0)
    return ((key, counts) for key, counts in before.items() if key.generation >= newest - 1)


def _thinned(points: list[_Point]) -> list[_Point]:
    """Drops what is too old, and what its neighbours make superfluous at its age."""
    newest = points[-1].time_s
    kept: list[_Point] = []
    for index, point in enumerate(points):
        age = newest - point.time_s
        if age > _KEEP_S:
            continue
        spacing = next(spacing for limit, spacing in _THINNING if age <= limit)
        following = points[index + 1].time_s if index + 1 < len(points) else None
        if kept and following is not None and following - kept[-1].time_s <= spacing:
            continue
        kept.append(point)
    return kept


def _together(samples: list[PodSample]) -> Gauges:
    gauges = [sample.gauges for sample in samples]
    queue: dict[str, float] = {}
    for each in gauges:
        for tier, waiting in each.queue.items():
            queue[tier] = queue.get(tier, 0.0) + waiting
    names = {name for each in gauges for name in each.latency_model}
    model = {name: _mean(each.latency_model.get(name) for each in gauges) for name in sorted(names)}
    return Gauges(
        window=_mean(each.window for each in gauges),
        window_cap=_mean(each.window_cap for each in gauges),
        ceiling=_mean(each.ceiling for each in gauges),
        efficiency=_mean(each.efficiency for each in gauges),
        arrival_cv=_mean(each.arrival_cv for each in gauges),
        queue=queue,
        latency_model={name: value for name, value in model.items() if value is not None},
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _absent(missing: list[str]) -> Unknown:
    if missing:
        return Unknown(UnknownReason.ABSENT, f"no series of {_names(missing)}: are the workers scraped?")
    return Unknown(UnknownReason.ABSENT, "no worker is ready, or none is scraped")


def _names(pods: list[str]) -> str:
    return ", ".join(pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
