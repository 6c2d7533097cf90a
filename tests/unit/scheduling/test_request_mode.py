"""What request mode promises: who starts when, who is answered how, and where the time went."""

import math
import random

import pytest

from gpu_worker.scheduling import EngineLimits, create
from gpu_worker.scheduling.interface import Outcome, Request
from tests.unit.scheduling.drive import Drive, settings, taught, tier

C, A = 0.006, 0.0005


def seconds(size: int) -> float:
    return C + A * size


def drive(**changes: object) -> Drive:
    scheduler = create(settings(**changes), 0.0)
    taught(scheduler, seconds)
    return Drive(scheduler, seconds)


def stream(rate_per_s: float, count: int, start_s: float = 0.0, tier: str = "interactive") -> list[Request]:
    return [Request(f"{tier}-{start_s}-{n}", tier, start_s + n / rate_per_s) for n in range(count)]


def test_a_lone_request_runs_at_once() -> None:
    run = drive()
    run.submit(Request("lone", "interactive", 90.0))
    run.until(math.inf)
    waits = run.answer("lone").waits
    assert waits.hold_s == 0.0
    assert waits.total_s == pytest.approx(seconds(1))


def test_lone_requests_after_a_busy_spell_run_at_once() -> None:
    run = drive()
    run.submit(*stream(400, 400))
    run.submit(*[Request(f"lone-{n}", "interactive", 3.0 + 2.0 * n) for n in range(5)])
    run.until(math.inf)
    for n in range(5):
        assert run.answer(f"lone-{n}").waits.hold_s == 0.0


def test_in_a_steady_stream_the_batch_is_held_for_company_within_the_sla() -> None:
    run = drive()
    run.submit(*stream(400, 2000))
    run.until(math.inf)
    sizes = [len(step.work) for _, step in run.steps[20:-1]]
    assert sum(sizes) / len(sizes) > 8
    assert all(answer.outcome is Outcome.OK for answer in run.answers)


def test_the_hold_counts_from_arrival() -> None:
    """The engine was busy for 300 ms, then a request with a hold of 20 ms: it has waited long enough."""
    scheduler = create(settings(tiers=[tier("interactive", 10_000, max_hold_ms=20)]), 0.0)
    run = Drive(scheduler, lambda size: 0.3)
    taught(scheduler, lambda size: 0.3)
    run.submit(*stream(100, 400))  # dense enough that company would be expected
    started = {work.request.id: at_s for at_s, step in run.steps for work in step.work}
    run.until(math.inf)
    for answer in run.answers:
        if answer.waits.busy_s > 0.02 and answer.waits.slot_s == 0.0:
            assert answer.waits.hold_s == pytest.approx(0.0, abs=1e-9)
    assert started


def test_a_tier_with_no_hold_starts_at_once_and_takes_the_others_along() -> None:
    run = drive(tiers=[tier("interactive", 50, max_hold_ms=0), tier("batch", 3000)])
    run.submit(*stream(400, 400, tier="batch"))
    before = len(run.steps)
    run.until(1.5)
    run.submit(*stream(400, 3, start_s=1.5, tier="batch"))
    waiting = len(run.steps)
    run.submit(Request("now", "interactive", run.now_s + 0.001))
    assert before <= waiting < len(run.steps)
    at_s, step = run.steps[-1]
    assert at_s == run.now_s
    assert len(step.work) == 4


def test_fixed_waits_until_the_window_is_full() -> None:
    run = drive(mode="fixed", window_idle=4, window_busy=4, tiers=[tier("interactive", 5000)])
    run.submit(*stream(10, 3))
    run.until(1.0)
    assert not run.steps
    run.submit(Request("fourth", "interactive", 1.0))
    assert [len(step.work) for _, step in run.steps] == [4]


def test_fixed_with_a_longest_hold_of_nothing_is_plain_greedy_and_refuses_nobody() -> None:
    run = drive(mode="fixed", window_idle=4, window_busy=4, tiers=[tier("interactive", 50, max_hold_ms=0)])
    run.submit(*[Request(f"burst-{n}", "interactive", 0.0) for n in range(30)])
    run.until(math.inf)
    assert [len(step.work) for _, step in run.steps] == [1, *[4] * 7, 1]
    assert {run.answer(f"burst-{n}").outcome for n in range(30)} == {Outcome.OK, Outcome.LATE}


