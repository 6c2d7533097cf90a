"""Which settings are written next: levers live on, generations only grow, and nothing is written twice."""

import pytest

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.levers import move, parse_moves
from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import initial_settings, resolve_all
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import MoveRecord
from tailkeeper.reconcile.moves import Proposal
from tailkeeper.reconcile.settings_plan import Plan, Record, plan_settings

NOW = "2026-01-01T00:00:00Z"


def spec(generation: int = 1, **batching: object) -> Settings:
    instance = {"name": "small", "model": {"name": "m", "engine": "encoder", "path": "/m"}, "batching": batching}
    effective = resolve_all(PolicySpec.model_validate({"instances": [instance]}))["small"]
    return initial_settings(
        effective, policy_namespace="team", policy="chat", model_instance="small", generation=generation
    )


def moved(text: str, generation: int) -> Settings:
    return move(spec(generation), parse_moves(text), spec())


def recorded(settings: Settings, intact: bool = True, manual: str | None = None) -> Record:
    return Record(settings, intact, settings.generation, manual)


def plan(
    record: Record,
    status: Settings | None = None,
    of: Settings | None = None,
    reported: int = 0,
    manual: str | None = None,
    proposal: Proposal | None = None,
) -> Plan:
    return plan_settings(
        spec=of or spec(),
        record=record,
        status_settings=status,
        highest_reported=reported,
        manual=manual,
        proposal=proposal,
        now=NOW,
    )


def test_the_first_document_is_the_specs() -> None:
    first = plan(Record())
    assert (first.rewrite, first.settings, first.move) == (True, spec(1), None)


def test_what_is_there_stays() -> None:
    there = recorded(moved("ceiling=8", 4))
    again = plan(there, status=there.settings)
    assert (again.rewrite, again.settings) == (False, there.settings)


def test_a_changed_spec_is_the_next_generation_and_keeps_moved_levers() -> None:
    there = recorded(moved("ceiling=8", 4))
    changed = plan(there, status=there.settings, of=spec(windowIdle=32, timeoutTargetPerMille=9))
    assert (changed.rewrite, changed.settings.generation) == (True, 5)
    assert (changed.settings.ceiling, changed.settings.timeout_target_per_mille) == (8, 9)
    assert changed.move is not None
    assert changed.move.cause is MoveCause.SPEC


def test_a_deleted_config_map_comes_back_with_its_levers_past_every_generation_seen() -> None:
    lost = plan(Record(), status=moved("ceiling=8", 4), reported=6)
    assert (lost.settings.generation, lost.settings.ceiling) == (7, 8)


def test_an_edited_document_is_put_back_past_what_workers_may_have_taken() -> None:
    edited = recorded(moved("ceiling=1", 9), intact=False)
    back = plan(edited, status=moved("ceiling=8", 4), reported=9)
    assert (back.settings.generation, back.settings.ceiling) == (10, 8)


def test_a_document_that_does_not_parse_is_written_anew() -> None:
    broken = Record(None, intact=False, generation_seen=12)
    assert plan(broken, status=moved("ceiling=8", 4)).settings.generation == 13


def test_workers_that_are_ahead_after_a_restore_from_backup_are_overtaken() -> None:
    there = recorded(spec(4))
    ahead = plan(there, status=there.settings, reported=40)
    assert (ahead.rewrite, ahead.settings.generation) == (True, 41)


@pytest.mark.parametrize("claim", [2**53 - 1, 5_000_000])
def test_a_wild_claim_does_not_use_up_the_generations(claim: int) -> None:
    there = recorded(spec(4))
    assert plan(there, status=there.settings, reported=claim).rewrite is False
    forged = Record(None, intact=False, generation_seen=claim)
    assert plan(forged, status=there.settings).settings.generation == 5


def test_a_crash_between_config_map_and_status_loses_nothing() -> None:
    there = recorded(moved("ceiling=8", 5))
    assert plan(there, status=spec(4)).rewrite is False


def test_a_manual_value_is_a_move_made_once() -> None:
    there = recorded(spec(4))
    made = plan(there, status=there.settings, manual="ceiling=4,margin=20")
    assert (made.settings.generation, made.settings.ceiling, made.settings.margin_percent) == (5, 4, 20)
    assert made.move is not None
    assert made.move.cause is MoveCause.MANUAL
    assert [(c.lever.value, c.before, c.after) for c in made.move.changes] == [
        ("ceiling", "64", "4"),
        ("margin", "10%", "20%"),
    ]
    # the tuner moves on; the annotation is still there and does nothing more
    later = recorded(moved("ceiling=16", 6), manual=made.manual)
    assert plan(later, status=later.settings, manual="ceiling=4,margin=20").rewrite is False


def test_a_manual_value_that_is_taken_away_and_set_again_acts_again() -> None:
    there = recorded(moved("ceiling=16", 6), manual="ceiling=4")
    gone = plan(there, status=there.settings)
    assert (gone.rewrite, gone.manual) == (False, None)
    again = plan(recorded(moved("ceiling=16", 6)), manual="ceiling=4")
    assert (again.settings.ceiling, again.settings.generation) == (4, 7)


@pytest.mark.parametrize("text", ["ceiling", "ceiling=9999", "sealing=4", "ceiling=4,ceiling=5", ""])
def test_a_manual_value_that_makes_no_sense_changes_nothing_and_says_why(text: str) -> None:
    there = recorded(spec(4))
    refused = plan(there, status=there.settings, manual=text)
    assert (refused.rewrite, refused.settings, refused.manual) == (False, there.settings, None)
    assert refused.complaint


def test_a_new_instance_may_start_from_a_manual_value() -> None:
    first = plan(Record(), manual="ceiling=4")
    assert (first.settings.generation, first.settings.ceiling) == (1, 4)
    assert first.move is not None


def proposed(text: str, based_on: int) -> Proposal:
    return Proposal(based_on, moved(text, based_on), MoveCause.LONG_BATCHES, "p99=1.4")


def test_a_proposal_on_the_newest_generation_is_written() -> None:
    there = recorded(spec(4))
    proposal = proposed("ceiling=8", 4)
    made = plan(there, status=there.settings, proposal=proposal)
    assert made.took is proposal
    assert (made.settings.generation, made.settings.ceiling) == (5, 8)
    assert made.move == MoveRecord(
        time=NOW, cause=MoveCause.LONG_BATCHES, generation=5, changes=made.move.changes, numbers="p99=1.4"
    )


@pytest.mark.parametrize(
    ("record", "of"),
    [
        (recorded(spec(5)), None),  # somebody moved meanwhile
        (recorded(spec(4)), spec(windowIdle=32, windowBusy=4)),  # the spec changed
        (Record(), None),  # nothing is known of the generation that it is based on
    ],
)
def test_a_proposal_that_comes_too_late_is_left(record: Record, of: Settings | None) -> None:
    assert plan(record, of=of, proposal=proposed("ceiling=8", 4)).took is None


def test_a_proposal_beyond_what_the_spec_allows_is_left() -> None:
    of = spec(windowIdle=16, windowBusy=4)
    there = recorded(of.but(generation=4))
    wild = Proposal(4, of.but(generation=4, window_idle=64, ceiling=64), MoveCause.RECOVERY)
    assert plan(there, of=of, proposal=wild).took is None


def test_a_manual_value_wins_over_a_proposal_of_the_same_moment() -> None:
    there = recorded(spec(4))
    made = plan(there, manual="ceiling=4", proposal=proposed("ceiling=8", 4))
    assert made.settings.ceiling == 4
    assert made.move is not None
    assert made.move.cause is MoveCause.MANUAL
