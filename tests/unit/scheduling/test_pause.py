"""Between iterations: the engine pauses for company while nobody is pressing, and says so in the waits."""

import math
from dataclasses import replace

import pytest

from gpu_worker.scheduling.interface import Outcome
from gpu_worker.scheduling.plan import compile_plan
from gpu_worker.scheduling.window import Pressing, WindowState, settle_iterations
from tests.unit.scheduling.drive import settings, tier
from tests.unit.scheduling.streams import COST, Streams


def streams(hold_ms: int, **changes: object) -> Streams:
    tiers = [tier("interactive", 20_000, max_hold_ms=hold_ms, preempts=True)]
    return Streams(settings(**{"mode": "continuous", "window_idle": 64, "window_busy": 8, "tiers": tiers, **changes}))


def flow(run: Streams, count: int = 60, gap_s: float = 0.7) -> list[str]:
    names = [run.submit(at_s=run.now_s + gap_s, output=20) for _ in range(count)]
    run.until(math.inf)
    return names


def mean_batch(run: Streams) -> float:
    return sum(len(step.work) for _, step in run.steps) / len(run.steps)


def test_running_streams_pause_for_company_as_far_as_their_tier_allows() -> None:
    eager, patient = streams(0), streams(5000)
    flow(eager)
    names = flow(patient)
    assert mean_batch(patient) >= 1.3 * mean_batch(eager)
    holds = [patient.answer(name).waits.hold_s for name in names]
    assert 1.0 <= max(holds) <= 5.0
    assert {patient.answer(name).outcome for name in names} == {Outcome.OK}


def test_a_pause_is_hold_and_the_waits_add_up() -> None:
    run = streams(5000)
    for name in flow(run):
        answer = run.answer(name)
        assert answer.waits.total_s == pytest.approx(answer.ended_s - answer.request.arrival_s, abs=1e-6)
        assert answer.waits.hold_s == 0.0 or answer.waits.exec_s > 0.0


def test_nobody_pauses_past_the_inter_token_sla() -> None:
    run = streams(5000, inter_token_sla_ms=500)
    names = flow(run)
    assert max(gap for name in names for gap in run.gaps(name)) <= 0.5


def test_a_stream_cancelled_in_a_pause_is_answered_with_its_hold() -> None:
    run = streams(8000)
    flow(run, 20)
    first = run.submit(at_s=run.now_s + 1.0, output=50)
    run.submit(at_s=run.now_s + 0.5, output=50)
    run.until(run.now_s + 3.0)
    run.cancel(first)
    run.until(math.inf)
    answer = run.answer(first)
    assert answer.outcome is Outcome.CANCELLED
    assert answer.waits.total_s == pytest.approx(answer.ended_s - answer.request.arrival_s, abs=1e-6)


def test_with_enough_company_for_the_efficiency_wanted_nobody_pauses() -> None:
    low, high = (streams(8000, min_efficiency_percent=percent) for percent in (30, 90))
    flow(low)
    flow(high)
    assert mean_batch(high) > mean_batch(low)


def test_near_capacity_the_engine_does_not_pause() -> None:
    """3/s of 50 tokens of prompt and 20 of output: at W = 8 each takes .3 s of the engine, .9 of its time."""
    run = streams(5000, window_idle=8)
    flow(run, 100, 0.33)
    busy_s = sum(60e-3 + 2.7e-3 * sum(work.decode for work in step.work) for _, step in run.steps[200:])
    spent_s = run.steps[-1][0] - run.steps[200][0]
    prefill_s = 2e-3 * sum(work.prefill_tokens for _, step in run.steps[200:] for work in step.work)
    assert (busy_s + prefill_s) / spent_s >= 0.98


def test_a_crowd_opens_the_window_only_so_far_that_nine_in_ten_end_in_time() -> None:
    """SLA 8 s, iterations of 60 + 2.7·b ms and 50 tokens of prompt: 60 tokens end in time up to W = 8, 24 up to 33."""
    plan = compile_plan(settings(mode="continuous", window_idle=64, tiers=[tier("interactive", 8000)]))
    calm = Pressing(8.0, rate_per_s=2.0, prompt=50.0, output=22.0, longest=60.0, waiting=0, long=24.0)
    windows = [
        settle_iterations(WindowState(8, 8), plan, COST, replace(calm, waiting=waiting), None) for waiting in (0, 80)
    ]
    assert windows == [8, 33]
