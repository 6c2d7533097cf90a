"""The tuner's loop: what is decided reaches the settings, what is not to be moved stays, and trouble stays at home."""

import logging

import pytest

from tailkeeper.api.enums import ConditionStatus, ConditionType, MoveOutcome
from tailkeeper.api.levers import move, parse_moves
from tailkeeper.control.samples import Unknown, UnknownReason
from tailkeeper.reconcile.moves import Fate
from tests.unit.app.tuner_stage import KEY, Stage, at

DOWN = Unknown(UnknownReason.ERROR, "Prometheus at http://p cannot be reached: Connection refused")


def plant_ceiling(stage: Stage, ceiling: int, instance: str = "small") -> None:
    """A move by hand."""
    now, spec = stage.settings(instance), stage.specs[instance]
    moved = move(now, parse_moves(f"ceiling={ceiling}"), spec)
    stage.write(instance, moved.but(generation=now.generation + 1))


def condition(stage: Stage, kind: ConditionType) -> tuple[ConditionStatus, str] | None:
    verdict = stage.loop.conditions(KEY).get(kind)
    return (verdict.status, verdict.reason) if verdict else None


async def test_a_breach_becomes_a_proposal_on_what_is_in_force_with_its_cause_and_numbers() -> None:
    stage = Stage()
    await stage.run(70)
    plant_ceiling(stage, 2)
    await stage.run(60)
    (instance, proposal), *_ = stage.proposals
    assert (instance, proposal.based_on, proposal.cause.value) == ("small", 2, "Capacity")
    assert proposal.settings.ceiling == 64
    assert proposal.settings.moved == [], "back at what the spec says"
    assert "sla_breached=true action=window→64" in proposal.numbers
    assert stage.settings().generation == 3
    assert stage.metric('tailkeeper_operator_moves_total{cause="Capacity",model_instance="small"')


