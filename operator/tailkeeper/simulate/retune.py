"""The operator's tuner on virtual workers: their answers as the counters that a scrape would see, then one `decide`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpu_worker.scheduling.interface import Answer, Outcome
from tailkeeper.api.enums import MoveCause, MoveOutcome
from tailkeeper.api.levers import Move as LeverMove
from tailkeeper.api.levers import changes, move
from tailkeeper.api.settings import Settings
from tailkeeper.control.decide import decide
from tailkeeper.control.decision import Decision
from tailkeeper.control.freeze import Situation
from tailkeeper.control.history import History
from tailkeeper.control.move import Bounds
from tailkeeper.control.samples import CounterKey, Counts, Gauges, PodSample
from tailkeeper.control.state import State
from tailkeeper.simulate.run import Move
from tailkeeper.simulate.worker import VirtualWorker

LATE: Final = frozenset({Outcome.LATE, Outcome.SHED, Outcome.EXPIRED})
TIMED_OUT: Final = frozenset({Outcome.SHED, Outcome.EXPIRED})


@dataclass(frozen=True)
class Planted:
    """A move by hand, as an annotation makes it."""

    time_s: float
    moves: tuple[LeverMove, ...]


_ALONE: Final = Situation()


class Retuner:
    """A `Tuner` for `simulate`. Settings reach the virtual workers with the tick that decides them."""

    def __init__(
        self,
        settings: Settings,
        bounds: Bounds,
        *,
        interval_s: float = 5.0,
        scrape_s: float | None = None,
        situation: Situation = _ALONE,
        planted: Sequence[Planted] = (),
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._interval_s = interval_s
        self._scrape_s = scrape_s or interval_s
        self._situation = situation
        self._planted = sorted(planted, key=lambda each: each.time_s)
        self._history = History()
        self._state = State()
        self._meters: list[_Meter] = []
        self._samples: tuple[PodSample, ...] = ()
        self._scraped_s = -1e9
        self._moves: list[tuple[int, Move]] = []
        self.decisions: list[tuple[float, Decision]] = []
        """The last ten thousand, newest last."""

    @property
    def interval_s(self) -> float:
        """Virtual seconds between ticks."""
        return self._interval_s

    @property
    def moves(self) -> list[Move]:
        """All that was moved, by the tuner or by hand, and what became of it."""
        return [made for _, made in self._moves]

    def tick(self, now_s: float, workers: Sequence[VirtualWorker], answers: Sequence[Answer]) -> Settings | None:
        """Counts the answers, scrapes when it is due, decides."""
        self._count(answers, len(workers))
        if now_s - self._scraped_s >= self._scrape_s - 1e-9:
            self._scraped_s = now_s
            self._samples = tuple(
                meter.sample(f"worker-{number}", now_s, worker)
                for number, (meter, worker) in enumerate(zip(self._meters, workers, strict=True))
            )
        observation = self._history.observe(self._samples, None, now_s)
        situation = replace(self._situation, applied=(self._settings.generation,) * len(workers))
        self._state, decision = decide(self._state, observation, self._settings, self._bounds, situation, now_s)
        self._note(now_s, decision)
        if decision.step is not None:
            return self._write(now_s, decision.step.moves, decision.step.cause)
        if self._planted and self._planted[0].time_s <= now_s:
            return self._write(now_s, self._planted.pop(0).moves, MoveCause.MANUAL)
        return None

    def _count(self, answers: Sequence[Answer], workers: int) -> None:
        while len(self._meters) < workers:
            self._meters.append(_Meter(self._settings))
        for answer in answers:
            # `simulate` gives the arrivals to the workers in turn, and their ids are their numbers
            self._meters[int(answer.request.id) % workers].add(answer)

    def _write(self, now_s: float, moves: Sequence[LeverMove], cause: MoveCause) -> Settings:
        before = self._settings
        self._settings = move(before, moves, self._bounds.spec).but(generation=before.generation + 1)
        for meter in self._meters:
            meter.apply(now_s, self._settings)
        said = changes(before, self._settings)
        old = " ".join(f"{each.lever.value}={each.before}" for each in said)
        new = " ".join(f"{each.lever.value}={each.after}" for each in said)
        made = Move(now_s, cause.value, old, new, MoveOutcome.PENDING.value)
        self._moves.append((self._settings.generation, made))
        return self._settings

    def _note(self, now_s: float, decision: Decision) -> None:
        self.decisions.append((now_s, decision))
        if len(self.decisions) > 10_000:
            del self.decisions[:5_000]
        ended = decision.ended
        if ended is not None:
            self._moves = [
                (generation, replace(made, outcome=ended.outcome.value) if generation == ended.generation else made)
                for generation, made in self._moves
            ]


class _Meter:
    """One worker's counters, by tier and by the generation that applied when the request arrived."""

    def __init__(self, settings: Settings) -> None:
        self._applied: list[tuple[float, int]] = [(-1.0, settings.generation)]
        self._tiers = [tier.name for tier in settings.tiers]
        self._ceiling = settings.ceiling
        self._judged: dict[CounterKey, _Judged] = {}
        self._start(settings.generation)

    def apply(self, now_s: float, settings: Settings) -> None:
        self._applied = [*self._applied[-1:], (now_s, settings.generation)]
        self._ceiling = settings.ceiling
        oldest = self._applied[0][1]
        self._judged = {key: judged for key, judged in self._judged.items() if key.generation >= oldest}
        self._start(settings.generation)

    def add(self, answer: Answer) -> None:
        since_s, generation = self._applied[-1]
        if answer.request.arrival_s < since_s:
            generation = self._applied[0][1]
        self._judged[CounterKey(generation, answer.request.tier)].add(answer)

    def sample(self, pod: str, now_s: float, worker: VirtualWorker) -> PodSample:
        state = worker.scheduler.state(now_s)
        return PodSample(
            pod=pod,
            time_s=now_s,
            counts={key: judged.counts(int(now_s)) for key, judged in self._judged.items()},
            busy_s=worker.busy_s,
            work=float(worker.prefills + worker.decodes),
            gauges=Gauges(
                window=float(state.window),
                window_cap=float(state.window_cap),
                ceiling=float(self._ceiling),
                efficiency=state.efficiency,
                arrival_cv=state.arrival_cv,
                queue={name: float(tier.queued) for name, tier in state.tiers.items() if tier.queued},
                latency_model=dict(state.latency_model),
            ),
        )

    def _start(self, generation: int) -> None:
        for tier in self._tiers:
            self._judged[CounterKey(generation, tier)] = _Judged()


