"""A virtual engine around a scheduler: enough of the worker's loop to see what requests get."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpu_worker.scheduling.interface import Answer, Request, Scheduler, Step, StepReport, Work
from tailkeeper.api.settings import Settings, TierSettings


def tier(
    name: str, deadline_ms: int, *, timeout_ms: int | None = None, max_hold_ms: int | None = None, **more: object
) -> TierSettings:
    hold = deadline_ms if max_hold_ms is None else max_hold_ms
    timeout = 2 * deadline_ms if timeout_ms is None else timeout_ms
    return TierSettings.model_validate(
        {"name": name, "deadline_ms": deadline_ms, "timeout_ms": timeout, "max_hold_ms": hold, **more}
    )


def settings(**changes: object) -> Settings:
    """Request mode, one tier of 50 ms, windows 8 to 32."""
    fields: dict[str, object] = {
        "generation": 1,
        "policy_namespace": "default",
        "policy": "chat",
        "model_instance": "small",
        "traffic_class": "online",
        "mode": "request",
        "window_dynamic": True,
        "window_idle": 32,
        "window_busy": 8,
        "priority_queue": True,
        "timeout_target_per_mille": 5,
        "min_efficiency_percent": 70,
        "tiers": [tier("interactive", 50)],
        **changes,
    }
    tiers = fields["tiers"]
    assert isinstance(tiers, list)
    fields.setdefault("default_tier", tiers[0].name)
    fields.setdefault("ceiling", fields["window_idle"])
    return Settings.model_validate(fields)


def taught(scheduler: Scheduler, seconds: Callable[[int], float], sizes: Iterable[int] = (1, 8)) -> None:
    """Shows the scheduler warm-up steps, as the worker does before it is ready."""
    for number, size in enumerate(sizes):
        work = tuple(Work(Request(f"warm-{index}", "", 0.0), prefill_tokens=1) for index in range(size))
        scheduler.finished(StepReport(Step(-number, work), 0.0, seconds(size)), 0.0)


@dataclass
class Drive:
    """Runs one-pass steps that take `seconds(batch size)`."""

    scheduler: Scheduler
    seconds: Callable[[int], float]
    now_s: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    steps: list[tuple[float, Step]] = field(default_factory=list)
    _running: tuple[Step, float, float] | None = None
    _wake_s: float | None = None

    def submit(self, *requests: Request) -> None:
        """Each at its own arrival; the engine runs meanwhile."""
        for request in requests:
            self.until(request.arrival_s)
            self.answers += self.scheduler.submit(request, self.now_s)
            self._turn()

    def cancel(self, request_id: str) -> None:
        answer = self.scheduler.cancel(request_id, self.now_s)
        if answer is not None:
            self.answers.append(answer)
        self._turn()

    def until(self, time_s: float) -> None:
        while True:
            end_s = self._running[2] if self._running else math.inf
            wake_s = math.inf if self._wake_s is None else self._wake_s
            event_s = min(end_s, wake_s)
            if event_s > time_s or event_s == math.inf:
                break
            self.now_s = max(self.now_s, event_s)
            if self._running and event_s == end_s:
                self._finish()
            self._turn()
        self.now_s = time_s if time_s < math.inf else self.now_s

    def _finish(self) -> None:
        assert self._running is not None
        step, started_s, ended_s = self._running
        self._running = None
        done = frozenset(work.request.id for work in step.work)
        self.answers += self.scheduler.finished(StepReport(step, started_s, ended_s, done), self.now_s)

    def _turn(self) -> None:
        decision = self.scheduler.tick(self.now_s) if self._running else self.scheduler.next(self.now_s)
        self.answers += decision.answers
        self._wake_s = decision.wake_at_s
        if decision.step is not None:
            self.steps.append((self.now_s, decision.step))
            took_s = self.seconds(len(decision.step.work))
            self._running = (decision.step, self.now_s, self.now_s + took_s)

    def answer(self, request_id: str) -> Answer:
        (found,) = [answer for answer in self.answers if answer.request.id == request_id]
        return found
