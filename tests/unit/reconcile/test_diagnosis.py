"""Why an instance is not ready: a reason and words that help, and the same ones while nothing changes in meaning."""

from typing import Any

import pytest

from tailkeeper.api.enums import RolloutStrategy
from tailkeeper.reconcile.diagnosis import Health, Reason, diagnose

SURGE, DRAIN = RolloutStrategy.SURGE_FIRST, RolloutStrategy.DRAIN_FIRST


def deployment(desired: int = 2, seen: bool = True, conditions: list | None = None, **status: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "chat-small", "generation": 4},
        "spec": {"replicas": desired},
        "status": {"observedGeneration": 4 if seen else 3, "conditions": conditions or [], **status},
    }


def serving(desired: int = 2) -> dict[str, Any]:
    return deployment(desired, replicas=desired, updatedReplicas=desired, readyReplicas=desired)


def pod(name: str = "p1", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": "Pending", **status}}


def container(ready: bool = False, restarts: int = 0, last: dict | None = None, **state: Any) -> dict[str, Any]:
    found = {"name": "worker", "ready": ready, "restartCount": restarts, "state": state}
    if last:
        found["lastState"] = {"terminated": last}
    return found


def unschedulable(message: str, name: str = "p1") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, conditions=[condition])


NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_all_serve() -> None:
    assert diagnose(serving(), [], SURGE) == Health(True, Reason.ALL_READY, "2 of 2 workers serve", 2, 2)


def test_nothing_yet() -> None:
    assert diagnose(None, [], SURGE).reason == Reason.STARTING
    health = diagnose(deployment(), [], SURGE)
    assert (health.ready, health.reason, health.desired) == (False, Reason.STARTING, 2)


def test_a_secret_that_keeps_a_pod_from_being_created_is_named() -> None:
    waiting = pod(containerStatuses=[container(waiting={"reason": "ContainerCreating"})])
    waiting["spec"] = {
        "volumes": [{"name": "api-keys", "secret": {"secretName": "nope"}}, {"name": "tmp", "emptyDir": {}}]
    }
    health = diagnose(deployment(1, replicas=1, updatedReplicas=1), [waiting], SURGE)
    assert (health.ready, health.reason) == (False, Reason.STARTING)
    assert "Secret nope" in health.message
    assert "kubectl describe pod p1" in health.message


def test_scaled_to_zero_is_wanted() -> None:
    assert diagnose(deployment(0), [], SURGE).ready


def test_what_a_loading_worker_says_is_passed_on() -> None:
    health = diagnose(deployment(1, replicas=1, updatedReplicas=1), [pod()], SURGE, {"p1": "loading: 3 of 9 GiB"})
    assert health.message == "pod p1: loading: 3 of 9 GiB"


def test_a_rollout_that_gets_on_stays_ready_while_enough_serve() -> None:
    health = diagnose(deployment(2, replicas=3, updatedReplicas=1, readyReplicas=2), [], SURGE)
    assert (health.ready, health.reason, health.message) == (True, Reason.ROLLING_OUT, "1 of 2 workers are new")


def test_a_change_that_the_deployment_has_not_seen_yet_is_not_called_done() -> None:
    stale = deployment(2, seen=False, replicas=2, updatedReplicas=2, readyReplicas=2)
    assert diagnose(stale, [], SURGE).reason == Reason.ROLLING_OUT


def test_no_gpu() -> None:
    health = diagnose(deployment(1, replicas=1, updatedReplicas=1), [unschedulable(NO_GPU)], SURGE)
    assert (health.ready, health.reason) == (False, Reason.UNSCHEDULABLE)
    assert "nvidia.com/gpu" in health.message
    assert "DrainFirst" not in health.message, "there is no old worker to stop first"


def test_all_gpus_taken_in_a_surge_names_the_way_out() -> None:
    rolling = deployment(2, replicas=3, updatedReplicas=1, readyReplicas=2)
    health = diagnose(rolling, [unschedulable(NO_GPU)], SURGE)
    assert (health.ready, health.reason) == (False, Reason.SURGE_UNSCHEDULABLE)
    assert "rolloutStrategy: DrainFirst" in health.message
    assert "nvidia.com/gpu" in health.message
    assert "2 of 2 workers serve" in health.message
    assert diagnose(rolling, [unschedulable(NO_GPU)], DRAIN).reason == Reason.UNSCHEDULABLE