class _Judged:
    """One tier under one generation. Plain attributes: this runs once per request."""

    __slots__ = (
        "busy_s",
        "exec_s",
        "hold_s",
        "k",
        "kk",
        "late",
        "n",
        "nk",
        "nn",
        "requests",
        "second",
        "slot_s",
        "timeouts",
    )

    def __init__(self) -> None:
        self.requests = self.late = self.timeouts = 0
        self.hold_s = self.busy_s = self.slot_s = self.exec_s = 0.0
        self.nn = self.nk = self.kk = 0
        self.second = self.n = self.k = 0

    def add(self, answer: Answer) -> None:
        if answer.ended_s >= self.second + 1:
            self._close(int(answer.ended_s))
        self.requests += 1
        self.n += 1
        if answer.outcome in LATE:
            self.late += 1
            self.k += 1
            self.timeouts += answer.outcome in TIMED_OUT
            waits = answer.waits
            self.hold_s += waits.hold_s
            self.busy_s += waits.busy_s
            self.slot_s += waits.slot_s
            self.exec_s += waits.exec_s

    def counts(self, second: int) -> Counts:
        if second > self.second:
            self._close(second)
        return Counts(
            requests=self.requests,
            late=self.late,
            timeouts=self.timeouts,
            hold_s=self.hold_s,
            busy_s=self.busy_s,
            slot_s=self.slot_s,
            exec_s=self.exec_s,
            nn=self.nn,
            nk=self.nk,
            kk=self.kk,
        )

    def _close(self, second: int) -> None:
        self.nn += self.n * self.n
        self.nk += self.n * self.k
        self.kk += self.k * self.k
        self.second, self.n, self.k = second, 0, 0
