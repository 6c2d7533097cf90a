"""Every reason to stand still, every cause of a move, and what the tuner makes of settings that it finds changed."""

import itertools
from dataclasses import dataclass, field, replace

import pytest

from tailkeeper.api.enums import Lever, Mode, MoveCause, MoveOutcome, RetuneMode, StillReason
from tailkeeper.api.levers import Key, Move, move, parse_moves
from tailkeeper.api.settings import Settings
from tailkeeper.control.decide import decide
from tailkeeper.control.decision import Decision
from tailkeeper.control.freeze import Situation
from tailkeeper.control.move import Bounds
from tailkeeper.control.observation import Idle, Observation, Value
from tailkeeper.control.record import state_from_json, state_to_json
from tailkeeper.control.samples import Unknown, UnknownReason
from tailkeeper.control.state import Bar, State
from tests.unit.control.loop import settings as document
from tests.unit.control.observed import value


@dataclass
class Desk:
    """One instance under the tuner, tick by tick."""

    settings: Settings = field(default_factory=document)
    spec: Settings = field(default_factory=document)
    pinned: tuple[Lever, ...] = ()
    situation: Situation = field(default_factory=Situation)
    state: State = field(default_factory=State)
    now_s: float = 1_000.0
    writes: bool = True

    def see(self, observation: Observation, after_s: float = 5.0, in_sync: bool = True) -> Decision:
        self.now_s += after_s
        if isinstance(observation, Value):
            observation = under(observation, self.settings.generation)
        applied = self.settings.generation if in_sync else self.settings.generation - 1
        situation = replace(self.situation, applied=(applied,))
        state, decision = decide(
            self.state, observation, self.settings, Bounds(self.spec, self.pinned), situation, self.now_s
        )
        assert state_from_json(state_to_json(state)) == state
        self.state = state
        if decision.step is not None and self.writes:
            self.write(decision.step.moves)
        return decision

    def write(self, moves: tuple[Move, ...]) -> None:
        self.settings = move(self.settings, moves, self.spec).but(generation=self.settings.generation + 1)


def under(observation: Value, generation: int) -> Value:
    """The same, counted under another generation."""
    looks = tuple(
        replace(look, tiers=tuple(replace(row, generation=generation) for row in look.tiers))
        for look in observation.look_backs
    )
    return replace(observation, look_backs=looks)


def at(ceiling: int, **changes: object) -> Desk:
    return Desk(settings=document(ceiling=ceiling, moved=["ceiling"], **changes))


def moved(decision: Decision) -> dict[str, object]:
    assert decision.step is not None, (decision.still, decision.why, decision.numbers)
    return {str(each.key): each.value for each in decision.step.moves}


WELL = value()
SMALL = {"ceiling": 4.0, "cap": 4.0, "window": 4.0}


# --- standing still ------------------------------------------------------------------------------------------------


def test_within_the_sla_nothing_is_moved() -> None:
    decision = Desk().see(WELL)
    assert decision.still is StillReason.WITHIN_SLA
    assert decision.sla_met is True


@pytest.mark.parametrize(
    ("reason", "still"),
    [
        (UnknownReason.ABSENT, StillReason.NO_DATA),
        (UnknownReason.STALE, StillReason.STALE),
        (UnknownReason.NOT_FINITE, StillReason.PROMETHEUS_ERROR),
        (UnknownReason.PARTIAL, StillReason.PROMETHEUS_ERROR),
        (UnknownReason.ERROR, StillReason.PROMETHEUS_ERROR),
    ],
)
def test_unknown_freezes_and_three_good_reads_thaw(reason: UnknownReason, still: StillReason) -> None:
    desk, breach = at(4), value(1000, 0.5, **SMALL)
    desk.see(WELL)
    decision = desk.see(Unknown(reason, "what to do about it"))
    assert decision.still is still
    assert decision.why == "what to do about it"
    assert decision.sla_met is None
    assert [desk.see(breach).still for _ in range(2)] == [still, still]
    assert desk.see(breach).step is not None


def test_idle_is_not_unknown_and_wakes_at_once() -> None:
    desk = at(4)
    assert [desk.see(Idle(1.0)).still for _ in range(720)] == [StillReason.IDLE] * 720
    assert desk.see(value(1000, 0.5, **SMALL)).step is not None