def test_fixed_waits_no_longer_than_a_hold_that_is_said() -> None:
    run = drive(mode="fixed", window_idle=4, window_busy=4, tiers=[tier("interactive", 50, max_hold_ms=40)])
    run.submit(*stream(100, 3, 1.0))
    run.until(math.inf)
    assert [(pytest.approx(at_s), len(step.work)) for at_s, step in run.steps] == [(1.04, 3)]


def test_static_window_is_exactly_window_busy_and_never_holds() -> None:
    run = drive(window_dynamic=False, window_busy=5)
    run.submit(*stream(10_000, 20))
    run.until(math.inf)
    assert [len(step.work) for _, step in run.steps][:2] == [1, 5]
    assert {step.window for _, step in run.steps} == {5}


def test_expired_within_the_deadline_although_a_long_batch_runs() -> None:
    scheduler = create(settings(tiers=[tier("interactive", 50)]), 0.0)
    run = Drive(scheduler, lambda size: 2.0)
    run.submit(Request("long", "interactive", 0.0, deadline_s=10.0))
    run.submit(Request("short", "interactive", 0.1))
    run.until(1.0)
    answer = run.answer("short")
    assert answer.outcome is Outcome.EXPIRED
    assert answer.ended_s == pytest.approx(0.2)
    assert answer.waits.busy_s == pytest.approx(0.1)


@pytest.mark.parametrize("cancel_at_s", [0.0, 0.001, 0.004])
def test_cancelled_is_answered_once_in_every_state(cancel_at_s: float) -> None:
    run = drive(tiers=[tier("interactive", 50, max_hold_ms=2)])
    run.submit(Request("one", "interactive", 0.0))
    run.until(cancel_at_s)
    run.cancel("one")
    run.cancel("one")
    run.until(math.inf)
    assert run.answer("one").outcome is Outcome.CANCELLED


def test_overload_sheds_the_doomed_and_keeps_the_rest_inside_the_sla() -> None:
    run = drive()
    run.submit(*stream(3000, 3000))
    run.until(math.inf)
    by = {outcome: [a for a in run.answers if a.outcome is outcome] for outcome in Outcome}
    assert len(by[Outcome.OK]) > 0.9 * 32 / seconds(32) * 1.0
    assert not by[Outcome.LATE]
    assert all(answer.retry_after_s is not None and answer.waits.exec_s == 0.0 for answer in by[Outcome.SHED])
    assert len(run.answers) == 3000


def test_a_lower_tier_makes_room_for_a_higher_one() -> None:
    run = drive(tiers=[tier("interactive", 50), tier("batch", 2000, reserve_percent=10)])
    low = stream(5000, 5000, tier="batch")
    high = stream(100, 100, start_s=0.0, tier="interactive")
    run.submit(*sorted(low + high, key=lambda request: request.arrival_s))
    run.until(math.inf)
    late = [a for a in run.answers if a.request.tier == "interactive" and a.outcome is not Outcome.OK]
    assert not late


def test_a_tenants_flood_does_not_starve_another() -> None:
    run = drive(tiers=[tier("interactive", 200)])
    flood = [Request(f"flood-{n}", "interactive", n / 4000, tenant="flood") for n in range(4000)]
    calm = [Request(f"calm-{n}", "interactive", 0.1 + n / 20, tenant="calm") for n in range(18)]
    run.submit(*sorted(flood + calm, key=lambda request: request.arrival_s))
    run.until(math.inf)
    for n in range(18):
        answer = run.answer(f"calm-{n}")
        assert answer.outcome is Outcome.OK
        assert answer.waits.total_s < 0.1


