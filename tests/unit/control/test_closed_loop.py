"""The tuner on a naive batch server: what it mends, how fast, and what it leaves alone."""

import pytest

from tailkeeper.api.enums import MoveCause, MoveOutcome, RetuneMode, StillReason
from tailkeeper.api.levers import Key, Lever, Move, parse_moves
from tailkeeper.control.decision import Decision
from tailkeeper.control.freeze import Situation
from tailkeeper.control.record import decide_and_record, replay, to_line
from tests.unit.control.loop import Loop
from tests.unit.control.loop import slow_settings as settings
from tests.unit.control.plant import Plant, steady, step

STEP_S = 90.0


def causes(loop: Loop, since_s: float = 0.0) -> list[MoveCause]:
    return [decision.step.cause for at_s, decision in loop.moves if at_s >= since_s and decision.step]


def ceilings(loop: Loop) -> list[int]:
    moves = [move for _, decision in loop.moves if decision.step for move in decision.step.moves]
    return [move.value for move in moves if move.key.lever is Lever.CEILING and isinstance(move.value, int)]


@pytest.mark.parametrize("seed", range(3))
def test_a_ceiling_far_too_small_is_opened_within_seconds_of_a_step_to_four_times_the_load(seed: int) -> None:
    spec = settings()
    loop = Loop(Plant({"interactive": step(25, 4, STEP_S)}, spec, seed=seed), spec, tick_s=1.0)
    loop.run(70)
    loop.write(parse_moves("ceiling=2"))
    loop.run(150)
    assert causes(loop)[0] is MoveCause.CAPACITY
    assert ceilings(loop)[0] == 64
    inside_s = loop.inside_after_s(STEP_S)
    assert inside_s is not None
    assert inside_s <= 15


def floods(now_s: float) -> float:
    """From STEP_S on, 300 requests of the batch tier within two seconds, every ten."""
    return 150.0 if now_s >= STEP_S and (now_s - STEP_S) % 10 < 2 else 0.0


@pytest.mark.parametrize("tick_s", [1.0, 5.0])
def test_a_ceiling_far_too_large_is_lowered_when_its_batches_break_the_sla(tick_s: float) -> None:
    """T(64) = 792 ms of an SLA of 800 ms; nothing in the plant keeps the window smaller. Left alone, 37 % are late."""
    spec = settings()
    plant = Plant({"interactive": steady(10), "batch": floods}, spec, a=0.012)
    loop = Loop(plant, spec, tick_s=tick_s)
    loop.run(170)
    assert plant.over_sla(STEP_S, STEP_S + 10, "interactive") > 0.1
    assert set(causes(loop)) == {MoveCause.LONG_BATCHES}
    assert ceilings(loop)[0] <= 31
    assert plant.over_sla(125, 170, "interactive") == 0
    assert plant.over_sla(STEP_S, 150, "batch") == 0


def test_where_no_setting_helps_nothing_is_moved_and_the_replicas_needed_are_said() -> None:
    spec = settings()
    loop = Loop(Plant({"interactive": step(75, 10, STEP_S)}, spec, sla_window=True), spec, tick_s=1.0)
    loop.run(150)
    assert causes(loop, STEP_S) == []
    last = loop.decisions[-1][1]
    assert last.still is StillReason.CAPACITY_SHORT
    assert last.capacity_short
    assert last.replicas_needed == 3, "750 a second, of which one worker serves 421"
    assert "3 workers would do" in last.why


def test_a_healthy_instance_needs_no_move_at_a_step() -> None:
    spec = settings()
    loop = Loop(Plant({"interactive": step(25, 4, STEP_S)}, spec), spec)
    loop.run(200)
    assert causes(loop, STEP_S) == []
    assert {decision.sla_met for at_s, decision in loop.decisions if at_s > 70} == {True}


def rolled_back(loop: Loop) -> Decision:
    return next(d for _, d in loop.decisions if d.ended and d.ended.outcome is MoveOutcome.ROLLED_BACK)