async def test_what_the_log_says_of_a_breach(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailkeeper.tuner")
    stage = Stage()
    await stage.run(70)
    plant_ceiling(stage, 2)
    await stage.run(200)
    lines = [record.getMessage() for record in caplog.records]
    assert any("generation 3, Capacity: tier=interactive" in line for line in lines)
    (again,) = [line for line in lines if "inside the SLA again" in line]
    assert "action=window→64 reverted_in=" in again
    assert any("generation 3 (Capacity) was Kept" in line for line in lines)
    assert stage.loop.outcome(KEY, "small", 3) is MoveOutcome.KEPT
    assert stage.loop.outcome(KEY, "small", 2) is None


@pytest.mark.parametrize("retune", [{"mode": "Off"}, {"pin": ["ceiling"]}])
async def test_nothing_is_moved_that_the_policy_forbids(retune: dict) -> None:
    stage = Stage(retune=retune)
    await stage.run(70)
    plant_ceiling(stage, 2)
    await stage.run(60)
    assert not [proposal for _, proposal in stage.proposals if proposal.settings.ceiling != 2]
    assert condition(stage, ConditionType.SLA_MET) == (ConditionStatus.FALSE, "Breached")
    assert not stage.announced


async def test_a_paused_instance_is_left_alone_and_its_sister_is_not() -> None:
    stage = Stage(names=("small", "large"))
    stage.annotations["tailkeeper.dev/pause.small"] = "true"
    stage.put_policy()
    await stage.run(70)
    plant_ceiling(stage, 2, "small")
    plant_ceiling(stage, 2, "large")
    await stage.run(60)
    assert {instance for instance, _ in stage.moves} == {"large"}


async def test_advice_is_an_event_once_and_nothing_is_written() -> None:
    stage = Stage(retune={"mode": "Recommend"})
    await stage.run(70)
    plant_ceiling(stage, 2)
    await stage.run(120)
    assert stage.proposals == []
    assert {event.reason for event in stage.announced} == {"MoveRecommended"}
    messages = [event.message for event in stage.announced]
    assert len(messages) == len({message.split(" (")[0] for message in messages}), "each advice once"
    assert messages[0].startswith("small: Capacity: window→64 (tier=interactive")


async def test_a_bug_with_one_instance_is_counted_and_the_others_are_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(names=("small", "large"))
    await stage.run(70)
    monkeypatch.setattr(stage.loop._instances[at("small")].tuner, "history", None)
    plant_ceiling(stage, 2, "large")
    await stage.run(60)
    assert {instance for instance, _ in stage.moves} == {"large"}
    assert stage.metric('tailkeeper_operator_still_total{reason="Error"}')


async def test_what_cannot_be_read_moves_nothing_and_says_what_to_do() -> None:
    stage = Stage()
    await stage.run(70)
    assert condition(stage, ConditionType.METRICS_AVAILABLE) == (ConditionStatus.TRUE, "Read")
    plant_ceiling(stage, 2)
    stage.reading = DOWN
    woken = len(stage.woken)
    await stage.run(300)
    assert stage.proposals == []
    verdict = stage.loop.conditions(KEY)[ConditionType.METRICS_AVAILABLE]
    assert (verdict.status, verdict.reason) == (ConditionStatus.FALSE, "SignalsError")
    assert "cannot be reached" in verdict.message
    assert condition(stage, ConditionType.SLA_MET) == (ConditionStatus.UNKNOWN, "NotKnown")
    assert len(stage.woken) - woken == 1, "said once"
    stage.reading = None
    await stage.run(60)
    assert [cause for _, cause in stage.moves][:1] == ["Capacity"]
    assert condition(stage, ConditionType.METRICS_AVAILABLE) == (ConditionStatus.TRUE, "Read")


async def test_what_alerts_compare_the_workers_with_is_a_metric_of_the_operator() -> None:
    stage = Stage()
    who = '{model_instance="small",policy="chat",policy_namespace="team"}'
    await stage.run(70)
    plant_ceiling(stage, 2)
    await stage.run(5)
    assert stage.metric(f"tailkeeper_operator_settings_generation{who} 2.0")
    assert stage.metric(f"tailkeeper_operator_ready_workers{who} 1.0")
    assert stage.metric(f"tailkeeper_operator_metrics_available{who} 1.0")
    stage.reading = DOWN
    await stage.run(30)
    assert stage.metric(f"tailkeeper_operator_metrics_available{who} 0.0")


async def test_a_read_that_fails_once_is_no_condition() -> None:
    stage = Stage()
    await stage.run(70)
    woken = len(stage.woken)
    stage.reading = DOWN
    await stage.run(5)
    stage.reading = None
    await stage.run(30)
    assert len(stage.woken) == woken


async def test_a_restarted_operator_looks_on_for_one_look_back_and_changes_no_condition() -> None:
    stage = Stage()
    await stage.run(70)
    plant_ceiling(stage, 2)
    stage.restart()
    began_s = stage.now_s
    await stage.run(55)
    assert stage.proposals == []
    await stage.run(30)
    assert stage.proposals
    assert stage.now_s - began_s > 60


async def test_a_step_that_was_not_written_is_decided_anew() -> None:
    stage = Stage()
    await stage.run(70)
    plant_ceiling(stage, 2)
    stage.fate = Fate.FAILED
    await stage.run(40)
    assert len(stage.proposals) > 1
    stage.fate = Fate.WRITTEN
    await stage.run(10)
    assert stage.settings().ceiling == 64


async def test_settings_that_somebody_else_wrote_are_a_conflict() -> None:
    stage = Stage()
    await stage.run(70)
    now = stage.settings().but(generation=2, ceiling=2)
    stage.write("small", now, intact=False)
    await stage.run(60)
    assert stage.proposals == []
    assert stage.metric('tailkeeper_operator_still_total{reason="Conflict"}')


async def test_workers_of_two_templates_serve_only_during_a_rollout() -> None:
    stage = Stage()
    await stage.run(70)
    plant_ceiling(stage, 2)
    stage.put_pod("small", template="t2", name="chat-small-1")
    stage.reports["uid-chat-small-1"] = stage.reports["uid-chat-small-0"]
    await stage.run(60)
    assert stage.proposals == []
    assert stage.metric('tailkeeper_operator_still_total{reason="RolloutInProgress"}')


async def test_each_policy_is_looked_at_as_often_as_it_says() -> None:
    stage = Stage(retune={"intervalSeconds": 10})
    looks, stage.now_s = 0, 9.0
    for _ in range(60):
        stage.now_s += 1
        looks += bool(stage.loop.due(stage.now_s))
    assert looks == 6


async def test_more_load_than_any_setting_serves_is_said_with_the_number_of_workers() -> None:
    stage = Stage(factor=40)
    await stage.run(130)
    verdict = stage.loop.conditions(KEY)[ConditionType.CAPACITY_SHORT]
    assert (verdict.status, verdict.reason) == (ConditionStatus.TRUE, "TooFewWorkers")
    assert "small has 1 workers, and what arrives needs" in verdict.message
    assert stage.metric('tailkeeper_capacity_short_replicas{model_instance="small",policy="chat"')


async def test_at_steady_load_the_conditions_settle_and_nobody_is_woken_again() -> None:
    stage = Stage(factor=1)
    await stage.run(120)
    woken = len(stage.woken)
    await stage.run(300)
    assert len(stage.woken) == woken
    assert condition(stage, ConditionType.SLA_MET) == (ConditionStatus.TRUE, "WithinSla")
    assert condition(stage, ConditionType.CAPACITY_SHORT) == (ConditionStatus.FALSE, "EnoughWorkers")
