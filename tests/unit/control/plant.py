"""A small batch server to tune: tiers, a ceiling, a hold, T(b) = c + a·b, and counters as a worker has them.

It is deliberately naive where the real worker is not (no window of its own, no early trigger): what the tuner does must
not depend on an inner loop that makes up for it."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from tailkeeper.api.settings import Settings
from tailkeeper.control.samples import CounterKey, Counts, Gauges, PodSample

FIELDS = ("requests", "late", "late_first_token", "late_inter_token", "timeouts", "hold_s", "busy_s", "slot_s",
          "exec_s", "nn", "nk", "kk")  # fmt: skip


@dataclass(order=True)
class Request:
    key: float
    arrival_s: float
    tier: str = field(compare=False)
    generation: int = field(compare=False)
    hold_s: float = field(compare=False, default=0.0)
    busy_s: float = field(compare=False, default=0.0)


@dataclass
class Plant:
    rates: dict[str, Callable[[float], float]]
    settings: Settings
    a: float = 0.002
    c: float = 0.024
    seed: int = 1
    cv: float = 1.0
    now_s: float = 0.0
    sla_window: bool = False
    """Whether the worker keeps to W_sla by itself, as the real one does."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.queue: list[Request] = []
        self.arrivals: list[tuple[float, str]] = []
        for tier in self.rates:
            self._next(tier, 0.0)
        self.free_s = self.last_arrival_s = 0.0
        self.idle_since_s = 0.0
        self.counts: dict[CounterKey, dict[str, float]] = {}
        self.second: dict[CounterKey, tuple[int, int, int]] = {}
        self.engine_s = 0.0
        self.work = 0.0
        self.batches = 0
        self.marks: list[tuple[float, float, float]] = []
        self.late_at: list[float] = []
        self.ended: list[tuple[float, float, str]] = []
        """Arrival, latency in deadlines, tier."""
        self.apply(self.settings)

    def apply(self, settings: Settings) -> None:
        self.settings = settings
        for tier in settings.tiers:
            key = CounterKey(settings.generation, tier.name)
            self.counts.setdefault(key, dict.fromkeys(FIELDS, 0.0))
        self.counts = {k: v for k, v in self.counts.items() if k.generation >= settings.generation - 1}

    @property
    def window(self) -> int:
        ceiling = self.settings.ceiling
        if self.sla_window:
            ceiling = min(ceiling, max(1, int((self.settings.sla_ms / 2000 - self.c) / self.a)))
        return ceiling

    def run(self, until_s: float) -> None:
        while True:
            arrival_s = self.arrivals[0][0] if self.arrivals else float("inf")
            start_s = self._start()
            if min(arrival_s, start_s) >= until_s:
                break
            if arrival_s <= start_s:
                self._arrive()
            else:
                self._batch(start_s)
        self.now_s = until_s

    def sample(self, pod: str = "a") -> PodSample:
        self._close_seconds(int(self.now_s))
        queue = dict.fromkeys((tier.name for tier in self.settings.tiers), 0.0)
        for request in self.queue:
            queue[request.tier] += 1
        return PodSample(
            pod=pod,
            time_s=self.now_s,
            counts={key: Counts(**counts) for key, counts in self.counts.items()},
            busy_s=self.engine_s,
            work=self.work,
            gauges=Gauges(
                window=self.window,
                window_cap=self.window,
                ceiling=self.settings.ceiling,
                efficiency=self._efficiency(),
                arrival_cv=self.cv,
                queue=queue,
                latency_model={"c": self.c, "a": self.a},
            ),
        )

    def over_sla(self, since_s: float, until_s: float, tier: str) -> float:
        seen = [ratio > 1 for at_s, ratio, name in self.ended if since_s <= at_s < until_s and name == tier]
        return sum(seen) / len(seen) if seen else 0.0

    def _next(self, tier: str, now_s: float) -> None:
        rate = self.rates[tier](now_s)
        if rate <= 0:
            heapq.heappush(self.arrivals, (now_s + 1.0, tier + "?"))
            return
        shape = 1 / self.cv**2
        heapq.heappush(self.arrivals, (now_s + self.rng.gammavariate(shape, 1 / (shape * rate)), tier))

    def _arrive(self) -> None:
        arrival_s, name = heapq.heappop(self.arrivals)
        if name.endswith("?"):
            self._next(name[:-1], arrival_s)
            return
        self._next(name, arrival_s)
        self.last_arrival_s = arrival_s
        tier = self.settings.tier(name)
        request = Request(
            arrival_s + (tier.deadline_ms - tier.boost_ms) / 1000, arrival_s, name, self.settings.generation
        )
        request.busy_s = max(0.0, self.free_s - arrival_s)
        heapq.heappush(self.queue, request)

    def _start(self) -> float:
        """When the next batch leaves: full, or somebody's hold is over."""
        if not self.queue:
            return float("inf")
        ready_s = min(
            each.arrival_s
            + min(
                self.settings.tier(each.tier).max_hold_ms,
                self.settings.tier(each.tier).deadline_ms
                - self.settings.margin_percent / 100 * self.settings.sla_ms
                - 1000 * (self.c + self.a * self.window),
            )
            / 1000
            for each in self.queue[:8]
        )
        if len(self.queue) >= self.window:
            ready_s = self.last_arrival_s
        return max(self.free_s, ready_s, self.now_s)

    def _batch(self, start_s: float) -> None:
        batch: list[Request] = []
        while self.queue and len(batch) < self.window:
            request = heapq.heappop(self.queue)
            if start_s - request.arrival_s > self._timeout_s(request.tier):
                self._end(request, start_s, start_s, timed_out=True)
            else:
                batch.append(request)
        if not batch:
            return
        duration_s = self.c + self.a * len(batch)
        for request in batch:
            request.hold_s = start_s - max(request.arrival_s, self.free_s) if start_s > self.free_s else 0.0
            self._end(request, start_s, start_s + duration_s)
        self.free_s = start_s + duration_s
        self.engine_s += duration_s
        self.work += len(batch)
        self.batches += 1

    def _end(self, request: Request, start_s: float, end_s: float, timed_out: bool = False) -> None:
        latency_s = end_s - request.arrival_s
        deadline_s = self.settings.tier(request.tier).deadline_ms / 1000
        late = timed_out or latency_s > deadline_s
        key = CounterKey(request.generation, request.tier)
        if key not in self.counts:
            key = CounterKey(min(k.generation for k in self.counts), request.tier)
        counts = self.counts[key]
        counts["requests"] += 1
        self._moment(key, int(end_s), late)
        self.ended.append((request.arrival_s, latency_s / deadline_s if not timed_out else 9.0, request.tier))
        if late:
            counts["late"] += 1
            counts["timeouts"] += timed_out
            counts["hold_s"] += request.hold_s
            counts["busy_s"] += min(request.busy_s, start_s - request.arrival_s)
            counts["exec_s"] += end_s - start_s
            counts["slot_s"] += max(0.0, start_s - request.arrival_s - request.busy_s - request.hold_s)
            self.late_at.append(request.arrival_s)

    def _timeout_s(self, name: str) -> float:
        tier = self.settings.tier(name)
        return (tier.timeout_ms or 2 * tier.deadline_ms) / 1000

    def _moment(self, key: CounterKey, second: int, late: bool) -> None:
        open_second, n, k = self.second.get(key, (second, 0, 0))
        if open_second != second:
            self._add(key, n, k)
            n = k = 0
        self.second[key] = (second, n + 1, k + late)

    def _close_seconds(self, second: int) -> None:
        for key, (open_second, n, k) in list(self.second.items()):
            if open_second < second:
                self._add(key, n, k)
                self.second[key] = (second, 0, 0)

    def _add(self, key: CounterKey, n: int, k: int) -> None:
        if key in self.counts:
            counts = self.counts[key]
            counts["nn"] += n * n
            counts["nk"] += n * k
            counts["kk"] += k * k

    def _efficiency(self) -> float | None:
        """Over the last ten seconds or so."""
        self.marks = [mark for mark in self.marks if mark[0] > self.now_s - 10] or self.marks[-1:]
        self.marks.append((self.now_s, self.work, self.engine_s))
        _, work, engine_s = self.marks[0]
        if self.engine_s <= engine_s:
            return None
        widest = self.settings.window_idle
        return ((self.work - work) / (self.engine_s - engine_s)) / (widest / (self.c + self.a * widest))


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def step(low: float, factor: float, at_s: float) -> Callable[[float], float]:
    return lambda now_s: low * factor if now_s >= at_s else low


def times(step_s: float, until_s: float) -> Iterator[float]:
    count = int(until_s / step_s)
    return (step_s * index for index in range(1, count + 1))