def test_too_few_requests_for_a_verdict() -> None:
    decision = Desk().see(value(rate=0.1))
    assert decision.still is StillReason.FEW_SAMPLES
    assert decision.sla_met is None


def test_a_restarted_operator_first_sees_one_whole_look_back() -> None:
    decision = at(4).see(value(1000, 0.5, whole=False, **SMALL))
    assert decision.still is StillReason.SETTLING
    assert "of the first 60 s" in decision.why


def test_workers_that_do_not_apply_the_settings_yet() -> None:
    desk = at(4)
    assert desk.see(value(1000, 0.5, **SMALL), in_sync=False).still is StillReason.NOT_IN_SYNC
    desk.situation = Situation()
    desk.state = State()
    _, decision = decide(State(), WELL, desk.settings, Bounds(desk.spec), Situation(), 1.0)
    assert decision.still is StillReason.NOT_IN_SYNC
    assert "no worker" in decision.why


@pytest.mark.parametrize(
    ("situation", "still"),
    [
        (Situation(paused=True), StillReason.PAUSED),
        (Situation(mode=RetuneMode.OFF), StillReason.PAUSED),
        (Situation(conflict=True), StillReason.CONFLICT),
        (Situation(rollout_in_progress=True), StillReason.ROLLOUT_IN_PROGRESS),
    ],
)
def test_hands_off(situation: Situation, still: StillReason) -> None:
    desk = at(4)
    desk.situation = situation
    decision = desk.see(value(1000, 0.5, **SMALL))
    assert decision.still is still
    assert decision.sla_met is False, "what is not moved is judged all the same"


def test_beyond_capacity_nothing_is_moved_and_the_replicas_are_said() -> None:
    decision = at(4).see(value(6000, 0.9, pods=3, queue={"interactive": 500}, **SMALL))
    assert decision.still is StillReason.CAPACITY_SHORT
    assert decision.capacity_short
    assert decision.replicas_needed == 5, "1684 a second each at W = 64, of which 85 % is to be used"


def test_bursts_that_no_window_serves_are_a_matter_of_capacity_too() -> None:
    decision = Desk().see(value(1200, 0.1, cv=8.0))
    assert decision.still is StillReason.CAPACITY_SHORT
    assert decision.replicas_needed is not None
    assert decision.replicas_needed > 1


def test_no_lever_left() -> None:
    decision = Desk().see(value(100, 0.3, "exec", window=8.0, cap=8.0))
    assert decision.still is StillReason.AT_BOUND
    assert not decision.capacity_short


def test_no_lever_left_and_waiting_for_the_engine_is_a_matter_of_capacity() -> None:
    """Bursts of a kind that the coefficient of variation does not show."""
    decision = Desk().see(value(100, 0.3, "slot", pods=2))
    assert decision.still is StillReason.CAPACITY_SHORT
    assert decision.replicas_needed == 3


def test_settling_after_a_move_and_twice_as_long_after_a_rollback() -> None:
    desk = at(4)
    desk.see(value(1000, 0.5, **SMALL))
    assert desk.see(value(1000, 0.5), 1.0).still is StillReason.SETTLING
    assert desk.see(value(1000, 0.5), 3.5).still is StillReason.SETTLING
    assert desk.see(value(1000, 0.5), 1.0).still is not StillReason.SETTLING
    desk, _ = harmed_desk()
    desk.see(WELL, 1.0)
    desk.write(parse_moves("ceiling=4"))
    desk.see(WELL, 1.0)
    assert desk.see(WELL, 8.0).still is StillReason.SETTLING
    assert desk.see(WELL, 3.0).still is not StillReason.SETTLING


def test_a_backlog_that_is_being_drained_is_the_old_settings_doing() -> None:
    desk = at(4)
    desk.see(value(1000, 0.5, queue={"interactive": 5000}, **SMALL))
    desk.see(value(1000, 0.5, queue={"interactive": 4000}), 1.0)
    decision = desk.see(value(1000, 0.5, queue={"interactive": 2000}), 10.0)
    assert decision.still is StillReason.SETTLING
    assert "backlog" in decision.why
    assert desk.see(value(1000, 0.5, queue={"interactive": 2000}), 5.0).still is not StillReason.SETTLING


# --- causes --------------------------------------------------------------------------------------------------------


