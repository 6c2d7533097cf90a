"""Replicas × window, each under the same load in the simulator. Pure, but for the processes that share the work."""

import math
import random
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tailkeeper.api.settings import Settings
from tailkeeper.model.load_mix import TierLoad, requests
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.simulate.model import EngineModel
from tailkeeper.simulate.run import Simulated, simulate
from tailkeeper.simulate.tally import CAUSES

MOST: Final = 2_000
"""Candidates of one plan."""
LOOK_S: Final = 0.2
"""How often an interrupt is looked for."""


@dataclass(frozen=True)
class Load:
    """What is to be served: processes that are made anew for each seed, or a recorded load."""

    made: tuple[TierLoad, ...] = ()
    recorded: tuple[LoadRequest, ...] = ()
    """In order of time."""

    def rows(self, seed: int, count: int) -> list[LoadRequest]:
        """The first of them, in order of time."""
        made = islice(requests(self.made, lambda name: random.Random(f"{seed}/{name}"), math.inf), count)
        rows = [*self.recorded, *made] if self.made else list(self.recorded)
        return sorted(rows, key=lambda row: row.arrival_s)[:count]

    @property
    def rate_per_s(self) -> float:
        """Long-run mean of requests per second."""
        seconds = self.recorded[-1].arrival_s - self.recorded[0].arrival_s if self.recorded else 0.0
        recorded = len(self.recorded) / seconds if seconds > 0.0 else 0.0
        return recorded + sum(load.arrivals.mean_rate_per_s for load in self.made)


@dataclass(frozen=True)
class Candidate:
    """What may be run: so many workers, whose window is at most that."""

    replicas: int
    window: int


@dataclass(frozen=True)
class Task:
    """One candidate with all that it takes to simulate it, in another process too."""

    candidate: Candidate
    settings: Settings
    model: EngineModel
    load: Load
    seeds: int
    requests: int


@dataclass(frozen=True)
class Outcome:
    """One candidate over its seeds. Times in milliseconds, of all requests; a missing answer counts as its timeout."""

    candidate: Candidate
    p50_ms: float
    p95_ms: float
    p99_ms: float
    """Mean of the seeds."""
    p99_low_ms: float
    p99_high_ms: float
    waits_ms: dict[str, float]
    """Mean time of a request by cause: hold, busy, slot, exec."""
    timeout_ratio: float
    busy_fraction: float
    efficiency: float
    keeps_up: bool
    """False: the load is more than the workers can do at that window, and the queue only grows."""
    late_tiers: tuple[str, ...]
    """Tiers whose p99, in the worst seed, is over their SLA."""
    meets: bool


def evaluate(task: Task) -> Outcome:
    """Simulates one candidate once per seed."""
    settings = of_window(task.settings, task.candidate.window)
    loads = [task.load.rows(seed, task.requests) for seed in range(task.seeds)]
    runs = [simulate(settings, load, task.model, workers=task.candidate.replicas) for load in loads]
    late = tuple(
        tier.name
        for tier in settings.tiers
        if any(run.tiers[tier.name].count and run.tiers[tier.name].p99_ms > tier.deadline_ms for run in runs)
    )
    p99 = [run.all.p99_ms for run in runs]
    timeouts = sum(run.all.timeouts for run in runs) / sum(run.all.count for run in runs)
    keeps_up = _keeps_up(loads[0], task.load.rate_per_s, task.model, task.candidate)
    return Outcome(
        candidate=task.candidate,
        p50_ms=statistics.mean(run.all.p50_ms for run in runs),
        p95_ms=statistics.mean(run.all.p95_ms for run in runs),
        p99_ms=statistics.mean(p99),
        p99_low_ms=min(p99),
        p99_high_ms=max(p99),
        waits_ms={cause: statistics.mean(_mean_wait_ms(run, cause) for run in runs) for cause in CAUSES},
        timeout_ratio=timeouts,
        busy_fraction=statistics.mean(run.busy_fraction for run in runs),
        efficiency=statistics.mean(run.efficiency for run in runs),
        keeps_up=keeps_up,
        late_tiers=late,
        meets=keeps_up and not late and 1000 * timeouts <= settings.timeout_target_per_mille,
    )


def of_window(settings: Settings, window: int) -> Settings:
    """The policy with `windowIdle` there: its `windowBusy` stays, unless it is wider."""
    return settings.but(window_idle=window, window_busy=min(settings.window_busy, window), ceiling=window)


def evaluate_all(tasks: Sequence[Task], processes: int, done: Callable[[Outcome], None]) -> list[Outcome]:
    """In the order of the tasks; `done` hears of each as it ends. The processes end with it, an interrupt too."""
    if processes <= 1 or len(tasks) == 1:
        return list(_one_by_one(tasks, done))
    with _interrupts_noted() as interrupted, ProcessPoolExecutor(processes) as pool:
        futures = _submitted(pool, tasks)
        found: dict[int, Outcome] = {}
        waiting = set(futures)
        while waiting and not interrupted:
            ended, waiting = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in ended:
                found[futures[future]] = future.result()
                done(found[futures[future]])
        if interrupted:
            for process in list(pool._processes.values()):  # there is no public way to end them at once
                process.kill()
            pool.shutdown(wait=True, cancel_futures=True)
            raise KeyboardInterrupt
        return [found[place] for place in range(len(tasks))]


@contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Ctrl-C makes the list not empty and is no exception: one in the middle of the pool's own locks would hang it."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def cheapest(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The fewest workers that keep the SLA; among these the one with the shortest tail. None when none does."""
    meeting = [outcome for outcome in outcomes if outcome.meets]
    return min(meeting, key=lambda one: (one.candidate.replicas, one.p99_high_ms, one.candidate.window), default=None)


def _submitted(pool: ProcessPoolExecutor, tasks: Sequence[Task]) -> dict[Future[Outcome], int]:
    """The tasks' places. Ctrl-C reaches every process of a terminal; those that start here inherit that they do not
    hear it: one is enough to end the work."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(evaluate, task): place for place, task in enumerate(tasks)}
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _one_by_one(tasks: Sequence[Task], done: Callable[[Outcome], None]) -> Iterator[Outcome]:
    for task in tasks:
        outcome = evaluate(task)
        done(outcome)
        yield outcome


def _mean_wait_ms(run: Simulated, cause: str) -> float:
    return run.all.wait_ms[cause].sum / run.all.count if run.all.count else 0.0


def _keeps_up(load: Sequence[LoadRequest], rate_per_s: float, model: EngineModel, candidate: Candidate) -> bool:
    """A short run under a long SLA would not show that the queue only grows: so the rates are compared."""
    window = min(candidate.window, model.max_batch or candidate.window)
    each_per_s = rate_per_s / candidate.replicas
    if model.line is not None:
        return each_per_s < model.line.rate(window)
    assert model.cost is not None
    prompt = statistics.mean(row.prompt_tokens for row in load)
    output = statistics.mean(row.output_tokens for row in load)
    return each_per_s * model.cost.per_request(window, prompt, output) < 1.0
