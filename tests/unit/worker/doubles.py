"""What the worker's tests stand on: settings of one instance, an engine that does what it is told, a scheduler that is
one first-in first-out queue."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_worker.config import Identity
from gpu_worker.engines.interface import InputError, Prepared, Progress, Serves, StepResult, Task
from gpu_worker.scheduling import EngineLimits
from gpu_worker.scheduling.interface import (
    Answer,
    Decision,
    Outcome,
    Request,
    SchedulerState,
    Step,
    StepReport,
    TierState,
    Waits,
    Work,
)
from tailkeeper.api.enums import Mode, TrafficClass
from tailkeeper.api.settings import Settings, TierSettings

IDENTITY = Identity("default", "chat", "minilm")


def settings(generation: int = 1, sla_ms: int = 1000, **changes: Any) -> Settings:
    """Three tiers, request mode."""
    values: dict[str, Any] = {
        "generation": generation,
        "policy_namespace": IDENTITY.policy_namespace,
        "policy": IDENTITY.policy,
        "model_instance": IDENTITY.model_instance,
        "traffic_class": TrafficClass.ONLINE,
        "mode": Mode.REQUEST,
        "window_dynamic": True,
        "window_idle": 64,
        "window_busy": 16,
        "priority_queue": True,
        "timeout_target_per_mille": 5,
        "min_efficiency_percent": 70,
        "tiers": [
            TierSettings(name="interactive", deadline_ms=sla_ms, timeout_ms=2 * sla_ms, max_hold_ms=0, preempts=True),
            TierSettings(name="standard", deadline_ms=5 * sla_ms, timeout_ms=10 * sla_ms, max_hold_ms=0),
            TierSettings(name="batch", deadline_ms=60 * sla_ms, max_hold_ms=0, reserve_percent=10),
        ],
        "default_tier": "interactive",
        "ceiling": 64,
    }
    return Settings(**(values | changes))


def document(generation: int = 1, sla_ms: int = 1000, **changes: Any) -> str:
    """The same as it travels."""
    return settings(generation, sla_ms, **changes).model_dump_json(by_alias=True, exclude_none=True)


class ScriptedEngine:
    """Embeds a text as [number of characters, 1]. `poison` texts break their step; `broken` breaks every step; `gate`,
    when given, is what each step waits for; `pause_s` is how long it takes."""

    serves = Serves.EMBEDDINGS
    modes = frozenset({Mode.REQUEST, Mode.FIXED})
    limits = EngineLimits()
    stateless = True
    dimensions = 2
    max_tokens = 32

    def __init__(self, pause_s: float = 0.0, gate: threading.Event | None = None) -> None:
        self.pause_s = pause_s
        self.gate = gate
        self.poison: set[str] = set()
        self.broken: str | None = None
        self.broken_load: str | None = None
        self.batches: list[list[str]] = []
        self.released: list[str] = []
        self.loads = 0
        self.before_step: Callable[[], None] = lambda: None

    def load(self, progress: Progress) -> None:
        self.loads += 1
        if self.broken_load is not None:
            raise RuntimeError(self.broken_load)
        progress(1.0, "loaded")

    def text(self, text: str, truncate: bool) -> Prepared:
        tokens = text.split()
        if len(tokens) > self.max_tokens and not truncate:
            raise InputError(f"the input is longer than this model's {self.max_tokens} tokens")
        return Prepared(text, min(len(tokens), self.max_tokens))

    def tokens(self, ids: Sequence[int]) -> Prepared:
        if max(ids) > 100:
            raise InputError(f"token {max(ids)} is not in this model's vocabulary of 100")
        return Prepared("t" * len(ids), len(ids))

    def warm_up(self, batch: int) -> Sequence[Task]:
        if self.broken is not None:
            raise RuntimeError(self.broken)
        return [Task(f"warm-up-{index}", "warm", 4) for index in range(batch)]

    def step(self, tasks: Sequence[Task], evicted: Sequence[str]) -> StepResult:
        texts = [task.content for task in tasks]
        self.batches.append(texts)
        self.before_step()
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.pause_s:
            time.sleep(self.pause_s)
        if self.broken is not None:
            raise RuntimeError(self.broken)
        if self.poison.intersection(texts):
            raise RuntimeError("poison")
        outputs = {task.id: np.array([len(task.content), 1], dtype=np.float32) for task in tasks}
        return StepResult(outputs, frozenset(outputs))

    def release(self, ids: Sequence[str]) -> None:
        self.released.extend(ids)


class FifoScheduler:
    """Takes whoever waits, at most `window` at a time, when the engine is free; expires by the caller's deadline."""

    def __init__(self, settings: Settings, now_s: float, limits: EngineLimits | None = None) -> None:
        self.window = settings.window_idle
        self.applied = [settings]
        self.queue: list[Request] = []
        self.running: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.reports: list[StepReport] = []
        self.steps = 0
        self.full_at: int | None = None

    def apply(self, settings: Settings, now_s: float) -> tuple[Answer, ...]:
        self.applied.append(settings)
        return ()

    def submit(self, request: Request, now_s: float) -> tuple[Answer, ...]:
        self.applied[-1].tier(request.tier)
        if self.full_at is not None and len(self.queue) >= self.full_at:
            return (Answer(request, Outcome.SHED, Waits(), now_s, retry_after_s=2.5),)
        self.queue.append(request)
        return ()

    def cancel(self, request_id: str, now_s: float) -> Answer | None:
        for request in self.queue:
            if request.id == request_id:
                self.queue.remove(request)
                return self._answer(request, Outcome.CANCELLED, now_s)
        request = self.running.pop(request_id, None)
        return None if request is None else self._answer(request, Outcome.CANCELLED, now_s)

    def tick(self, now_s: float) -> Decision:
        due = [request for request in self.queue if request.deadline_s is not None and request.deadline_s <= now_s]
        self.queue = [request for request in self.queue if request not in due]
        deadlines = [request.deadline_s for request in self.queue if request.deadline_s is not None]
        answers = tuple(self._answer(request, Outcome.EXPIRED, now_s) for request in due)
        return Decision(answers=answers, wake_at_s=min(deadlines, default=None))

    def next(self, now_s: float) -> Decision:
        expired = self.tick(now_s)
        batch, self.queue = self.queue[: self.window], self.queue[self.window :]
        if not batch:
            return expired
        self.steps += 1
        self.running = {request.id: request for request in batch}
        step = Step(self.steps, tuple(Work(request, request.prompt_tokens) for request in batch), window=self.window)
        return Decision(step, expired.answers)

    def finished(self, report: StepReport, now_s: float) -> tuple[Answer, ...]:
        self.reports.append(report)
        answers = [
            self._answer(self.running.pop(request_id), outcome, now_s, report.started_s)
            for ids, outcome in ((report.completed, Outcome.OK), (report.failed, Outcome.ERROR))
            for request_id in ids
            if request_id in self.running
        ]
        return tuple(answers)

    def state(self, now_s: float) -> SchedulerState:
        tiers = {
            tier.name: TierState(sum(request.tier == tier.name for request in self.queue), None)
            for tier in self.applied[-1].tiers
        }
        return SchedulerState(
            self.window, self.window, len(self.running), tiers, 10.0, 1.0, {"c": 0.006, "a": 0.002}, 0.9
        )

    def _answer(self, request: Request, outcome: Outcome, now_s: float, started_s: float | None = None) -> Answer:
        begun_s = now_s if started_s is None else started_s
        return Answer(request, outcome, Waits(slot_s=begun_s - request.arrival_s, exec_s=now_s - begun_s), now_s)