def test_a_ceiling_too_small_for_the_load_is_opened_never_closed() -> None:
    for cause in ("slot", "busy", "batch", "hold", "exec"):
        decision = at(4).see(value(1000, 0.5, cause, **SMALL))
        assert decision.step is not None
        assert decision.step.cause is MoveCause.CAPACITY
        assert moved(decision) == {"ceiling": 64}


def test_waiting_for_slots_below_the_widest_window_opens_it_a_step() -> None:
    decision = at(20).see(value(300, 0.03, ceiling=20.0, cap=20.0, window=20.0))
    assert decision.step is not None
    assert decision.step.cause is MoveCause.CAPACITY
    assert moved(decision) == {"ceiling": 29}


def test_without_a_latency_model_the_window_is_opened_by_steps() -> None:
    decision = at(4).see(value(1000, 0.5, model={"unheard": 1.0}, **SMALL))
    assert moved(decision) == {"ceiling": 6}
    assert decision.replicas_needed is None


def test_a_ceiling_is_never_opened_past_the_window_of_the_sla() -> None:
    """T(28) = 90 ms is the last that fits twice into 200 ms less the margin of a tenth."""
    slow = {"c": 0.006, "a": 0.003}
    decision = at(4).see(value(250, 0.5, model=slow, **SMALL))
    assert moved(decision) == {"ceiling": 28}


def test_batches_too_long_are_shortened_to_what_the_sla_allows() -> None:
    """T(28) = 90 ms is the last that fits twice into 200 ms less the margin of a tenth."""
    slow = {"c": 0.006, "a": 0.003}
    decision = Desk().see(value(100, 0.03, "batch", model=slow))
    assert decision.step is not None
    assert decision.step.cause is MoveCause.LONG_BATCHES
    assert moved(decision) == {"ceiling": 28}


def test_where_they_are_within_it_by_the_model_they_are_shortened_a_step() -> None:
    decision = Desk().see(value(100, 0.03, "batch", latency_s=0.5))
    assert moved(decision) == {"ceiling": 44}


def test_a_severe_breach_by_long_batches_goes_straight_to_window_busy_and_raises_the_tier() -> None:
    slow = {"c": 0.006, "a": 0.003}
    decision = Desk().see(value(100, 0.3, "batch", model=slow, others={"batch": 5.0}))
    assert moved(decision) == {"ceiling": 16, "boost.interactive": 100}


def test_batches_are_never_made_shorter_than_the_load_needs() -> None:
    slow = {"c": 0.030, "a": 0.003}
    decision = Desk().see(value(200, 0.3, "batch", model=slow))
    assert decision.step is not None
    assert decision.step.cause is MoveCause.LONG_BATCHES
    lowered = moved(decision)["ceiling"]
    assert isinstance(lowered, int)
    assert lowered / (0.030 + 0.003 * lowered) > 200


def test_what_late_ones_really_spent_in_batches_counts_more_than_the_model() -> None:
    decision = Desk().see(value(100, 0.03, "batch", latency_s=0.5))
    assert decision.step is not None
    assert decision.step.cause is MoveCause.LONG_BATCHES


def test_a_hold_is_cut_where_max_hold_binds() -> None:
    decision = Desk().see(value(100, 0.03, "hold"))
    assert decision.step is not None
    assert decision.step.cause is MoveCause.HOLD
    assert moved(decision) == {"maxHold.interactive": 2}


def test_the_margin_is_raised_where_the_deadline_ends_the_hold() -> None:
    spec = document()
    patient = spec.but(tiers=[spec.tiers[0].but(max_hold_ms=200), spec.tiers[1]])
    decision = Desk(settings=patient, spec=patient).see(value(100, 0.03, "hold"))
    assert moved(decision) == {"margin": 20}
    severe = Desk(settings=patient, spec=patient).see(value(100, 0.3, "hold"))
    assert moved(severe) == {"margin": 20, "maxHold.interactive": 100}


def test_priority_is_raised_where_lower_tiers_take_the_slots() -> None:
    desk = Desk()
    seen = [desk.see(value(100, late, "slot", others={"batch": 50.0}), 60.0) for late in (0.2, 0.1, 0.05, 0.03)]
    assert [decision.step.cause for decision in seen if decision.step] == [MoveCause.PRIORITY] * 4
    assert [moved(decision) for decision in seen] == [
        {"boost.interactive": 100},
        {"boost.interactive": 200},
        {"reserve.interactive": 10},
        {"reserve.interactive": 20},
    ]


