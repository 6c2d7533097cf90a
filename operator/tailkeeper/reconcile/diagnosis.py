"""Why an instance is not ready, from its Deployment and its pods: one reason and one sentence for people.

The worst that can be said with certainty comes first. A rollout whose new pods cannot start makes the instance not
ready although the old pods still serve: nobody must believe that the change has arrived."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailkeeper.api.enums import RolloutStrategy
from tailkeeper.reconcile.kinds import Manifest
from tailkeeper.reconcile.worker_pod import CONTAINER

LONGEST_MESSAGE = 700


class Reason(StrEnum):
    """Reasons of `Ready`, for one instance and for the policy. The kubelet's own words are passed on beside these."""

    ALL_READY = "AllReady"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    UNSCHEDULABLE = "Unschedulable"
    SURGE_UNSCHEDULABLE = "SurgeUnschedulable"
    PODS_REFUSED = "PodsRefused"
    IMAGE = "ErrImagePull"
    CRASHING = "CrashLoopBackOff"
    EVICTED = "Evicted"
    CONFLICT = "Conflict"
    REFUSED = "Refused"
    API_ERROR = "ApiError"
    INVALID = "Invalid"


@dataclass(frozen=True)
class Health:
    """What can be said of an instance's pods."""

    ready: bool
    reason: str
    message: str
    desired: int
    ready_replicas: int


_NOT_YET = frozenset({"ContainerCreating", "PodInitializing"})
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff"})


def diagnose(
    deployment: Manifest | None,
    pods: Iterable[Manifest],
    strategy: RolloutStrategy,
    worker_says: Mapping[str, str] | None = None,
) -> Health:
    """Health of one instance. `worker_says`: what a running worker itself reports as its reason, by pod name."""
    if deployment is None:
        return Health(False, Reason.STARTING, "no Deployment yet", 0, 0)
    status = deployment.get("status", {})
    desired = int(deployment["spec"].get("replicas", 1))
    counted = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    ready = int(status.get("readyReplicas", 0))
    updated = int(status.get("updatedReplicas", 0)) if counted else 0
    present = int(status.get("replicas", 0))
    living = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]

    def unready(reason: str, message: str) -> Health:
        if ready:
            message = f"{message} ({ready} of {desired} workers serve)"
        return Health(False, reason, message[:LONGEST_MESSAGE], desired, ready)

    if counted and (refusal := _condition(deployment, "ReplicaFailure", "True")):
        return unready(Reason.PODS_REFUSED, refusal.get("message", ""))
    if trouble := _worst_pod(living, worker_says or {}):
        reason, message = trouble
        if reason == Reason.UNSCHEDULABLE and _blocked_by_surge(desired, ready, message, strategy):
            return unready(
                Reason.SURGE_UNSCHEDULABLE,
                f"no room for a new worker beside the old ones: {message}. "
                "spec.rolloutStrategy: DrainFirst stops an old worker first",
            )
        return unready(reason, message)
    if desired == 0 and present == 0:
        return Health(True, Reason.SCALED_TO_ZERO, "no workers wanted", 0, 0)
    if not counted or updated < desired or present > desired:
        if ready >= desired:
            return Health(True, Reason.ROLLING_OUT, f"{updated} of {desired} workers are new", desired, ready)
        reason = Reason.ROLLING_OUT if present > updated else Reason.STARTING
        return unready(reason, _progress(living, worker_says, desired))
    if ready < desired:
        return unready(Reason.STARTING, _progress(living, worker_says, desired))
    return Health(True, Reason.ALL_READY, f"{ready} of {desired} workers serve", desired, ready)


def _worst_pod(pods: Iterable[Manifest], worker_says: Mapping[str, str]) -> tuple[str, str] | None:
    found = sorted(
        (trouble for pod in pods if (trouble := _pod_trouble(pod)) is not None), key=lambda trouble: trouble[0]
    )
    if not found:
        return None
    _, name, reason, message = found[0]
    return reason, f"pod {name}: {message}"


def _pod_trouble(pod: Manifest) -> tuple[int, str, str, str] | None:
    """Rank, pod, reason, message. A lower rank says more."""
    name = pod["metadata"]["name"]
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        return 3, name, status.get("reason") or Reason.EVICTED, status.get("message") or "failed"
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if trouble := _container_trouble(container):
            return 1, name, *trouble
    scheduled = _condition(pod, "PodScheduled", "False")
    if scheduled and scheduled.get("reason") == "Unschedulable":
        return 2, name, Reason.UNSCHEDULABLE, scheduled.get("message", "")
    return None


def _container_trouble(container: Mapping[str, Any]) -> tuple[str, str] | None:
    """One reason for all the states that a failing container goes back and forth between, or status would flap."""
    name = container["name"]
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in _PULL:
        return Reason.IMAGE, _said(name, waiting.get("message", "").rpartition("ErrImagePull: ")[2])
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated") or {}
    crashed = ended.get("exitCode", 0) != 0 and not container.get("ready")
    if crashed or reason == Reason.CRASHING:
        return Reason.CRASHING, _said(name, _last_words(ended))
    if reason and reason not in _NOT_YET:
        return reason, _said(name, waiting.get("message", ""))
    return None


def _said(container: str, words: str) -> str:
    return words if container == CONTAINER else f"container {container}: {words}"


def _last_words(ended: Mapping[str, Any]) -> str:
    """What the kubelet knows (`OOMKilled`) goes before what the container said last: that was about something else."""
    words = str(ended.get("message", "")).strip()
    if len(words) > LONGEST_MESSAGE:
        words = "… " + words[-LONGEST_MESSAGE:]
    code = ended.get("exitCode", "unknown")
    if ended.get("reason") in (None, "Error", "Completed"):
        return words or f"ended with exit code {code}"
    return f"{ended['reason']} (exit code {code})" + (f", and before: {words}" if words else "")


def _blocked_by_surge(desired: int, ready: int, message: str, strategy: RolloutStrategy) -> bool:
    """All old workers serve, and the extra one finds no room: it would wait for ever."""
    return strategy is RolloutStrategy.SURGE_FIRST and 0 < desired <= ready and "Insufficient" in message


def _progress(pods: Iterable[Manifest], worker_says: Mapping[str, str] | None, desired: int) -> str:
    for pod in pods:
        name = pod["metadata"]["name"]
        if words := (worker_says or {}).get(name):
            return f"pod {name}: {words}"
        if _creating(pod) and (mounts := _named_by_users(pod)):
            return (
                f"pod {name} is being created; if that lasts, see whether {mounts} exists (kubectl describe pod {name})"
            )
    return f"waiting for {desired} workers"


def _creating(pod: Manifest) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return any(one.get("state", {}).get("waiting", {}).get("reason") == "ContainerCreating" for one in statuses)


def _named_by_users(pod: Manifest) -> str:
    """What must exist before the kubelet can start the pod; that it does not is only in the pod's own events."""
    volumes = pod.get("spec", {}).get("volumes", [])
    secrets = [
        f"Secret {volume['secret']['secretName']}" for volume in volumes if "secretName" in volume.get("secret", {})
    ]
    claims = [
        f"PersistentVolumeClaim {volume['persistentVolumeClaim']['claimName']}"
        for volume in volumes
        if "persistentVolumeClaim" in volume
    ]
    return ", ".join(secrets + claims)


def _condition(manifest: Manifest, kind: str, status: str) -> Mapping[str, Any] | None:
    for condition in manifest.get("status", {}).get("conditions", []):
        if condition["type"] == kind and condition["status"] == status:
            found: Mapping[str, Any] = condition
            return found
    return None
