"""Conditions that are measured: what has held for a while, in words that change with their meaning only."""

from tailkeeper.api.enums import ConditionStatus, ConditionType, StillReason
from tailkeeper.api.status import Condition, PolicyStatus
from tailkeeper.control.decision import Decision
from tailkeeper.control.freeze import Situation
from tailkeeper.control.move import Bounds
from tailkeeper.control.observation import Idle, Observation
from tailkeeper.control.record import Tick
from tailkeeper.control.samples import InstanceKey, Unknown, UnknownReason
from tailkeeper.control.state import State
from tailkeeper.reconcile.measured import Conditions, Settled
from tailkeeper.reconcile.store import Key
from tests.unit.control.loop import settings

POLICY = Key("team", "chat")
SMALL, LARGE = InstanceKey(*POLICY, "small"), InstanceKey(*POLICY, "large")


def tick(
    observation: Observation | None = None,
    sla_met: bool | None = True,
    still: StillReason = StillReason.WITHIN_SLA,
    needed: int | None = None,
    unknown: UnknownReason | None = None,
) -> Tick:
    short = still is StillReason.CAPACITY_SHORT
    decision = Decision(still=still, sla_met=sla_met, capacity_short=short, replicas_needed=needed)
    made = settings()
    return Tick(
        now_s=0.0,
        state=State(),
        observation=observation or Idle(1.0),
        settings=made,
        bounds=Bounds(made),
        situation=Situation(),
        next_state=State(unknown=unknown),
        decision=decision,
    )


def unread(text: str, reason: UnknownReason = UnknownReason.ERROR) -> Tick:
    return tick(Unknown(reason, text), sla_met=None, still=StillReason.PROMETHEUS_ERROR, unknown=reason)


def of(conditions: Conditions, kind: ConditionType, before: PolicyStatus | None = None) -> tuple[str, str] | None:
    verdict = conditions.of(POLICY, before).get(kind)
    return (verdict.status.value, verdict.message) if verdict else None


def test_a_fact_counts_once_it_has_held() -> None:
    fact: Settled[str] = Settled()
    assert not fact.see("a", 10, 0.0)
    assert not fact.see("b", 10, 9.0)
    assert not fact.see("b", 10, 18.0)
    assert fact.see("b", 10, 19.0)
    assert not fact.see("a", 10, 20.0)
    assert not fact.see("b", 10, 29.0)
    assert not fact.see("a", 10, 30.0), "it went back in between: the clock starts anew"
    assert fact.told == "b"


def test_nothing_is_said_before_anything_is_known() -> None:
    assert Conditions().of(POLICY, None) == {}


def test_a_breach_counts_at_once_and_its_end_after_the_short_look_back() -> None:
    conditions = Conditions()
    assert conditions.see(SMALL, tick(sla_met=True), 1, 0.0)
    assert conditions.see(SMALL, tick(sla_met=False), 1, 5.0)
    assert of(conditions, ConditionType.SLA_MET) == ("False", "over the SLA: small")
    assert not conditions.see(SMALL, tick(sla_met=True), 1, 10.0)
    assert not conditions.see(SMALL, tick(sla_met=True), 1, 24.0)
    assert conditions.see(SMALL, tick(sla_met=True), 1, 25.0)
    assert of(conditions, ConditionType.SLA_MET) == ("True", "no instance is over its SLA")


def test_too_few_requests_leave_what_was_known_for_a_quarter_of_an_hour() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(sla_met=True), 1, 0.0)
    for now_s in range(5, 900, 5):
        assert not conditions.see(SMALL, tick(sla_met=None), 1, float(now_s))
    assert conditions.see(SMALL, tick(sla_met=None), 1, 906.0)
    assert of(conditions, ConditionType.SLA_MET) == ("Unknown", "too few requests for a verdict, or no metrics")


def test_one_instance_over_its_sla_is_named_and_one_that_is_not_known_yet_settles_nothing() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(sla_met=True), 1, 0.0)
    conditions.see(LARGE, tick(sla_met=None), 1, 0.0)
    assert of(conditions, ConditionType.SLA_MET) is None
    conditions.see(LARGE, tick(sla_met=False), 1, 5.0)
    assert of(conditions, ConditionType.SLA_MET) == ("False", "over the SLA: large")


def test_what_cannot_be_read_is_said_after_ten_seconds_and_in_the_words_of_the_reader() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(), 1, 0.0)
    assert not conditions.see(SMALL, unread("p cannot be reached"), 1, 5.0)
    assert conditions.see(SMALL, unread("p cannot be reached"), 1, 15.0)
    status, message = of(conditions, ConditionType.METRICS_AVAILABLE) or ("", "")
    assert (status, message) == ("False", "nothing is moved. small: p cannot be reached")
    assert of(conditions, ConditionType.SLA_MET) == ("Unknown", "too few requests for a verdict, or no metrics")


def test_reads_that_fail_each_time_for_another_reason_fail() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(), 1, 0.0)
    changes = [
        now_s
        for number, now_s in enumerate(range(5, 120, 5))
        if conditions.see(SMALL, unread("refused" if number % 2 else "slow"), 1, float(now_s))
    ]
    assert changes == [15], "and its text does not flap with the reasons"
    assert of(conditions, ConditionType.METRICS_AVAILABLE) == ("False", "nothing is moved. small: slow")