def test_what_does_not_help_three_times_is_not_wound_up_to_its_bound() -> None:
    desk = Desk()
    breach = value(100, 0.1, "slot", others={"batch": 50.0})
    seen = [desk.see(breach, 60.0) for _ in range(10)]
    assert sum(decision.step is not None for decision in seen) == 3
    assert seen[-1].still is StillReason.COOLDOWN
    assert desk.see(breach, 3700.0).step is not None, "an hour later it may be tried again"


def test_where_the_window_is_static_neither_ceiling_nor_hold_is_a_lever() -> None:
    for changes, cause in itertools.product(({"window_dynamic": False}, {"mode": Mode.FIXED}), ("batch", "hold")):
        static = document(**changes)
        breach = value(100, 0.3, cause, model={"c": 0.006, "a": 0.003}, latency_s=0.5)
        assert Desk(settings=static, spec=static).see(breach).still is StillReason.AT_BOUND


def test_a_low_tier_that_starves_gets_a_reserve() -> None:
    decision = Desk().see(value(100, 0.3, "slot", tier="batch", others={"interactive": 50.0}))
    assert moved(decision) == {"reserve.batch": 20}


def test_without_priority_queue_there_is_no_priority_to_raise() -> None:
    fifo = document(priority_queue=False)
    decision = Desk(settings=fifo, spec=fifo).see(value(100, 0.03, others={"batch": 50.0}))
    assert decision.still is StillReason.CAPACITY_SHORT


STREAM = {"alpha": 0.06, "beta": 0.002, "gamma": 0.0027, "prompt_tokens": 50.0, "output_tokens": 20.0}


def streaming(**changes: object) -> Desk:
    base = document(
        mode=Mode.CONTINUOUS,
        first_token_sla_ms=1_000,
        inter_token_sla_ms=500,
        tiers=[tier.but(deadline_ms=tier.deadline_ms * 30, timeout_ms=None) for tier in document().tiers],
        **changes,
    )
    return Desk(settings=base, spec=base)


def test_late_first_tokens_preempt_lower_streams_then_boost() -> None:
    desk = streaming()
    breach = value(3, first_token=0.3, model=STREAM, window=20, cap=20, others={"batch": 1.0})
    first, second = desk.see(breach, 100.0), desk.see(breach, 100.0)
    assert moved(first) == {"preemption.interactive": True}
    assert moved(second) == {"boost.interactive": 3000}
    assert first.step is not None
    assert first.step.cause is MoveCause.FIRST_TOKEN


def test_a_slow_pace_gets_a_smaller_token_budget() -> None:
    desk = streaming()
    breach = value(3, inter_token=0.3, model=STREAM, window=20, cap=20)
    first, second = desk.see(breach, 100.0), desk.see(breach, 100.0)
    assert first.step is not None
    assert first.step.cause is MoveCause.INTER_TOKEN
    budget = moved(first)["tokenBudget"]
    assert budget == 20 + int((0.5 * 0.9 - 0.06 - 0.0027 * 20) / 0.002)
    assert moved(second) == {"tokenBudget": int(budget * 0.7)}


def test_timeouts_over_their_target_are_a_breach_of_their_own() -> None:
    desk = at(4)
    decision = desk.see(value(1000, 0.008, timeouts=0.02, **SMALL))
    assert decision.step is not None
    assert "timeout_rate=2%" in decision.numbers


# --- judging -------------------------------------------------------------------------------------------------------


def test_a_breach_that_is_over_is_history() -> None:
    assert Desk().see(value(100, 0.05, short_late=0.0)).still is StillReason.WITHIN_SLA


def test_misses_under_older_settings_do_not_count() -> None:
    desk = at(4)
    desk.now_s += 5
    observation = under(value(1000, 0.9, **SMALL), 7)
    _, decision = decide(State(), observation, desk.settings, Bounds(desk.spec), Situation(applied=(1,)), desk.now_s)
    assert decision.still is StillReason.FEW_SAMPLES


# --- the next generation -------------------------------------------------------------------------------------------


def test_a_write_that_failed_is_decided_anew_and_nothing_is_done_twice() -> None:
    desk = at(4)
    desk.writes = False
    breach = value(1000, 0.5, **SMALL)
    first, again = desk.see(breach), desk.see(breach)
    assert first.step == again.step
    desk.writes = True
    desk.see(breach)
    assert desk.settings.ceiling == 64
    assert desk.see(breach).step is None


