"""The serving loop: the event loop owns scheduler, timers and callers; the engine's thread owns the forward passes.

The next step leaves before the answers of the last one are delivered: the engine is what must not wait."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gpu_worker.clock import Clock
from gpu_worker.engines.interface import Engine, StepResult, Task
from gpu_worker.metrics.meter import Meter, TokenTimes
from gpu_worker.scheduling import EngineLimits
from gpu_worker.scheduling.interface import (
    Answer,
    Outcome,
    Request,
    Scheduler,
    SchedulerState,
    Step,
    StepReport,
    Work,
)
from gpu_worker.server.engine_thread import EngineThread
from gpu_worker.server.isolation import NotServed, Ran, run_step
from tailkeeper.api.settings import Settings

log = logging.getLogger(__name__)

TICK_S = 0.025
"""While a step runs the scheduler is asked this often whom to expire: half of the 50 ms that is promised."""
SHORTEST_TIMER_S = 0.0005
"""The timers of libuv count in milliseconds and may fire half of one early; asking again at once would spin."""
SERVED = frozenset({Outcome.OK, Outcome.LATE})
CRASHES = 3
"""Crashes in a row after which the worker says that it cannot serve."""
RESTART_DELAYS_S = (0.0, 1.0, 5.0, 15.0)
"""Before the engine is loaded anew, by crashes in a row; the last one from then on."""


MakeScheduler = Callable[[Settings, float, EngineLimits], Scheduler]


class NotServing(Exception):
    """Nothing can be taken in now; the message says why."""


class Receiver(Protocol):
    """Whoever asked. `received` may come many times, `ended` exactly once and last."""

    def received(self, request_id: str, output: Any) -> None:
        """An output, or the next piece of it."""
        ...

    def ended(self, answer: Answer, error: Exception | None) -> None:
        """The end; the error is set when the outcome is ERROR."""
        ...


@dataclass(slots=True)
class _Live:
    request: Request
    content: Any
    receiver: Receiver
    generation: int
    error: Exception | None = None
    tokens: TokenTimes | None = None
    """Only of an engine that makes one token after the other."""


class ServingLoop:
    """Takes requests in and answers each exactly once. All methods belong to the event loop.

    The scheduler is made when there are settings and a loaded engine, whose limits it needs."""

    def __init__(
        self,
        engine: Engine,
        make_scheduler: MakeScheduler,
        meter: Meter,
        thread: EngineThread,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._make_scheduler = make_scheduler
        self._meter = meter
        self._thread = thread
        self._clock = clock
        self._events = asyncio.get_running_loop()
        self._scheduler: Scheduler | None = None
        self._settings: Settings | None = None
        self._live: dict[str, _Live] = {}
        self._gone: list[str] = []
        """Ended since the last step without being served whole; the engine forgets them with the next."""
        self._running: Step | None = None
        self._running_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._poked = False
        self._engine_ready = False
        self._crashes = 0
        self._taught: list[StepReport] = []
        """Warm-up steps that the scheduler has not seen yet."""
        self._restart: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self.trouble: str | None = None
        """Why the engine cannot serve; None while it can, and while it is first loaded."""
        self.trouble_since_s = 0.0

    # What the callers see

    def apply(self, settings: Settings) -> None:
        """Takes new settings; nothing in flight is dropped."""
        answers = () if self._scheduler is None else self._scheduler.apply(settings, self._clock())
        self._settings = settings
        self._meter.apply(settings)
        self._deliver(answers)
        self._open()
        self._poke()

    def submit(self, request: Request, content: Any, receiver: Receiver) -> None:
        """Takes a request in. Raises NotServing; KeyError when its tier is unknown."""
        if self._scheduler is None or not self._engine_ready:
            raise NotServing(self.trouble or "starting")
        assert self._settings is not None
        tokens = TokenTimes() if self._engine.limits.iterates else None
        self._live[request.id] = _Live(request, content, receiver, self._settings.generation, tokens=tokens)
        self._empty.clear()
        try:
            answers = self._scheduler.submit(request, self._clock())
        except Exception:
            self._forget(request.id)
            raise
        if answers:
            self._deliver(answers)
        self._poke()

    def cancel(self, request_id: str, outcome: Outcome = Outcome.CANCELLED, error: Exception | None = None) -> None:
        """Ends a request before its time: its caller is gone, or it makes no sense any more. Unknown ids are fine."""
        if self._scheduler is None:
            return
        answer = self._scheduler.cancel(request_id, self._clock())
        live = self._live.get(request_id)
        if answer is None or live is None:
            return
        live.error = error
        self._deliver((replace(answer, outcome=outcome),))
        self._poke()

    def abandon(self, error: Exception) -> int:
        """Answers everything in flight as failed; returns how many that were."""
        ids = list(self._live)
        for request_id in ids:
            self.cancel(request_id, Outcome.ERROR, error)
        return len(ids)

    @property
    def serving(self) -> bool:
        """The engine is loaded and warm."""
        return self._engine_ready

    @property
    def in_flight(self) -> int:
        """Requests not answered yet."""
        return len(self._live)

    async def empty(self) -> None:
        """Returns once nothing is in flight."""
        await self._empty.wait()

    def state(self) -> SchedulerState | None:
        """None before the first settings."""
        return None if self._scheduler is None else self._scheduler.state(self._clock())

    def step_age_s(self) -> float:
        """How long the running step has been running; 0 when none is."""
        return 0.0 if self._running is None else self._clock() - self._running_since_s

    def stalled(self) -> bool:
        """Somebody waits, the engine is free, and nothing will ever make a step: a fault of ours, not of the load."""
        asleep = self._running is None and self._timer is None and not self._poked
        return bool(self._live) and asleep and self._engine_ready

    # The engine's life

    async def warm_up(self, batches: Sequence[int], cold: int = 0) -> None:
        """Runs warm-up steps, teaches the scheduler what those after the first `cold` took, and opens for requests.
        Raises what a step raises."""
        for number, batch in enumerate(batches):
            report = await self._thread.call(partial(self._warm_up_step, batch, -number))
            if number >= cold:
                self._taught.append(report)
        self._engine_ready = True
        self.trouble = None
        self._open()
        self._poke()

    def _open(self) -> None:
        """Makes the scheduler once there are settings and a warm engine, and teaches it what the warm-up took."""
        if self._settings is None or not self._engine_ready:
            return
        now_s = self._clock()
        if self._scheduler is None:
            self._scheduler = self._make_scheduler(self._settings, now_s, self._engine.limits)
        for report in self._taught:
            self._scheduler.finished(report, now_s)
        self._taught.clear()

    def _warm_up_step(self, batch: int, number: int) -> StepReport:
        started_s = self._clock()
        tasks = self._engine.warm_up(batch)
        ended_s = self._clock()
        work = tuple(
            Work(Request(task.id, "", started_s, prompt_tokens=task.prefill_tokens), task.prefill_tokens, task.decode)
            for task in tasks
        )
        step = Step(number, work, window=batch)
        return StepReport(step, started_s, ended_s, completed=frozenset(task.id for task in tasks))

    # One turn

    def _poke(self) -> None:
        """Asks for a turn once this one's events are all in: a call with 100 inputs makes one batch, not a hundred."""
        if not self._poked and self._running is None:
            self._poked = True
            self._events.call_soon(self._turn)

    def _turn(self) -> None:
        self._poked = False
        if self._scheduler is None or not self._engine_ready or self._running is not None:
            return
        now_s = self._clock()
        decision = self._scheduler.next(now_s)
        if decision.step is not None:
            self._start(decision.step, now_s)
        else:
            self._arm(decision.wake_at_s, now_s)
        self._deliver(decision.answers)

    def _tick(self) -> None:
        self._timer = None
        if self._running is None and self._engine_ready:
            self._turn()
            return
        assert self._scheduler is not None
        now_s = self._clock()
        decision = self._scheduler.tick(now_s)
        wake_at_s = now_s + TICK_S
        self._arm(wake_at_s if decision.wake_at_s is None else min(wake_at_s, decision.wake_at_s), now_s)
        self._deliver(decision.answers)

    def _arm(self, wake_at_s: float | None, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at_s is not None:
            self._timer = self._events.call_later(max(wake_at_s - now_s, SHORTEST_TIMER_S), self._tick)

    def _start(self, step: Step, now_s: float) -> None:
        tasks = [
            Task(work.request.id, self._live[work.request.id].content, work.prefill_tokens, work.decode)
            for work in step.work
        ]
        evicted = [request.id for request in step.evicted]
        gone, self._gone = self._gone, []
        self._running, self._running_since_s = step, now_s
        self._arm(now_s + TICK_S, now_s)
        engine, clock = self._engine, self._clock

        def job() -> Ran:
            if gone:
                engine.release(gone)
            return run_step(engine, tasks, evicted, clock)

        self._thread.run(job, lambda ran: self._stepped(step, ran))

    def _stepped(self, step: Step, ran: Ran) -> None:
        assert self._scheduler is not None
        self._running = None
        result = ran.result
        failed = frozenset(result.failed)
        report = StepReport(step, ran.started_s, ran.ended_s, result.completed - failed, failed)
        answers = self._scheduler.finished(report, self._clock())
        self._meter.step(report)
        if ran.crash is None:
            self._crashes = 0
            self._turn()
        else:
            self._crashed(ran.crash)
        self._hand_out(result, ran.ended_s)
        self._deliver(answers)

    def _hand_out(self, result: StepResult, made_s: float) -> None:
        for request_id, output in result.outputs.items():
            live = self._live.get(request_id)
            if live is not None:
                if live.tokens is not None:
                    self._meter.token(live.request, live.generation, live.tokens, made_s)
                live.receiver.received(request_id, output)
        for request_id, error in result.failed.items():
            live = self._live.get(request_id)
            if live is not None:
                live.error = error

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            live = self._forget(answer.request.id)
            if answer.outcome not in SERVED:
                self._gone.append(answer.request.id)
            if live is not None:
                self._meter.ended(answer, live.generation, live.tokens)
                live.receiver.ended(answer, live.error)

    def _forget(self, request_id: str) -> _Live | None:
        live = self._live.pop(request_id, None)
        if not self._live:
            self._empty.set()
        return live

    # Crashes

    def _crashed(self, crash: Exception) -> None:
        """Holds the queue while the engine is loaded anew; after three in a row says so and answers everybody."""
        self._engine_ready = False
        self._count(crash)
        self._restart = self._events.create_task(self._reload())
        self._arm(self._clock() + TICK_S, self._clock())

    def _count(self, crash: Exception) -> None:
        self._crashes += 1
        if self.trouble is None:
            self.trouble_since_s = self._clock()
        cause = f"{type(crash).__name__}: {crash}"
        log.error("engine crash %d in a row: %s", self._crashes, cause)
        if self._crashes < CRASHES:
            self.trouble = f"engine: restarting after {cause}"
        else:
            self.trouble = f"engine: crashed {self._crashes} times in a row: {cause}"
            self._events.call_soon(self.abandon, NotServed(self.trouble))

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RESTART_DELAYS_S[min(self._crashes, len(RESTART_DELAYS_S)) - 1])
            try:
                await self._thread.call(lambda: self._engine.load(_log_progress))
                await self.warm_up((1,))
            except Exception as error:
                self._count(error)
            else:
                log.warning("engine restarted")
                return


def _log_progress(share: float, what: str) -> None:
    log.info("engine: %s (%.0f %%)", what, share * 100)
