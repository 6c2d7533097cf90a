"""An iterating engine around a scheduler: who works in which iteration, and what becomes of each stream."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from gpu_worker.scheduling import EngineLimits, create
from gpu_worker.scheduling.interface import Answer, Request, Step
from tailkeeper.api.settings import Settings
from tailkeeper.model.iterations import Cost
from tailkeeper.simulate.model import EngineModel
from tailkeeper.simulate.worker import VirtualWorker

COST = Cost(alpha=0.060, beta=0.002, gamma=0.0027)


@dataclass
class Streams:
    """`submit` requests by name; `outputs` are the tokens that each really produces."""

    settings: Settings
    cost: Cost = COST
    max_batch: int | None = None
    kv_tokens: int | None = None
    learnt: bool = True
    answers: list[Answer] = field(default_factory=list)
    steps: list[tuple[float, Step]] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.outputs: list[int] = []
        model = EngineModel(cost=self.cost, max_batch=self.max_batch, kv_tokens=self.kv_tokens)
        self.scheduler = create(self.settings, 0.0, EngineLimits(True, self.max_batch, self.kv_tokens))
        self.worker = VirtualWorker(
            self.scheduler, model, self.outputs, self.answers.extend, lambda at_s, step: self.steps.append((at_s, step))
        )
        self.worker.warm_up()
        if self.learnt:
            for n in range(40):
                self.submit(at_s=float(n), prompt=50, output=20)
            self.until(math.inf)
            self.answers.clear()
            self.steps.clear()

    def submit(
        self,
        tier: str | None = None,
        *,
        at_s: float | None = None,
        prompt: int = 50,
        output: int = 20,
        most: int = 4096,
        tenant: str = "",
    ) -> str:
        """Returns the request's id."""
        at = self.now_s if at_s is None else at_s
        self.until(at)
        self.outputs.append(output)
        request_id = str(len(self.outputs) - 1)
        name = self.settings.default_tier if tier is None else tier
        self.worker.submit(
            Request(request_id, name, at, tenant=tenant, prompt_tokens=prompt, max_output_tokens=most), at
        )
        return request_id

    def cancel(self, request_id: str) -> None:
        self.worker.cancel(request_id, self.now_s)

    def until(self, time_s: float) -> None:
        while self.worker.due_s <= time_s and self.worker.due_s < math.inf:
            self.now_s = max(self.now_s, self.worker.due_s)
            self.worker.advance(self.worker.due_s)
        if time_s < math.inf:
            self.now_s = time_s

    def step_until(self, stop: Callable[[], bool]) -> None:
        """Event by event, until that holds."""
        while not stop():
            assert self.worker.due_s < math.inf
            self.until(self.worker.due_s)

    def answer(self, request_id: str) -> Answer:
        (found,) = [answer for answer in self.answers if answer.request.id == request_id]
        return found

    def worked(self, request_id: str) -> list[tuple[float, int]]:
        """(start of the iteration, tokens of prompt; 0 when it decoded) for each iteration that it was in."""
        return [
            (at_s, work.prefill_tokens)
            for at_s, step in self.steps
            for work in step.work
            if work.request.id == request_id
        ]

    def gaps(self, request_id: str) -> list[float]:
        """Seconds between its tokens."""
        worked = self.worked(request_id)
        first = max(index for index, (_, tokens) in enumerate(worked) if tokens)  # its end makes the first token
        ends = [at_s for at_s, _ in worked[first + 1 :]]  # a token is there when the next iteration starts
        return [b - a for a, b in pairwise(ends)]