def test_a_killed_operator_takes_up_what_it_finds() -> None:
    """State lost between the write and the next tick: the move is in the settings, so it is not made again."""
    desk = at(4)
    desk.see(value(1000, 0.5, **SMALL))
    desk.state = State()
    assert desk.see(value(1000, 0.0)).step is None
    assert desk.settings.generation == 2


def test_a_manual_move_is_honoured_and_tuned_from() -> None:
    desk = Desk()
    desk.see(value(100, 0.02, short_late=0.0))
    desk.write(parse_moves("ceiling=4"))
    assert desk.see(WELL).step is None
    assert desk.settings.ceiling == 4
    assert desk.state.trial is not None
    assert desk.state.trial.cause is MoveCause.MANUAL
    decision = desk.see(value(1000, 0.5, **SMALL), 10.0)
    assert decision.step is not None
    assert decision.step.cause is MoveCause.CAPACITY


def test_a_lever_that_somebody_set_starts_anew() -> None:
    """Bars and turns were learnt before: who sets a value by hand wants it tuned from there."""
    desk = at(4)
    desk.see(value(1000, 0.5, **SMALL))
    desk.see(WELL)
    opened = Move(Key(Lever.CEILING), 8)
    desk.state = replace(
        desk.state,
        bars=(Bar(opened, True, 10_000.0), Bar(Move(Key(Lever.MARGIN), 50), True, 10_000.0)),
        reversals_s=(desk.now_s,),
    )
    desk.write(parse_moves("ceiling=2"))
    desk.see(WELL)
    assert [bar.taken.key.lever for bar in desk.state.bars] == [Lever.MARGIN]
    decision = desk.see(value(1000, 0.5, **SMALL), 10.0)
    assert decision.step is not None
    assert decision.step.cause is MoveCause.CAPACITY


def test_a_spec_change_is_nobodys_move() -> None:
    desk = Desk()
    desk.see(WELL)
    desk.spec = desk.settings = desk.settings.but(generation=2, min_efficiency_percent=50)
    desk.see(WELL)
    assert desk.state.trial is None


def harmed_desk(**changes: object) -> tuple[Desk, Decision]:
    desk = Desk(**changes)  # type: ignore[arg-type]
    desk.see(value(100, 0.001))
    desk.write(parse_moves("maxHold.interactive=150"))
    desk.see(value(100, 0.001), 1.0)
    return desk, desk.see(value(100, 0.4, "hold"), 10.0)


def test_a_move_that_harmed_is_taken_back_as_a_new_generation_and_barred_for_half_an_hour() -> None:
    desk, decision = harmed_desk()
    assert decision.step is not None
    assert decision.step.cause is MoveCause.ROLLBACK
    assert moved(decision) == {"maxHold.interactive": 4}
    assert decision.ended is not None
    assert decision.ended.outcome is MoveOutcome.ROLLED_BACK
    assert "action=maxHold.interactive→4ms" in decision.numbers
    assert decision.numbers.endswith("reverted_in=10s")
    assert desk.settings.generation == 3
    desk.see(WELL)
    assert desk.state.settle_factor == 2
    (bar,) = desk.state.bars
    assert (bar.taken.value, bar.upward, bar.until_s) == (150, True, desk.now_s + 1800)


def test_at_another_load_a_move_is_not_blamed() -> None:
    desk = Desk()
    desk.see(value(100, 0.001))
    desk.write(parse_moves("maxHold.interactive=150"))
    desk.see(value(100, 0.001), 1.0)
    decision = desk.see(value(150, 0.4, "hold"), 10.0)
    assert decision.step is not None
    assert decision.step.cause is MoveCause.HOLD


def test_after_a_rollback_it_settles_as_after_any_change() -> None:
    desk, _ = harmed_desk()
    assert desk.see(value(100, 0.4, "hold"), 1.0).still is StillReason.SETTLING


def test_a_pinned_lever_is_not_taken_back() -> None:
    _, decision = harmed_desk(pinned=(Lever.MAX_HOLD,))
    assert decision.step is None or decision.step.cause is not MoveCause.ROLLBACK


