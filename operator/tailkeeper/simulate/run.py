"""The simulator: the worker's own scheduler and, where one is given, a tuner, on a virtual clock.

Thousands of times faster than real time, and repeatable: the same load, model and settings give the same result."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_worker.scheduling.interface import Answer, Request, Step
from tailkeeper.api.settings import Settings
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.simulate.model import EngineModel
from tailkeeper.simulate.tally import Tally, TierResult, result, tallies
from tailkeeper.simulate.worker import MakeScheduler, VirtualWorker, make_scheduler

MOST_WINDOWS = 2_000
"""Points of the window over time that a result keeps."""


@dataclass(frozen=True)
class Move:
    """One move of the tuner."""

    time_s: float
    cause: str
    before: str
    after: str
    outcome: str


class Tuner(Protocol):
    """The outer loop, as far as the simulator knows it."""

    @property
    def interval_s(self) -> float:
        """Virtual seconds between ticks."""
        ...

    def tick(self, now_s: float, workers: Sequence[VirtualWorker], answers: Sequence[Answer]) -> Settings | None:
        """One tick: all answers since the last. Settings to apply now, or None."""
        ...

    @property
    def moves(self) -> Sequence[Move]:
        """All it has done."""
        ...


@dataclass(frozen=True)
class WindowPoint:
    """The window of the first worker from that time on."""

    time_s: float
    window: int


@dataclass(frozen=True)
class Simulated:
    """What came out. Times are virtual."""

    tiers: dict[str, TierResult]
    all: TierResult
    busy_fraction: float
    throughput_per_s: float
    """Requests answered with a result, OK or late."""
    mean_batch: float
    efficiency: float
    """Work per busy second over that at the saturation window."""
    windows: tuple[WindowPoint, ...]
    moves: tuple[Move, ...]
    seconds: float


def simulate(
    settings: Settings,
    load: Sequence[LoadRequest],
    model: EngineModel,
    *,
    workers: int = 1,
    tuner: Tuner | None = None,
    make: MakeScheduler = make_scheduler,
) -> Simulated:
    """Runs the load to its end. Raises KeyError when it names a tier that the settings have not."""
    requests, outputs = to_requests(load)
    book = tallies(settings)
    fresh: list[Answer] = []
    windows = _Windows()

    def answered(answers: Iterable[Answer]) -> None:
        for answer in answers:
            book[answer.request.tier].add(answer)
        if tuner is not None:
            fresh.extend(answers)

    fleet = []
    for number in range(workers):
        note = windows.note if number == 0 else None
        worker = VirtualWorker(make(settings, 0.0, model), model, outputs, answered, note)
        worker.warm_up()
        fleet.append(worker)
    ended_s = max((request.arrival_s for request in requests), default=0.0)
    for worker in fleet:
        worker.horizon_s = ended_s
    _drive(fleet, requests, tuner, fresh)
    return _result(book, fleet, windows, tuner, settings, ended_s)


def to_requests(load: Sequence[LoadRequest]) -> tuple[list[Request], list[int]]:
    """What the scheduler is told, and how many tokens each really produces: that it is not told. The most that a
    caller allows is the longest output of the whole load."""
    most = max((row.output_tokens for row in load), default=1)
    requests = [
        Request(
            id=str(number),
            tier=row.tier,
            arrival_s=row.arrival_s,
            deadline_s=None if row.deadline_ms is None else row.arrival_s + row.deadline_ms / 1000,
            tenant=row.tenant or "",
            prompt_tokens=row.prompt_tokens,
            max_output_tokens=max(1, most),
        )
        for number, row in enumerate(load)
    ]
    return requests, [row.output_tokens for row in load]


def _drive(fleet: list[VirtualWorker], requests: list[Request], tuner: Tuner | None, fresh: list[Answer]) -> None:
    """In order of time: what is due at a worker, the next arrival (to each worker in turn), the tuner's tick."""
    count, at = len(requests), 0
    tick_s = tuner.interval_s if tuner is not None else math.inf
    only = fleet[0] if len(fleet) == 1 else None
    while True:
        worker = only or min(fleet, key=lambda one: one.due_s)
        due_s = worker.due_s
        arrival_s = requests[at].arrival_s if at < count else math.inf
        if due_s == arrival_s == math.inf:
            return
        if tick_s < due_s and tick_s < arrival_s:
            assert tuner is not None
            moved = tuner.tick(tick_s, fleet, tuple(fresh))
            fresh.clear()
            if moved is not None:
                for one in fleet:
                    one.apply(moved, tick_s)
            tick_s += tuner.interval_s
        elif due_s <= arrival_s:
            worker.advance(due_s)
        else:
            fleet[at % len(fleet)].submit(requests[at], arrival_s)
            at += 1


class _Windows:
    """The window over time, thinned out: every change until there are too many, then every other."""

    def __init__(self) -> None:
        self.points: list[WindowPoint] = []
        self.batches = 0
        self.members = 0
        self._every = 1
        self._changes = 0

    def note(self, now_s: float, step: Step) -> None:
        self.batches += 1
        self.members += len(step.work)
        points = self.points
        if points and points[-1].window == step.window:
            return
        self._changes += 1
        if self._changes % self._every == 0:
            points.append(WindowPoint(round(now_s, 6), step.window))
            if len(points) >= MOST_WINDOWS:
                del points[::2]
                self._every *= 2


def _result(
    book: dict[str, Tally],
    fleet: list[VirtualWorker],
    windows: _Windows,
    tuner: Tuner | None,
    settings: Settings,
    ended_s: float,
) -> Simulated:
    everything = result(book.values(), ended_s)
    busy_s = sum(worker.busy_s for worker in fleet)
    answered = everything.count - everything.timeouts
    return Simulated(
        tiers={name: result([tally], ended_s) for name, tally in book.items()},
        all=everything,
        busy_fraction=busy_s / (ended_s * len(fleet)) if ended_s > 0.0 else 0.0,
        throughput_per_s=answered / ended_s if ended_s > 0.0 else 0.0,
        mean_batch=windows.members / windows.batches if windows.batches else 0.0,
        efficiency=sum(worker.ideal_s(settings.window_idle) for worker in fleet) / busy_s if busy_s > 0.0 else math.nan,
        windows=tuple(windows.points),
        moves=tuple(tuner.moves) if tuner is not None else (),
        seconds=ended_s,
    )
