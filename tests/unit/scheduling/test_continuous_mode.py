"""What continuous mode promises: who holds a slot, who loses it, how prompts and streams share an iteration."""

import math

import pytest

from gpu_worker.scheduling.interface import Outcome
from tailkeeper.model.iterations import Cost
from tests.unit.scheduling.drive import settings, tier
from tests.unit.scheduling.streams import Streams

TWO = [
    tier("interactive", 20_000, max_hold_ms=400, preempts=True),
    tier("batch", 600_000, reserve_percent=10),
]


def streams(**changes: object) -> Streams:
    engine = {name: changes.pop(name) for name in ("max_batch", "kv_tokens", "learnt", "cost") if name in changes}
    fields = {"mode": "continuous", "window_idle": 16, "window_busy": 8, "tiers": TWO, **changes}
    return Streams(settings(**fields), **engine)  # type: ignore[arg-type]


def test_a_newcomer_joins_at_the_next_iteration() -> None:
    run = streams()
    first = run.submit(output=50)
    run.until(run.now_s + 1.0)
    second = run.submit(output=5)
    run.until(math.inf)
    starts = run.worked(second)[0][0]
    assert starts - run.answer(second).request.arrival_s <= 0.2
    assert run.answer(second).ended_s < run.answer(first).ended_s


def test_tokens_forwarded_are_prompt_and_output_exactly() -> None:
    run = streams()
    ids = [run.submit(prompt=700 + n, output=30 + n) for n in range(5)]
    run.until(math.inf)
    for n, request_id in enumerate(ids):
        worked = run.worked(request_id)
        assert sum(tokens for _, tokens in worked) == 700 + n
        assert sum(tokens == 0 for _, tokens in worked) == 30 + n - 1  # the last chunk makes the first token


def test_all_slots_low_and_a_high_one_comes_one_victim_the_newest() -> None:
    run = streams(window_dynamic=False, window_busy=4, window_idle=4)
    low = [run.submit("batch", output=200) for _ in range(4)]
    run.until(run.now_s + 3.0)
    high = run.submit("interactive", output=10)
    run.step_until(lambda: any(answer.request.id == high for answer in run.answers))
    preempted = [request.id for _, step in run.steps for request in step.preempted]
    assert preempted == [low[-1]]
    assert run.worked(high)[0][0] - run.answer(high).request.arrival_s <= 0.2


def test_a_preempted_stream_goes_on_where_it_stood() -> None:
    run = streams(window_dynamic=False, window_busy=2, window_idle=2)
    low = [run.submit("batch", output=100) for _ in range(3)]
    run.until(run.now_s + 3.0)
    run.submit("interactive", output=10)
    run.until(math.inf)
    victim = next(request.id for _, step in run.steps for request in step.preempted)
    assert victim == low[1]
    worked = run.worked(victim)
    assert sum(tokens for _, tokens in worked) == 50
    assert sum(tokens == 0 for _, tokens in worked) == 99
    assert worked[-1][0] < run.worked(low[2])[-1][0]  # still before the one that came after it
    waits = run.answer(victim).waits
    assert waits.slot_s > 0.5
    assert waits.total_s == pytest.approx(run.answer(victim).ended_s - run.answer(victim).request.arrival_s, abs=1e-6)


def test_nobody_is_preempted_more_than_k_times() -> None:
    run = streams(window_dynamic=False, window_busy=1, window_idle=1)
    low = run.submit("batch", output=60)
    run.until(run.now_s + 1.0)
    for _ in range(8):
        run.submit("interactive", output=3)
        run.until(run.now_s + 1.5)
    run.until(math.inf)
    assert sum(request.id == low for _, step in run.steps for request in step.preempted) == 3
    assert run.answer(low).outcome is Outcome.OK


def test_equal_tiers_do_not_preempt_each_other() -> None:
    run = streams(window_dynamic=False, window_busy=2, window_idle=2)
    for _ in range(6):
        run.submit("interactive", output=30)
    run.until(math.inf)
    assert not [step for _, step in run.steps if step.preempted]