def test_a_move_that_makes_it_clearly_worse_is_rolled_back_and_its_value_barred() -> None:
    """Batches so small that the load cannot be served, at a load that does not change."""
    spec = settings()
    loop = Loop(Plant({"interactive": steady(62)}, spec, seed=3), spec, tick_s=2.0)
    loop.run(120)
    loop.write(parse_moves("ceiling=1"))
    loop.run(200)
    decision = rolled_back(loop)
    assert decision.step is not None
    assert decision.step.moves == (Move(Key(Lever.CEILING), 64),)
    assert "reverted_in=" in decision.numbers
    assert loop.state.settle_factor == 2
    assert [(bar.taken.value, bar.upward) for bar in loop.state.bars] == [(1, False)]
    assert loop.plant.over_sla(150, 200, "interactive") < 0.01


def test_with_mode_off_the_breach_lasts_and_with_recommend_it_is_only_said_how_to_mend_it() -> None:
    for mode in (RetuneMode.OFF, RetuneMode.RECOMMEND):
        spec = settings()
        plant = Plant({"interactive": steady(62)}, spec, seed=3)
        loop = Loop(plant, spec, tick_s=2.0, situation=Situation(mode=mode))
        loop.run(120)
        loop.write(parse_moves("ceiling=1"))
        loop.run(180)
        assert loop.moves == []
        assert plant.over_sla(150, 170, "interactive") > 0.9
        last = loop.decisions[-1][1]
        if mode is RetuneMode.OFF:
            assert last.still is StillReason.PAUSED
            assert last.sla_met is False
        else:
            assert last.recommended is not None
            assert "action=window→64" in last.numbers


def test_a_pinned_lever_stays_where_it_was_put() -> None:
    spec = settings()
    loop = Loop(Plant({"interactive": steady(62)}, spec, seed=3), spec, tick_s=2.0)
    loop.bounds = type(loop.bounds)(spec, (Lever.CEILING,))
    loop.run(120)
    loop.write(parse_moves("ceiling=1"))
    loop.run(180)
    assert ceilings(loop) == []


@pytest.mark.parametrize(("rate", "cv"), [(2, 1.0), (15, 3.7), (100, 1.0)])
def test_steady_load_is_left_in_peace(rate: float, cv: float) -> None:
    spec = settings(min_efficiency_percent=0)
    loop = Loop(Plant({"interactive": steady(rate)}, spec, cv=cv), spec)
    loop.run(600)
    assert loop.moves == []


def test_recovery_goes_in_small_steps_and_only_after_two_clean_look_backs() -> None:
    spec = settings()
    loop = Loop(Plant({"interactive": steady(150)}, spec), spec)
    loop.written = spec.but(ceiling=12, moved=["ceiling"])
    loop.plant.apply(loop.written)
    loop.run(420)
    assert causes(loop) == [MoveCause.RECOVERY] * len(causes(loop))
    assert ceilings(loop)[:2] == [13, 14]
    assert min(at_s for at_s, _ in loop.moves) >= 120
    gaps = [later - earlier for (earlier, _), (later, _) in zip(loop.moves, loop.moves[1:], strict=False)]
    assert min(gaps) >= 120


def test_recorded_ticks_replay_to_the_same_decisions() -> None:
    spec = settings()
    loop = Loop(Plant({"interactive": step(25, 4, STEP_S)}, spec), spec, tick_s=2.0)
    lines = []
    loop.run(70)
    loop.write(parse_moves("ceiling=2"))
    for until_s in range(72, 150, 2):
        loop.run(until_s)
    # once more by hand, through the recorder
    loop.history = type(loop.history)()
    state = type(loop.state)()
    for until_s in range(152, 240, 2):
        loop.plant.run(until_s)
        sample = loop.plant.sample()
        observation = loop.history.observe([sample], None, until_s)
        assert loop.written is not None
        tick = decide_and_record(
            state, observation, loop.written, loop.bounds, Situation(applied=(loop.written.generation,)), until_s
        )
        state = tick.next_state
        lines.append(to_line(tick))
    assert not any("\n" in line for line in lines)
    assert list(replay(lines)) == []
    broken = lines[-1].replace('"mode":"Auto"', '"mode":"Off"', 1)
    assert [difference.number for difference in replay([*lines, "", broken])] == [len(lines) + 2]