def test_without_priority_queue_it_is_first_in_first_out() -> None:
    run = drive(priority_queue=False, window_dynamic=False, window_busy=1, tiers=[tier("high", 50), tier("low", 5000)])
    order = ["low", "low", "high", "low", "high"]
    run.submit(*[Request(f"{n}", name, n * 1e-4) for n, name in enumerate(order)])
    run.until(math.inf)
    assert [work.request.id for _, step in run.steps for work in step.work] == ["0", "1", "2", "3", "4"]


def test_new_settings_take_effect_live_and_nobody_is_lost() -> None:
    run = drive(window_dynamic=False, window_busy=1, tiers=[tier("high", 500), tier("low", 5000)])
    run.submit(*[Request(f"{n}", "low" if n % 2 else "high", n * 1e-4) for n in range(20)])
    answers = run.scheduler.apply(
        settings(generation=2, window_dynamic=False, window_busy=8, tiers=[tier("other", 500)]), run.now_s
    )
    assert answers == ()
    assert set(run.scheduler.state(run.now_s).tiers) == {"other"}
    run.until(math.inf)
    assert sorted(int(a.request.id) for a in run.answers) == list(range(20))
    assert max(len(step.work) for _, step in run.steps) == 8


def test_the_engines_memory_bounds_the_window() -> None:
    scheduler = create(settings(), 0.0, EngineLimits(max_batch=3))
    run = Drive(scheduler, seconds)
    run.submit(*[Request(f"{n}", "interactive", 0.0) for n in range(10)])
    run.until(math.inf)
    assert max(len(step.work) for _, step in run.steps) == 3


def test_an_unknown_tier_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        drive().scheduler.submit(Request("x", "nobody", 0.0), 0.0)


def test_a_speed_learnt_on_a_bad_day_does_not_refuse_for_ever() -> None:
    """Warm-up on a busy machine says that no SLA can be met. The engine is well again: it serves, and learns so."""
    scheduler = create(settings(), 0.0)
    taught(scheduler, lambda size: 50 * seconds(size))  # 325 ms for one request, against a timeout of 100 ms
    run = Drive(scheduler, seconds)
    run.submit(*[Request(f"lone-{n}", "interactive", 10.0 + 0.5 * n) for n in range(20)])
    run.submit(*stream(150, 600, start_s=30.0))
    run.until(math.inf)
    lone = [run.answer(f"lone-{n}").outcome for n in range(20)]
    assert lone == [Outcome.OK] * 20
    later = [answer for answer in run.answers if answer.request.arrival_s > 31.0]
    assert {answer.outcome for answer in later} == {Outcome.OK}


def test_an_engine_too_slow_for_its_sla_is_kept_at_work_and_not_idle() -> None:
    """When nothing can meet the timeout, refusing everybody would hide for ever that the engine has become fast."""
    scheduler = create(settings(), 0.0)
    taught(scheduler, lambda size: 0.5)
    run = Drive(scheduler, lambda size: 0.5)
    run.submit(*stream(20, 200))
    run.until(math.inf)
    assert len(run.steps) >= 5
    assert len(run.answers) == 200


@pytest.mark.parametrize("low_per_s", [60, 400])
def test_a_flood_below_on_a_noisy_engine_is_no_reason_to_refuse_the_tier_above(low_per_s: int) -> None:
    noise = random.Random(0)

    def noisy(size: int) -> float:
        return seconds(size) * 4 * (3.0 if noise.random() < 0.05 else 1.0)

    scheduler = create(settings(tiers=[tier("high", 130), tier("low", 8000, reserve_percent=10)]), 0.0)
    taught(scheduler, noisy)
    run = Drive(scheduler, noisy)
    high, low = stream(20, 600, tier="high"), stream(low_per_s, 30 * low_per_s, tier="low")
    run.submit(*sorted(high + low, key=lambda request: request.arrival_s))
    run.until(40.0)
    answers = [answer for answer in run.answers if answer.request.tier == "high"]
    assert len(answers) == 600
    refused = [answer for answer in answers if answer.outcome in (Outcome.SHED, Outcome.EXPIRED)]
    assert len(refused) <= 6
    assert sum(answer.outcome is Outcome.OK for answer in answers) >= 0.8 * 600