def test_a_long_prompt_does_not_stop_the_streams() -> None:
    """A 7000-token prompt among decoding streams: their inter-token p99 stays within twice its median."""
    run = streams(window_idle=64, tiers=[tier("interactive", 100_000, max_hold_ms=0)])
    ids = [run.submit(output=400) for _ in range(16)]
    run.until(run.now_s + 15.0)
    run.submit(prompt=7000, output=20)
    run.until(math.inf)
    gaps = sorted(gap for request_id in ids for gap in run.gaps(request_id))
    assert gaps[int(0.99 * len(gaps))] <= 2.0 * gaps[len(gaps) // 2] * 1.01


def test_the_token_budget_bounds_every_iteration() -> None:
    run = streams(token_budget=64, tiers=[tier("interactive", 100_000, max_hold_ms=0)])
    for _ in range(8):
        run.submit(prompt=500, output=40)
    run.until(math.inf)
    assert max(sum(work.prefill_tokens or 1 for work in step.work) for _, step in run.steps) <= 64


def test_the_inter_token_sla_bounds_the_prefill_beside_streams() -> None:
    run = streams(inter_token_sla_ms=120, tiers=[tier("interactive", 100_000, max_hold_ms=0)])
    ids = [run.submit(output=100) for _ in range(4)]
    run.until(run.now_s + 2.0)
    run.submit(prompt=3000, output=5)
    run.until(math.inf)
    assert max(gap for request_id in ids for gap in run.gaps(request_id)) <= 0.120


@pytest.mark.parametrize("moment", ["queued", "prefilling", "decoding", "preempted"])
def test_a_cancelled_request_frees_its_slot_within_one_step(moment: str) -> None:
    run = streams(window_dynamic=False, window_busy=1, window_idle=1, max_batch=2, token_budget=20)
    if moment == "queued":
        run.submit("batch", output=100)
        gone = run.submit("batch", output=100)
        run.until(run.now_s + 0.5)
    else:
        gone = run.submit("batch", prompt=200, output=100)
        run.until(run.now_s + (0.3 if moment == "prefilling" else 3.0))
        if moment == "preempted":
            run.submit("interactive", output=100)
            run.until(run.now_s + 0.5)
            assert any(request.id == gone for _, step in run.steps for request in step.preempted)
    run.cancel(gone)
    before = len(run.steps)
    follower = run.submit("interactive", output=5)
    run.until(math.inf)
    assert run.answer(gone).outcome is Outcome.CANCELLED
    later = [work.request.id for _, step in run.steps[before:] for work in step.work]
    assert gone not in later
    if moment == "queued":
        assert not run.worked(gone)  # never cost a prefill
    assert run.answer(follower).outcome is Outcome.OK
    assert run.scheduler.state(run.now_s).running == 0
    assert run.scheduler.kept_tokens == 0


def test_admission_is_by_memory() -> None:
    run = streams(kv_tokens=1000, window_idle=16)
    for _ in range(10):
        run.submit(prompt=100, output=50, most=200)
    run.step_until(lambda: len(run.answers) >= 5)
    assert max(len(step.work) for _, step in run.steps) == 3
    run.until(math.inf)
    assert len(run.answers) == 10


def test_memory_of_a_preempted_one_is_taken_when_it_must_be_and_it_prefills_again() -> None:
    run = streams(window_dynamic=False, window_busy=4, window_idle=4, kv_tokens=1000)
    low = run.submit("batch", prompt=100, output=100, most=800)
    run.until(run.now_s + 3.0)
    high = run.submit("interactive", prompt=100, output=20, most=800)
    run.until(math.inf)
    evicted = [request.id for _, step in run.steps for request in step.evicted]
    assert evicted == [low]
    assert run.answer(high).ended_s < run.answer(low).ended_s
    worked = run.worked(low)
    decoded = sum(tokens == 0 for _, tokens in worked)
    again = sum(tokens for _, tokens in worked) - 100
    assert again > 100  # the prompt once more, and what it had produced
    # every token once: each prefill's last chunk makes one, each decode one
    assert decoded + 2 == 100


def test_endless_high_load_leaves_every_low_request_a_bounded_wait() -> None:
    """High tier above capacity for ever: low requests still end inside their deadline, by their tier's reserve."""
    tiers = [tier("interactive", 10_000, max_hold_ms=0, preempts=True), tier("batch", 60_000, reserve_percent=10)]
    run = streams(tiers=tiers, window_idle=16)
    low = []
    start_s = run.now_s
    for n in range(900):
        run.submit("interactive", at_s=start_s + n / 6, prompt=50, output=20)
        if n % 60 == 0:
            low.append(run.submit("batch", prompt=50, output=10))
    run.until(math.inf)
    assert [run.answer(request_id).outcome for request_id in low] == [Outcome.OK] * len(low)
    late = [a for a in run.answers if a.request.tier == "interactive" and a.outcome is not Outcome.OK]
    assert late  # it was above capacity


def test_online_is_served_in_time_whatever_runs_below_it() -> None:
    run = streams(window_idle=64)
    for _ in range(60):
        run.submit("batch", prompt=400, output=200)
    run.until(run.now_s + 10.0)
    high = [run.submit("interactive", at_s=run.now_s + 2.0, prompt=60, output=60) for _ in range(30)]
    run.until(math.inf)
    assert [run.answer(request_id).outcome for request_id in high] == [Outcome.OK] * 30
    assert {answer.outcome for answer in run.answers} == {Outcome.OK}


def test_the_patient_wait_for_company_and_the_impatient_do_not() -> None:
    run = streams(window_idle=16)
    for _ in range(20):
        run.submit("batch", at_s=run.now_s + 0.2, output=10)
    run.until(math.inf)
    sizes = [len(step.work) for _, step in run.steps]
    assert max(sizes) >= 8
    alone = run.submit("interactive")
    run.until(math.inf)
    assert run.answer(alone).waits.hold_s <= 0.4


def test_fixed_waits_for_all_and_lets_nobody_join() -> None:
    tiers = [tier("interactive", 20_000)]
    run = streams(mode="fixed", window_idle=4, window_busy=4, tiers=tiers, learnt=False)
    early = [run.submit(output=20) for _ in range(3)]
    run.until(run.now_s + 5.0)
    assert not run.steps
    early.append(run.submit(output=5))
    run.until(run.now_s + 0.5)
    late = [run.submit(output=5) for _ in range(4)]
    run.until(math.inf)
    assert min(run.worked(request_id)[0][0] for request_id in late) >= max(run.answer(i).ended_s for i in early)


def test_fixed_with_a_longest_hold_of_nothing_starts_at_once() -> None:
    tiers = [tier("interactive", 5000, max_hold_ms=0)]
    run = streams(mode="fixed", window_idle=4, window_busy=4, tiers=tiers, learnt=False)
    alone = run.submit(output=5)
    run.until(math.inf)
    assert run.answer(alone).waits.hold_s == 0.0


def test_expired_streams_end_at_their_timeout_and_free_their_slot() -> None:
    run = streams(tiers=[tier("interactive", 2000, timeout_ms=3000, max_hold_ms=0)], learnt=False)
    long = run.submit(output=2000)
    run.until(math.inf)
    answer = run.answer(long)
    assert answer.outcome is Outcome.EXPIRED
    assert answer.ended_s == pytest.approx(3.0)
    assert run.scheduler.kept_tokens == 0


def test_a_speed_learnt_on_a_bad_day_does_not_refuse_for_ever() -> None:
    """Twin of the one in request mode: the model says that no SLA can be met, and it is no longer true."""
    run = streams(tiers=[tier("interactive", 5000, max_hold_ms=0)], learnt=False)
    slow = Streams(
        settings(mode="continuous", window_idle=16, tiers=[tier("interactive", 3_000_000, max_hold_ms=0)]),
        cost=type(run.cost)(6.0, 0.2, 0.27),
    )
    slow.scheduler.apply(run.settings.but(generation=2), slow.now_s)
    slow.worker._model = run.worker._model
    start_s = slow.now_s + 60.0
    ids = [slow.submit("interactive", at_s=start_s + 3.0 * n, output=10) for n in range(20)]
    slow.until(math.inf)
    assert [slow.answer(request_id).outcome for request_id in ids[5:]] == [Outcome.OK] * 15


def test_fixed_refuses_nobody_whose_caller_is_still_there() -> None:
    tiers = [tier("interactive", 2000, timeout_ms=1_000_000)]
    run = streams(mode="fixed", window_idle=4, window_busy=4, tiers=tiers)
    names = [run.submit(output=20) for _ in range(80)]
    run.until(math.inf)
    assert {run.answer(name).outcome for name in names} == {Outcome.OK, Outcome.LATE}


def test_a_first_long_prompt_is_no_reason_to_refuse_the_short_ones_after_it() -> None:
    tiers = [tier("interactive", 20_000, timeout_ms=40_000, max_hold_ms=400, preempts=True)]
    run = streams(tiers=tiers, learnt=False, cost=Cost(0.06, 0.002, 0.0027, 0.0))
    run.submit(prompt=2072, output=22)
    run.until(run.now_s + 7.0)
    short = []
    for _ in range(20):
        short.append(run.submit(prompt=50, output=40))
        run.until(run.now_s + 2.0)
    run.until(math.inf)
    assert {run.answer(one).outcome for one in short} == {Outcome.OK}
