"""A virtual worker: the real scheduler, an engine that is only a formula, and the loop between them."""

import math
from collections.abc import Callable, Sequence

from gpu_worker.scheduling import create
from gpu_worker.scheduling.interface import Answer, Decision, Request, Scheduler, Step, StepReport, Work
from tailkeeper.api.settings import Settings
from tailkeeper.model.iterations import saturation
from tailkeeper.model.windows import saturation_window
from tailkeeper.simulate.model import EngineModel

WARM_UP = (1, 8)
"""Batches that the real worker runs before it is ready."""
WARM_UP_TOKENS = 16

MakeScheduler = Callable[[Settings, float, EngineModel], Scheduler]


def make_scheduler(settings: Settings, now_s: float, model: EngineModel) -> Scheduler:
    """The scheduler that the worker has."""
    return create(settings, now_s, model.limits)


class VirtualWorker:
    """Answers go to `answered`; `due_s` is when something happens next without an arrival."""

    __slots__ = (
        "_answered",
        "_context",
        "_ends_s",
        "_left",
        "_model",
        "_outputs",
        "_scheduler",
        "_started_s",
        "_step",
        "busy_s",
        "decodes",
        "due_s",
        "horizon_s",
        "kv_tokens",
        "prefills",
        "stepped",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        model: EngineModel,
        outputs: Sequence[int],
        answered: Callable[[Sequence[Answer]], None],
        stepped: Callable[[float, Step], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._model = model
        self._outputs = outputs
        """Tokens that each request really produces, by its id as a number."""
        self._answered = answered
        self._step: Step | None = None
        self._started_s = self._ends_s = 0.0
        self._left: dict[str, int] = {}
        self._context: dict[str, int] = {}
        self.stepped = stepped
        self.due_s = math.inf
        self.horizon_s = math.inf
        """Work after this is not counted: the load has ended."""
        self.busy_s = 0.0
        self.prefills = self.decodes = self.kv_tokens = 0
        """Work done: prompt tokens (requests, in steps of one pass), tokens decoded, KV tokens attended to."""

    @property
    def scheduler(self) -> Scheduler:
        """For its state and its settings."""
        return self._scheduler

    def submit(self, request: Request, now_s: float) -> None:
        """A request arrives."""
        answers = self._scheduler.submit(request, now_s)
        if answers:
            self._answered(answers)
        if self._step is None:
            self._turn(self._scheduler.next(now_s), now_s)
        else:
            self._turn(self._scheduler.tick(now_s), now_s)

    def advance(self, now_s: float) -> None:
        """What was due at `due_s` happens."""
        if self._step is None:
            self._turn(self._scheduler.next(now_s), now_s)
        elif now_s < self._ends_s:
            self._turn(self._scheduler.tick(now_s), now_s)
        else:
            self._finish(self._step)
            self._turn(self._scheduler.next(now_s), now_s)

    def cancel(self, request_id: str, now_s: float) -> None:
        """A caller goes away."""
        answer = self._scheduler.cancel(request_id, now_s)
        if answer is not None:
            self._answered((answer,))
        decision = self._scheduler.next(now_s) if self._step is None else self._scheduler.tick(now_s)
        self._turn(decision, now_s)

    def apply(self, settings: Settings, now_s: float) -> None:
        """New settings arrive."""
        answers = self._scheduler.apply(settings, now_s)
        if answers:
            self._answered(answers)
        decision = self._scheduler.next(now_s) if self._step is None else self._scheduler.tick(now_s)
        self._turn(decision, now_s)

    def warm_up(self) -> None:
        """Shows the scheduler what the real worker's warm-up shows it."""
        number = 0
        for size in WARM_UP:
            requests = [Request(f"warm-up-{n}", "", 0.0, prompt_tokens=WARM_UP_TOKENS) for n in range(size)]
            prefill = tuple(Work(request, prefill_tokens=WARM_UP_TOKENS) for request in requests)
            decode = tuple(Work(request, decode=True) for request in requests)
            for work in (prefill, decode) if self._model.cost is not None else (prefill,):
                step = Step(number, work)
                seconds = self._seconds(step)
                self._scheduler.finished(StepReport(step, 0.0, seconds), 0.0)
                number -= 1

    def _turn(self, decision: Decision, now_s: float) -> None:
        if decision.answers:
            self._answered(decision.answers)
        wake_s = math.inf if decision.wake_at_s is None else decision.wake_at_s
        step = decision.step
        if step is not None:
            self._step, self._started_s = step, now_s
            self._ends_s = now_s + self._seconds(step)
            if self.stepped is not None:
                self.stepped(now_s, step)
        self.due_s = wake_s if self._step is None else min(self._ends_s, wake_s)

    def _seconds(self, step: Step) -> float:
        cost = self._model.cost
        if cost is None:
            line = self._model.line
            assert line is not None
            return line.c + line.a * len(step.work)
        return cost.at(*self._tokens(step))

    def _tokens(self, step: Step) -> tuple[int, int, int]:
        prefill = decoding = kv = 0
        context = self._context
        for work in step.work:
            kv += context.get(work.request.id, 0) + work.prefill_tokens
            prefill += work.prefill_tokens
            decoding += work.decode
        return prefill, decoding, kv

    def _finish(self, step: Step) -> None:
        self._step = None
        if self._ends_s <= self.horizon_s:
            self.busy_s += self._ends_s - self._started_s
            self._count(step)
        completed = self._forward(step) if self._model.cost is not None else self._passed(step)
        answers = self._scheduler.finished(StepReport(step, self._started_s, self._ends_s, completed), self._ends_s)
        if answers:
            self._answered(answers)

    def _count(self, step: Step) -> None:
        if self._model.cost is None:
            self.prefills += len(step.work)
            return
        prefill, decoding, kv = self._tokens(step)
        self.prefills += prefill
        self.decodes += decoding
        self.kv_tokens += kv

    def ideal_s(self, widest: int) -> float:
        """Engine time that the same work takes at the saturation window."""
        line, cost = self._model.line, self._model.cost
        if line is not None:
            return self.prefills / line.rate(saturation_window(line, widest))
        assert cost is not None
        prompt = self.prefills / max(1, self.decodes)  # tokens prefilled per token decoded: the mix is what counts
        saturated = saturation(cost, prompt, 1.0, widest)
        return (
            cost.beta * self.prefills
            + (cost.gamma + cost.alpha / saturated) * self.decodes
            + cost.delta * self.kv_tokens
        )

    def _passed(self, step: Step) -> frozenset[str]:
        return frozenset([work.request.id for work in step.work])

    def _forward(self, step: Step) -> frozenset[str]:
        """Every sequence grows; who has its last token is done. Forgets who is gone."""
        context, left = self._context, self._left
        completed = []
        for request in step.evicted:
            context[request.id] = 0
        for work in step.work:
            key = work.request.id
            if key not in left:
                left[key] = max(1, self._outputs[int(key)])
                context[key] = 0
            context[key] += work.prefill_tokens or 1
            produced = max(1, self._outputs[int(key)]) - left[key]
            if work.decode or context[key] >= work.request.prompt_tokens + produced:
                left[key] -= 1
                if left[key] <= 0:
                    completed.append(key)
                    del left[key], context[key]
        return frozenset(completed)