def test_a_text_whose_seconds_move_is_the_same_text() -> None:
    conditions = Conditions()
    for now_s in range(0, 120, 5):
        conditions.see(
            SMALL, unread(f"no new sample of a for {now_s} s: is it scraped?", UnknownReason.STALE), 1, now_s
        )
    said = of(conditions, ConditionType.METRICS_AVAILABLE)
    assert said == ("False", "nothing is moved. small: no new sample of a for 10 s: is it scraped?")


def test_a_worker_that_was_not_scraped_yet_has_longer() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(), 1, 0.0)
    missing = unread("no samples of b", UnknownReason.PARTIAL)
    for now_s in (5.0, 15.0, 34.0):
        assert not conditions.see(SMALL, missing, 1, now_s)
    assert conditions.see(SMALL, missing, 1, 35.0)


def test_one_good_read_after_bad_ones_is_not_enough() -> None:
    conditions = Conditions()
    for now_s in (0.0, 10.0):
        conditions.see(SMALL, unread("down"), 1, now_s)
    good_but_first = tick(still=StillReason.PROMETHEUS_ERROR, unknown=UnknownReason.ERROR)
    assert not conditions.see(SMALL, good_but_first, 1, 15.0)
    assert conditions.see(SMALL, tick(), 1, 20.0)
    assert of(conditions, ConditionType.METRICS_AVAILABLE) == ("True", "the counters of all workers are read")


def test_the_same_trouble_of_several_instances_is_said_once() -> None:
    conditions = Conditions()
    for key in (SMALL, LARGE):
        for now_s in (0.0, 10.0):
            conditions.see(key, unread("p cannot be reached"), 1, now_s)
    said = of(conditions, ConditionType.METRICS_AVAILABLE)
    assert said == ("False", "nothing is moved. large, small: p cannot be reached")


def test_no_ready_worker_is_not_a_fault_of_the_metrics() -> None:
    conditions = Conditions()
    for now_s in (0.0, 30.0):
        conditions.see(SMALL, unread("no worker is ready", UnknownReason.ABSENT), 0, now_s)
    assert of(conditions, ConditionType.METRICS_AVAILABLE) == ("Unknown", "no worker is ready")


def test_too_few_workers_are_said_with_the_most_that_were_needed() -> None:
    conditions = Conditions()
    for now_s, needed in ((0.0, 3), (10.0, 3), (15.0, 4), (25.0, 4), (30.0, 3), (60.0, 3)):
        conditions.see(SMALL, tick(sla_met=False, still=StillReason.CAPACITY_SHORT, needed=needed), 2, now_s)
    said = of(conditions, ConditionType.CAPACITY_SHORT)
    assert said == ("True", "no setting helps: small has 2 workers, and what arrives needs 4")
    assert conditions.missing_workers(SMALL) == 2
    conditions.see(SMALL, tick(still=StillReason.SETTLING), 2, 70.0)
    conditions.see(SMALL, tick(), 2, 80.0)
    assert conditions.missing_workers(SMALL) == 2, "a minute of enough"
    conditions.see(SMALL, tick(), 2, 140.0)
    assert of(conditions, ConditionType.CAPACITY_SHORT) == ("False", "")
    assert conditions.missing_workers(SMALL) == 0


def test_after_a_restart_the_conditions_stay_until_something_else_is_sure() -> None:
    def condition(kind: ConditionType, message: str) -> Condition:
        return Condition(
            type=kind,
            status=ConditionStatus.FALSE,
            reason="SignalsStale",
            message=message,
            last_transition_time="2026-01-01T00:00:00Z",
        )

    text = "nothing is moved. small: no new sample of a for 12 s: is it scraped?"
    before = PolicyStatus(
        conditions=[condition(ConditionType.METRICS_AVAILABLE, text), condition(ConditionType.READY, "x")]
    )
    conditions = Conditions()
    assert of(conditions, ConditionType.METRICS_AVAILABLE, before) == ("False", text)
    assert of(conditions, ConditionType.READY, before) is None
    for now_s in (0.0, 10.0):
        conditions.see(SMALL, unread("no new sample of a for 99 s: is it scraped?", UnknownReason.STALE), 1, now_s)
    assert of(conditions, ConditionType.METRICS_AVAILABLE, before) == ("False", text), "the same meaning"


def test_instances_that_are_gone_do_not_count() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(sla_met=False), 1, 0.0)
    conditions.forget_all_but(set())
    assert of(conditions, ConditionType.SLA_MET) is None


def test_workers_that_become_ready_are_read_with_the_first_good_read() -> None:
    conditions = Conditions()
    conditions.see(SMALL, tick(), 0, 0.0)
    conditions.see(SMALL, tick(), 0, 30.0)
    assert of(conditions, ConditionType.METRICS_AVAILABLE) == ("Unknown", "no worker is ready")
    assert conditions.see(SMALL, tick(unknown=UnknownReason.ABSENT), 1, 31.0)
    assert of(conditions, ConditionType.METRICS_AVAILABLE) == ("True", "the counters of all workers are read")