def test_a_move_that_served_two_look_backs_is_kept() -> None:
    desk = at(4)
    desk.see(value(1000, 0.5, **SMALL))
    seen = [desk.see(value(1000)) for _ in range(26)]
    ended = [decision.ended for decision in seen if decision.ended]
    assert [(each.outcome, each.cause) for each in ended] == [(MoveOutcome.KEPT, MoveCause.CAPACITY)]
    assert 120 <= ended[0].after_s <= 130


# --- recovery ------------------------------------------------------------------------------------------------------

LAZY = value(400, efficiency=0.4, ceiling=20.0, cap=20.0, window=20.0)


def recover(desk: Desk, observation: Value, ticks: int = 13) -> list[Decision]:
    return [desk.see(observation) for _ in range(ticks)]


def test_recovery_waits_for_two_clean_look_backs_and_goes_five_percent() -> None:
    desk = at(20)
    seen = recover(desk, LAZY)
    assert all(decision.still is StillReason.WITHIN_SLA for decision in seen[:-1])
    assert seen[-1].step is not None
    assert seen[-1].step.cause is MoveCause.RECOVERY
    assert moved(seen[-1]) == {"ceiling": 21}


def test_an_efficient_instance_without_waiting_lower_tiers_is_left_alone() -> None:
    assert all(decision.step is None for decision in recover(at(20), replace_efficiency(LAZY, 0.8), 60))


def replace_efficiency(observation: Value, efficiency: float) -> Value:
    return replace(observation, gauges=replace(observation.gauges, efficiency=efficiency))


def test_lower_tiers_that_wait_get_back_what_was_taken() -> None:
    base = document()
    boosted = base.but(tiers=[base.tiers[0].but(boost_ms=200, reserve_percent=10), base.tiers[1]])
    desk = Desk(settings=boosted)
    waiting = value(400, queue={"batch": 30.0})
    assert moved(recover(desk, waiting)[-1]) == {"reserve.interactive": 9}
    desk = Desk(settings=base.but(tiers=[base.tiers[0].but(boost_ms=200), base.tiers[1]]))
    assert moved(recover(desk, waiting)[-1]) == {"boost.interactive": 190}


def test_holds_and_margin_recover_toward_the_spec_and_no_further() -> None:
    base = document()
    spec = base.but(tiers=[base.tiers[0].but(max_hold_ms=200), base.tiers[1]])
    desk = Desk(settings=spec.but(margin_percent=4, ceiling=64), spec=spec)
    steps = [decision for decision in recover(desk, value(400, efficiency=0.4), 150) if decision.step]
    assert [moved(decision) for decision in steps] == [{"margin": 3}, {"margin": 2}]


def test_nothing_recovers_while_idle_or_in_breach_or_without_requests_now() -> None:
    desk = at(20)
    recover(desk, LAZY, 12)
    quiet = replace(LAZY, look_backs=(replace(LAZY.short, tiers=()), *LAZY.look_backs[1:]))
    assert desk.see(Idle(1.0)).step is None
    assert desk.see(quiet).step is None


def test_one_reversal_an_hour() -> None:
    """Up, breach, down, clean, up, breach …: the load sits between two settings."""
    desk = at(20)
    over = value(400, 0.05, "batch", latency_s=0.5, ceiling=21.0, cap=21.0, window=21.0, efficiency=0.4)
    directions: list[tuple[float, bool]] = []
    before = desk.settings.ceiling
    for _ in range(4 * 720):
        desk.see(over if desk.settings.ceiling > 20 else LAZY)
        if desk.settings.ceiling != before:
            directions.append((desk.now_s, desk.settings.ceiling > before))
            before = desk.settings.ceiling
    turns = [later for (_, up), (later, up_then) in itertools.pairwise(directions) if up != up_then]
    assert 1 <= len(turns) <= 4
    assert desk.see(LAZY).still in (StillReason.COOLDOWN, StillReason.WITHIN_SLA)


def test_to_and_fro_at_the_same_load_ends_in_cooldown() -> None:
    desk = at(20)
    too_long = value(400, 0.05, "batch", latency_s=0.5, ceiling=20.0, cap=20.0, window=20.0)
    too_small = value(400, 0.05, "slot", ceiling=14.0, cap=14.0, window=14.0)
    seen = [desk.see(too_long if desk.settings.ceiling >= 20 else too_small, 30.0) for _ in range(20)]
    assert sum(decision.step is not None for decision in seen) <= 3
    assert seen[-1].still is StillReason.COOLDOWN


def test_every_tick_names_a_reason_or_a_step() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Decision()
