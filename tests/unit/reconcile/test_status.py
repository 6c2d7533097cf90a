"""Status: conditions as the conventions have them, and no change in text without a change in meaning."""

import pytest

from tailkeeper.api.enums import ConditionStatus, ConditionType
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.status import Condition, PolicyStatus
from tailkeeper.reconcile.announce import EventLimit, announcements
from tailkeeper.reconcile.diagnosis import Health, Reason
from tailkeeper.reconcile.status import InstanceFindings, Verdict, accepted_verdict, build_status, strays
from tailkeeper.reconcile.store import Key
from tailkeeper.reconcile.sync import Sync, SyncState

READY = Health(True, Reason.ALL_READY, "2 of 2 workers serve", 2, 2)
NO_GPU = Health(False, Reason.UNSCHEDULABLE, "pod p: no GPU", 2, 0)
IN_SYNC = Sync(SyncState.APPLIED, 1)
BEHIND = Sync(SyncState.BEHIND, 1, "pod p applies generation 1, not 2")
T1, T2 = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def found(name: str = "small", health: Health = READY, sync: Sync = IN_SYNC, complaint: str = "") -> InstanceFindings:
    return InstanceFindings(name, health, None, sync, complaint=complaint)


def status(*findings: InstanceFindings, before: PolicyStatus | None = None, now: str = T1, generation: int = 1):
    return build_status(before, generation, accepted_verdict(findings), findings, {}, now)


def condition(of: PolicyStatus, kind: ConditionType) -> Condition:
    return next(condition for condition in of.conditions if condition.type is kind)


def policy(annotations: dict[str, str]) -> BatchingPolicy:
    instance = {"name": "small", "model": {"name": "m", "engine": "encoder", "path": "/m"}}
    head = {"apiVersion": "tailkeeper.dev/v1alpha1", "kind": "BatchingPolicy"}
    metadata = {"name": "chat", "annotations": annotations}
    return BatchingPolicy.model_validate({**head, "metadata": metadata, "spec": {"instances": [instance]}})


def test_all_well() -> None:
    made = status(found(), found("large"))
    assert condition(made, ConditionType.ACCEPTED).status is ConditionStatus.TRUE
    assert condition(made, ConditionType.READY).status is ConditionStatus.TRUE
    assert condition(made, ConditionType.SETTINGS_APPLIED).status is ConditionStatus.TRUE
    assert made.summary == "2/2"
    assert {c.type for c in made.conditions} == set(ConditionType)
    assert all(c.reason and c.observed_generation == 1 for c in made.conditions)


def test_what_nobody_measures_is_unknown() -> None:
    for kind in (ConditionType.SLA_MET, ConditionType.METRICS_AVAILABLE, ConditionType.CAPACITY_SHORT):
        assert condition(status(found()), kind).status is ConditionStatus.UNKNOWN


def test_the_same_an_hour_later_is_equal() -> None:
    first = status(found(), found("large", NO_GPU))
    assert status(found(), found("large", NO_GPU), before=first, now=T2) == first


def test_the_transition_time_moves_on_a_flip_only() -> None:
    first = status(found(health=NO_GPU))
    other_words = status(found(health=Health(False, "ErrImagePull", "x", 2, 0)), before=first, now=T2, generation=2)
    assert condition(other_words, ConditionType.READY).last_transition_time == T1
    assert condition(other_words, ConditionType.READY).reason == "ErrImagePull"
    assert condition(other_words, ConditionType.READY).observed_generation == 2
    recovered = status(found(), before=other_words, now=T2)
    assert condition(recovered, ConditionType.READY).last_transition_time == T2


def test_one_instance_in_trouble_is_named_and_the_others_are_as_they_are() -> None:
    made = status(found(), found("large", NO_GPU))
    ready = condition(made, ConditionType.READY)
    assert (ready.status, ready.reason, ready.message) == (
        ConditionStatus.FALSE,
        "Unschedulable",
        "large: pod p: no GPU",
    )
    assert made.summary == "1/2"
    assert [instance.ready for instance in made.instances] == [True, False]


def test_trouble_comes_before_what_is_only_on_its_way() -> None:
    starting = Health(False, Reason.STARTING, "waiting", 1, 0)
    made = status(found("a", starting), found("b", NO_GPU))
    assert condition(made, ConditionType.READY).reason == "Unschedulable"


def test_a_policy_that_was_never_accepted_is_not_ready() -> None:
    refused = Verdict(ConditionStatus.FALSE, Reason.INVALID, "spec.tiers: no")
    made = build_status(None, 1, refused, [], {}, T1)
    assert condition(made, ConditionType.READY).status is ConditionStatus.FALSE
    assert condition(made, ConditionType.ACCEPTED).message == "spec.tiers: no"


def test_a_template_that_does_not_fit_makes_the_policy_unaccepted() -> None:
    invalid = Health(False, Reason.INVALID, "spec.instances[small].template: must be a map", 0, 0)
    accepted = condition(status(found(health=invalid)), ConditionType.ACCEPTED)
    assert (accepted.status, accepted.reason) == (ConditionStatus.FALSE, "Invalid")