def test_pulling_and_backing_off_read_the_same() -> None:
    rolling = deployment(1, replicas=1, updatedReplicas=1)
    fault = "rpc error: manifest unknown"
    pulling = container(waiting={"reason": "ErrImagePull", "message": fault})
    backing_off = container(
        waiting={"reason": "ImagePullBackOff", "message": f'Back-off pulling image "x": ErrImagePull: {fault}'}
    )
    first = diagnose(rolling, [pod(containerStatuses=[pulling])], SURGE)
    assert first == diagnose(rolling, [pod(containerStatuses=[backing_off])], SURGE)
    assert (first.reason, first.message) == ("ErrImagePull", f"pod p1: {fault}")


def test_a_crash_loop_reads_the_same_all_the_way_round_and_gives_the_last_words() -> None:
    words = "model path /models/nope does not exist"
    ended = {"exitCode": 1, "reason": "Error", "message": words}
    states = [
        container(terminated=ended),
        container(restarts=1, last=ended, waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"}),
        container(restarts=1, last=ended, running={"startedAt": "2026-01-01T00:00:00Z"}),
    ]
    rolling = deployment(1, replicas=1, updatedReplicas=1)
    found = [diagnose(rolling, [pod(containerStatuses=[state])], SURGE) for state in states]
    assert len(set(found)) == 1
    assert (found[0].reason, found[0].message) == ("CrashLoopBackOff", f"pod p1: {words}")


def test_killed_for_memory_says_so() -> None:
    killed = container(
        restarts=1, last={"exitCode": 137, "reason": "OOMKilled"}, waiting={"reason": "CrashLoopBackOff"}
    )
    health = diagnose(deployment(1), [pod(containerStatuses=[killed])], SURGE)
    assert "OOMKilled" in health.message


def test_killed_for_memory_is_said_before_what_the_worker_said_last() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "INFO loading 10 %: importing torch"}
    killed = container(restarts=1, last=ended, waiting={"reason": "CrashLoopBackOff"})
    health = diagnose(deployment(1), [pod(containerStatuses=[killed])], SURGE)
    assert "OOMKilled (exit code 137), and before: INFO loading 10 %" in health.message


def test_one_old_crash_of_a_worker_that_serves_is_no_trouble() -> None:
    recovered = container(ready=True, restarts=1, last={"exitCode": 1}, running={})
    assert diagnose(serving(1), [pod(containerStatuses=[recovered])], SURGE).ready


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "InvalidImageName", "CreateContainerError"])
def test_the_kubelets_other_words_are_passed_on(reason: str) -> None:
    waiting = container(waiting={"reason": reason, "message": 'secret "keys" not found'})
    health = diagnose(deployment(1), [pod(containerStatuses=[waiting])], SURGE)
    assert (health.reason, health.message) == (reason, 'pod p1: secret "keys" not found')


def test_pods_that_may_not_be_made() -> None:
    refusal = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    health = diagnose(deployment(1, conditions=[refusal]), [], SURGE)
    assert (health.reason, health.message) == (Reason.PODS_REFUSED, "exceeded quota: gpus")


def test_a_pod_that_stops_is_not_asked() -> None:
    stopping = unschedulable(NO_GPU)
    stopping["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert diagnose(serving(), [stopping], SURGE).ready


def test_new_workers_that_cannot_start_are_not_hidden_by_old_ones_that_serve() -> None:
    crashed = container(terminated={"exitCode": 1, "message": "no such model"})
    health = diagnose(
        deployment(2, replicas=3, updatedReplicas=1, readyReplicas=2), [pod(containerStatuses=[crashed])], SURGE
    )
    assert (health.ready, health.message) == (False, "pod p1: no such model (2 of 2 workers serve)")


def test_messages_are_bounded() -> None:
    crashed = container(terminated={"exitCode": 1, "message": "x" * 4096})
    assert len(diagnose(deployment(1), [pod(containerStatuses=[crashed])], SURGE).message) <= 1024
