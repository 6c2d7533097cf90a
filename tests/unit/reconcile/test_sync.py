"""Whether workers apply what was written (case S6), by what they say themselves, over virtual time."""

import pytest

from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import initial_settings, resolve_all
from tailkeeper.api.settings import Settings
from tailkeeper.reconcile.sync import PATIENCE_S, ReadyPod, SyncState, SyncWatch
from tailkeeper.signals.worker_settings import WorkerReport

PODS = [ReadyPod("u1", "one"), ReadyPod("u2", "two")]


def settings(generation: int, **changes: object) -> Settings:
    instance = {"name": "small", "model": {"name": "m", "engine": "encoder", "path": "/m"}}
    effective = resolve_all(PolicySpec.model_validate({"instances": [instance]}))["small"]
    document = initial_settings(
        effective, policy_namespace="team", policy="chat", model_instance="small", generation=generation
    )
    return document.but(**changes)


def report(generation: int, refusal: str = "", document: object = None) -> WorkerReport:
    return WorkerReport(generation, ready=True, reason="", refusal=refusal, settings=document)


def judge(watch: SyncWatch, wanted: int, one: WorkerReport | None, two: WorkerReport | None, now_s: float):
    return watch.judge(settings(wanted), PODS, {"u1": one, "u2": two}, 0, now_s)


def test_all_apply_it() -> None:
    sync = judge(SyncWatch(), 3, report(3), report(3), 0.0)
    assert (sync.state, sync.applied_generation) == (SyncState.APPLIED, 3)


def test_a_moment_behind_is_no_condition_and_more_than_ten_seconds_is() -> None:
    watch = SyncWatch()
    for now_s in (0.0, 5.0, PATIENCE_S):
        sync = judge(watch, 3, report(3), report(2), now_s)
        assert (sync.state, sync.applied_generation) == (SyncState.PENDING, 2)
    sync = judge(watch, 3, report(3), report(2, "window out of bounds"), PATIENCE_S + 0.1)
    assert sync.state is SyncState.BEHIND
    assert sync.message == "pod two applies generation 2, not 3: window out of bounds"
    assert judge(watch, 3, report(3), report(3), 30.0).state is SyncState.APPLIED


def test_a_worker_that_applies_numbers_nobody_wrote_has_to_be_replaced() -> None:
    watch = SyncWatch()
    for now_s in (0.0, PATIENCE_S + 0.1):
        sync = judge(watch, 3, report(3), report(4_000_000_000), now_s)
    assert sync.state is SyncState.BEHIND
    assert sync.message.endswith(
        "applies generation 4000000000, which nobody wrote, and takes no lower one than that: kubectl delete pod two"
    )


def test_a_worker_that_is_stuck_is_found_although_settings_keep_moving() -> None:
    watch = SyncWatch()
    states = [judge(watch, wanted, report(wanted), report(2), 5.0 * wanted).state for wanted in range(3, 7)]
    assert states[-1] is SyncState.BEHIND


def test_a_worker_that_follows_slowly_is_not_called_stuck() -> None:
    watch = SyncWatch()
    for wanted in range(3, 12):
        sync = judge(watch, wanted, report(wanted), report(wanted - 1), 5.0 * wanted)
        assert sync.state is SyncState.PENDING


def test_a_worker_that_is_ahead_applies_something_else() -> None:
    watch = SyncWatch()
    judge(watch, 3, report(3), report(2**40), 0.0)
    assert judge(watch, 3, report(3), report(2**40), 11.0).state is SyncState.BEHIND


def test_other_values_under_the_same_generation_are_behind() -> None:
    watch, said = SyncWatch(), settings(3, ceiling=4).to_json()
    judge(watch, 3, report(3), report(3, document=said), 0.0)
    sync = judge(watch, 3, report(3), report(3, document=said), 11.0)
    assert sync.state is SyncState.BEHIND
    assert "other values" in sync.message


def test_an_older_worker_that_knows_fewer_fields_is_in_sync() -> None:
    said = settings(3).to_json()
    del said["minEfficiencyPercent"]
    said["tiers"] = [{k: v for k, v in tier.items() if k != "boostMs"} for tier in said["tiers"]]
    said["unknownToUs"] = 1
    assert judge(SyncWatch(), 3, report(3), report(3, document=said), 0.0).state is SyncState.APPLIED


def test_silence_is_unknown_not_behind() -> None:
    watch = SyncWatch()
    assert judge(watch, 3, report(3), None, 0.0).state is SyncState.PENDING
    sync = judge(watch, 3, report(3), None, 10.5)
    assert (sync.state, sync.applied_generation) == (SyncState.SILENT, 3)
    assert "pod two" in sync.message


@pytest.mark.parametrize(("now_s", "applied"), [(5.0, 7), (10.5, 0)])
def test_what_is_applied_outlives_a_short_silence_of_all(now_s: float, applied: int) -> None:
    watch = SyncWatch()
    watch.judge(settings(8), PODS, {}, 7, 0.0)
    assert watch.judge(settings(8), PODS, {}, 7, now_s).applied_generation == applied


def test_no_ready_worker_applies_nothing() -> None:
    sync = SyncWatch().judge(settings(3), [], {}, 3, 0.0)
    assert (sync.state, sync.applied_generation) == (SyncState.NO_WORKERS, 0)


def test_pods_that_no_longer_exist_are_forgotten() -> None:
    watch = SyncWatch()
    judge(watch, 3, report(2), report(2), 0.0)
    watch.forget_all_but({"u1"})
    sync = judge(watch, 3, report(2), report(2), 11.0)
    assert sync.message == "pod one applies generation 2, not 3"