def test_a_refused_manual_value_is_said_and_does_not_unaccept() -> None:
    accepted = condition(status(found(complaint="set.small: no")), ConditionType.ACCEPTED)
    assert (accepted.status, accepted.reason, accepted.message) == (
        ConditionStatus.TRUE,
        "ManualValueRefused",
        "set.small: no",
    )


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        ("tailkeeper.dev/puase.small", "true", "there is no such annotation; there are tailkeeper.dev/set.INSTANCE"),
        ("tailkeeper.dev/set.tiny", "ceiling=4", "there is no instance tiny; there is small"),
        ("tailkeeper.dev/pause.small", "maybe", '\'maybe\' is neither "true" nor "false"; the instance is not paused'),
    ],
)
def test_an_annotation_that_means_nothing_is_said(annotation: str, value: str, words: str) -> None:
    said = strays(policy({annotation: value}))
    assert len(said) == 1
    assert said[0].startswith(f"{annotation}: ")
    assert words in said[0]
    verdict = accepted_verdict([found()], said)
    assert (verdict.status, verdict.reason) == (ConditionStatus.TRUE, "AnnotationIgnored")


def test_annotations_that_mean_something_and_those_of_others_are_not_said() -> None:
    names = ("set.small", "pause.small", "roll.small", "roll")
    fine = {f"tailkeeper.dev/{name}": "false" for name in names} | {"example.com/team": "search"}
    assert strays(policy(fine)) == []


def test_what_is_not_measured_says_what_is_missing() -> None:
    made = status(found())
    assert condition(made, ConditionType.DRIFT_DETECTED).message == "no review was made yet"
    assert "270 requests" in condition(made, ConditionType.SLA_MET).message


def test_settings_on_their_way_leave_the_condition_as_it_is() -> None:
    in_sync = status(found())
    pending = status(found(sync=Sync(SyncState.PENDING, 1)), before=in_sync, now=T2)
    assert condition(pending, ConditionType.SETTINGS_APPLIED) == condition(in_sync, ConditionType.SETTINGS_APPLIED)
    behind = status(found(sync=BEHIND), before=in_sync, now=T2)
    applied = condition(behind, ConditionType.SETTINGS_APPLIED)
    assert (applied.status, applied.message) == (ConditionStatus.FALSE, f"small: {BEHIND.message}")
    still = status(found(sync=Sync(SyncState.PENDING, 1)), before=behind, now=T2)
    assert condition(still, ConditionType.SETTINGS_APPLIED).status is ConditionStatus.FALSE


def test_reasons_that_the_conventions_do_not_allow_are_replaced() -> None:
    made = status(found(health=Health(False, "weird reason!", "x", 1, 0)))
    assert condition(made, ConditionType.READY).reason == "Unready"


def test_long_messages_fit_the_schema() -> None:
    many = [found(f"i{n}", Health(False, "ErrImagePull", "y" * 700, 1, 0)) for n in range(32)]
    assert len(condition(status(*many), ConditionType.READY).message) <= 1024


def test_events_follow_from_what_changed_in_the_status() -> None:
    first = status(found(health=NO_GPU))
    told = {(a.kind, a.reason) for a in announcements(None, first)}
    assert told == {("Warning", "Unschedulable")}
    assert announcements(first, first) == []
    recovered = status(found(), before=first)
    assert [a.reason for a in announcements(first, recovered)] == ["InstanceReady"]
    assert [a.reason for a in announcements(recovered, status(before=recovered))] == ["InstanceRemoved"]
    behind = status(found(sync=BEHIND), before=recovered)
    assert [a.reason for a in announcements(recovered, behind)] == ["SettingsNotApplied"]


def test_starting_up_is_no_warning() -> None:
    assert announcements(None, status(found(health=Health(False, Reason.STARTING, "waiting", 1, 0)))) == []


def test_events_do_not_become_a_storm() -> None:
    limit, key = EventLimit(), Key("team", "chat")
    (told,) = announcements(None, status(found(health=NO_GPU)))
    assert limit.allows(key, told, 0.0)
    assert not limit.allows(key, told, 599.0)
    assert limit.allows(key, told, 601.0)
    flood = [told._replace(message=str(n)) for n in range(1000)]
    assert sum(limit.allows(key, each, 700.0) for each in flood) <= 25
    assert sum(limit.allows(key, each, 700.0 + n) for n, each in enumerate(flood)) <= 1000 / 20 + 25
    assert limit.allows(Key("team", "other"), told, 700.0), "one noisy policy does not silence the others"


@pytest.mark.parametrize(("health", "reason"), [(READY, "NotRead"), (NO_GPU, "NoReadyWorkers")])
def test_no_ready_worker_is_not_said_of_workers_that_are_ready_and_were_not_read_yet(
    health: Health, reason: str
) -> None:
    old = {ConditionType.METRICS_AVAILABLE: Verdict(ConditionStatus.UNKNOWN, "NoReadyWorkers", "no worker is ready")}
    findings = [found(health=health)]
    made = build_status(None, 1, accepted_verdict(findings), findings, old, T1)
    assert condition(made, ConditionType.METRICS_AVAILABLE).reason == reason


def test_an_instance_that_nobody_wants_to_run_is_no_trouble_and_does_not_serve() -> None:
    nobody = found("idle", Health(True, Reason.SCALED_TO_ZERO, "no workers wanted", 0, 0))
    alone = status(nobody)
    ready = condition(alone, ConditionType.READY)
    assert (ready.status, ready.reason, ready.message) == (
        ConditionStatus.TRUE,
        "ScaledToZero",
        "idle: no workers wanted",
    )
    assert alone.summary == "0/1"
    both = status(found(), nobody)
    assert condition(both, ConditionType.READY).message == "the others serve; idle: no workers wanted"
    assert both.summary == "1/2"


def test_a_rollout_that_goes_well_says_how_far_it_is() -> None:
    rolling = found(health=Health(True, Reason.ROLLING_OUT, "0 of 2 workers are new", 2, 2))
    ready = condition(status(rolling), ConditionType.READY)
    assert (ready.reason, ready.message) == ("RollingOut", "all serve; small: 0 of 2 workers are new")
