"""The serving loop with an engine that does what it is told: everybody is answered once, and nobody waits for a forward
pass but those in it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from gpu_worker.clock import monotonic_s
from gpu_worker.metrics.meter import Meter
from gpu_worker.scheduling.interface import Answer, Outcome, Request
from gpu_worker.server import loop as loop_module
from gpu_worker.server.engine_thread import EngineThread
from gpu_worker.server.isolation import NotServed
from gpu_worker.server.loop import NotServing, ServingLoop
from tests.unit.worker.doubles import FifoScheduler, ScriptedEngine, settings


class Caller:
    """Whoever asked."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.answers: list[Answer] = []
        self.error: Exception | None = None
        self.done = asyncio.Event()
        self.ended_s = 0.0

    def received(self, request_id: str, output: Any) -> None:
        assert not self.answers, "output after the end"
        self.outputs.append(output)

    def ended(self, answer: Answer, error: Exception | None) -> None:
        self.answers.append(answer)
        self.error = error
        self.ended_s = monotonic_s()
        self.done.set()

    @property
    def outcome(self) -> Outcome:
        assert len(self.answers) == 1
        return self.answers[0].outcome


class Bench:
    """A loop with its parts within reach."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.meter = Meter()
        self.schedulers: list[FifoScheduler] = []
        self.loop = ServingLoop(engine, self._scheduler, self.meter, EngineThread(), monotonic_s)
        self._numbers = count()

    def _scheduler(self, *arguments: Any) -> FifoScheduler:
        self.schedulers.append(FifoScheduler(*arguments))
        return self.schedulers[-1]

    @property
    def scheduler(self) -> FifoScheduler:
        return self.schedulers[-1]

    def ask(self, text: str = "hello", deadline_in_s: float | None = None, tier: str = "interactive") -> Caller:
        now_s = monotonic_s()
        caller = Caller()
        deadline_s = None if deadline_in_s is None else now_s + deadline_in_s
        request = Request(f"r{next(self._numbers)}", tier, now_s, deadline_s)
        caller.request_id = request.id  # type: ignore[attr-defined]
        self.loop.submit(request, text, caller)
        return caller

    def cancel(self, caller: Caller) -> None:
        self.loop.cancel(caller.request_id)  # type: ignore[attr-defined]


async def start(engine: ScriptedEngine) -> Bench:
    bench = Bench(engine)
    bench.loop.apply(settings(1))
    await bench.loop.warm_up((1, 8))
    return bench


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.002)


async def all_done(callers: list[Caller]) -> None:
    async with asyncio.timeout(5):
        await asyncio.gather(*(caller.done.wait() for caller in callers))


async def test_a_request_is_answered_with_its_output() -> None:
    bench = await start(ScriptedEngine())
    caller = bench.ask("hello")
    await all_done([caller])
    assert caller.outcome is Outcome.OK
    assert caller.outputs[0].tolist() == [5, 1]
    assert bench.loop.in_flight == 0


async def test_requests_of_one_moment_make_one_batch() -> None:
    bench = await start(ScriptedEngine())
    await all_done([bench.ask() for _ in range(40)])
    assert [len(batch) for batch in bench.engine.batches] == [40]


async def test_warm_up_teaches_the_scheduler_two_sizes_whichever_of_settings_and_model_comes_first() -> None:
    for settings_first in (True, False):
        bench = Bench(ScriptedEngine())
        steps: list[Callable[[], Awaitable[None]]] = [lambda: bench.loop.warm_up((1, 8, 1, 8), cold=2)]  # noqa: B023
        if settings_first:
            bench.loop.apply(settings(1))
        await steps[0]()
        if not settings_first:
            with pytest.raises(NotServing):
                bench.ask()
            bench.loop.apply(settings(1))
        reports = bench.scheduler.reports
        assert [len(report.step.work) for report in reports] == [1, 8]
        assert all(report.step.number <= 0 for report in reports)


async def test_nothing_is_taken_in_before_the_model_is_warm() -> None:
    bench = Bench(ScriptedEngine())
    bench.loop.apply(settings(1))
    with pytest.raises(NotServing):
        bench.ask()
    assert bench.loop.in_flight == 0


async def test_an_unknown_tier_leaves_nothing_behind() -> None:
    bench = await start(ScriptedEngine())
    with pytest.raises(KeyError):
        bench.ask(tier="gold")
    assert bench.loop.in_flight == 0


async def test_a_deadline_that_passes_while_a_long_step_runs_is_answered_within_50_ms() -> None:
    engine = ScriptedEngine(gate=threading.Event())
    bench = await start(engine)
    running = bench.ask()
    await until(lambda: len(engine.batches) == 1)
    asked_s = monotonic_s()
    waiting = bench.ask(deadline_in_s=0.1)
    await all_done([waiting])
    assert waiting.outcome is Outcome.EXPIRED
    assert 0.1 <= waiting.ended_s - asked_s < 0.15
    assert not running.answers
    engine.gate.set()  # type: ignore[union-attr]
    await all_done([running])


async def test_a_request_cancelled_while_it_waits_never_reaches_the_engine() -> None:
    engine = ScriptedEngine(gate=threading.Event())
    bench = await start(engine)
    running = bench.ask("first")
    await until(lambda: len(engine.batches) == 1)
    gone, stays = bench.ask("gone"), bench.ask("stays")
    bench.cancel(gone)
    assert gone.outcome is Outcome.CANCELLED
    engine.gate.set()  # type: ignore[union-attr]
    await all_done([running, stays])
    assert engine.batches == [["first"], ["stays"]]


async def test_a_request_cancelled_while_it_runs_is_answered_at_once_and_once_and_its_mates_are_served() -> None:
    engine = ScriptedEngine(gate=threading.Event())
    bench = await start(engine)
    callers = [bench.ask() for _ in range(3)]
    await until(lambda: len(engine.batches) == 1)
    bench.cancel(callers[1])
    assert callers[1].outcome is Outcome.CANCELLED
    engine.gate.set()  # type: ignore[union-attr]
    await all_done(callers)
    assert [caller.outcome for caller in callers] == [Outcome.OK, Outcome.CANCELLED, Outcome.OK]
    assert callers[1].outputs == []
    await all_done([bench.ask()])
    assert engine.released == ["r1"], "the engine forgets who is gone"


async def test_a_thousand_requests_cancelled_at_random_moments_are_all_answered_once() -> None:
    bench = await start(ScriptedEngine(pause_s=0.001))
    callers = []
    for number in range(1000):
        callers.append(bench.ask())
        if number % 3 == 0:
            bench.cancel(callers[number * 7 % len(callers)])
        if number % 20 == 0:
            await asyncio.sleep(0.001)
    await all_done(callers)
    assert {caller.outcome for caller in callers} == {Outcome.OK, Outcome.CANCELLED}
    assert bench.loop.in_flight == 0


async def test_the_next_step_leaves_before_the_answers_of_the_last_are_handed_out() -> None:
    engine = ScriptedEngine()
    bench = await start(engine)
    bench.scheduler.window = 1
    seen: list[int] = []

    class Slow(Caller):
        def ended(self, answer: Answer, error: Exception | None) -> None:
            deadline_s = monotonic_s() + 2
            while len(engine.batches) < 2 and monotonic_s() < deadline_s:
                pass
            seen.append(len(engine.batches))
            super().ended(answer, error)

    first = Slow()
    bench.loop.submit(Request("slow", "interactive", monotonic_s()), "first", first)
    second = bench.ask("second")
    await all_done([first, second])
    assert seen == [2]


async def test_settings_change_while_requests_are_in_flight_and_none_is_lost() -> None:
    engine = ScriptedEngine(gate=threading.Event())
    bench = await start(engine)
    callers = [bench.ask()]
    await until(lambda: len(engine.batches) == 1)
    callers += [bench.ask() for _ in range(5)]
    bench.loop.apply(settings(2, ceiling=4))
    callers += [bench.ask() for _ in range(5)]
    engine.gate.set()  # type: ignore[union-attr]
    await all_done(callers)
    assert {caller.outcome for caller in callers} == {Outcome.OK}
    assert [applied.generation for applied in bench.scheduler.applied] == [1, 2]
    counted = {
        generation: tiers["interactive"].requests[Outcome.OK] for generation, tiers in bench.meter.judged.items()
    }
    assert counted == {1: 6, 2: 5}, "each under the generation that it arrived in"


async def test_one_bad_request_fails_alone() -> None:
    engine = ScriptedEngine()
    engine.poison = {"bad"}
    bench = await start(engine)
    callers = [bench.ask("bad" if number == 5 else "good") for number in range(12)]
    await all_done(callers)
    assert [caller.outcome for caller in callers].count(Outcome.OK) == 11
    assert callers[5].outcome is Outcome.ERROR
    assert not isinstance(callers[5].error, NotServed)
    assert bench.loop.trouble is None


async def test_a_crash_fails_its_batch_with_a_retryable_error_and_the_engine_comes_back() -> None:
    engine = ScriptedEngine()
    bench = await start(engine)
    engine.broken = "device lost"
    callers = [bench.ask() for _ in range(3)]
    await all_done(callers)
    assert {caller.outcome for caller in callers} == {Outcome.ERROR}
    assert all(isinstance(caller.error, NotServed) for caller in callers)
    assert bench.loop.trouble == "engine: restarting after RuntimeError: device lost"
    engine.broken = None
    await until(lambda: bench.loop.trouble is None)
    assert engine.loads == 1
    after = bench.ask()
    await all_done([after])
    assert after.outcome is Outcome.OK


async def test_three_crashes_in_a_row_say_so_and_leave_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RESTART_DELAYS_S", (0.01,))
    engine = ScriptedEngine()
    bench = await start(engine)
    callers = [bench.ask()]
    bench.scheduler.window = 1
    callers.append(bench.ask("waits"))
    engine.broken = engine.broken_load = "device lost"
    await all_done(callers)
    await until(lambda: "3 times in a row" in (bench.loop.trouble or ""))
    assert {caller.outcome for caller in callers} == {Outcome.ERROR}
    assert all(isinstance(caller.error, NotServed) for caller in callers)
    with pytest.raises(NotServing, match="device lost"):
        bench.ask()
    engine.broken = engine.broken_load = None
    await until(lambda: bench.loop.trouble is None)
    after = bench.ask()
    await all_done([after])
    assert after.outcome is Outcome.OK


async def test_whoever_waits_during_a_restart_is_expired_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RESTART_DELAYS_S", (0.5,))
    engine = ScriptedEngine()
    bench = await start(engine)
    bench.scheduler.window = 1
    engine.broken = "device lost"
    crashed, waits = bench.ask(), bench.ask(deadline_in_s=0.1)
    await all_done([crashed, waits])
    assert waits.outcome is Outcome.EXPIRED
    assert bench.loop.trouble is not None


async def test_a_hung_step_and_a_scheduler_that_forgets_to_wake_are_both_seen() -> None:
    engine = ScriptedEngine(gate=threading.Event())
    bench = await start(engine)
    caller = bench.ask()
    await until(lambda: len(engine.batches) == 1)
    await asyncio.sleep(0.05)
    assert bench.loop.step_age_s() >= 0.05
    assert not bench.loop.stalled()
    engine.gate.set()  # type: ignore[union-attr]
    await all_done([caller])
    assert bench.loop.step_age_s() == 0
    bench.scheduler.window = 0
    bench.ask()
    await asyncio.sleep(0.01)
    assert bench.loop.stalled()


async def test_abandoning_answers_everybody() -> None:
    engine = ScriptedEngine(gate=threading.Event())
    bench = await start(engine)
    running = bench.ask()
    await until(lambda: len(engine.batches) == 1)
    waiting = bench.ask()
    assert bench.loop.abandon(NotServed("the worker is shutting down")) == 2
    assert {running.outcome, waiting.outcome} == {Outcome.ERROR}
    await bench.loop.empty()
    engine.gate.set()  # type: ignore[union-attr]
