"""The status of a policy from what was found out about its instances. Pure; the time of day is an argument.

What is the same in meaning stays the same in text, so that comparing with the status there is decides whether
anything is written at all."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tailkeeper.api.enums import ConditionStatus, ConditionType
from tailkeeper.api.names import (
    ANNOTATION_PAUSE_PREFIX,
    ANNOTATION_ROLL,
    ANNOTATION_ROLL_PREFIX,
    ANNOTATION_SET_PREFIX,
    GROUP,
)
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import Condition, InstanceStatus, MoveRecord, PolicyStatus
from tailkeeper.reconcile.diagnosis import Health, Reason
from tailkeeper.reconcile.sync import NO_WORKERS, Sync, SyncState

LONGEST_TEXT = 1_024
_PREFIXES = (ANNOTATION_SET_PREFIX, ANNOTATION_PAUSE_PREFIX, ANNOTATION_ROLL_PREFIX)
_REASON = re.compile(r"^[A-Z][A-Za-z0-9]{0,63}$")


class Verdict(NamedTuple):
    """One condition without its times."""

    status: ConditionStatus
    reason: str
    message: str = ""


NOT_MEASURED = Verdict(ConditionStatus.UNKNOWN, "NotMeasured", "nothing was measured yet")
NO_VERDICT = Verdict(
    ConditionStatus.UNKNOWN, "NotMeasured", "no verdict yet: it takes about 270 requests of a tier, or a breach"
)
NO_REVIEW = Verdict(ConditionStatus.UNKNOWN, "NotReviewed", "no review was made yet")

NOT_READ = Verdict(ConditionStatus.UNKNOWN, "NotRead", "workers are ready, their counters were not read yet")
NO_READY_WORKERS = "NoReadyWorkers"

PAUSE_VALUES = ("true", "false")


@dataclass(frozen=True)
class InstanceFindings:
    """What a reconcile found out about one instance."""

    name: str
    health: Health
    settings: Settings | None = None
    sync: Sync = NO_WORKERS
    last_move: MoveRecord | None = None
    paused: bool = False
    complaint: str = ""
    """A manual value that was refused, and why."""


def build_status(
    before: PolicyStatus | None,
    generation: int,
    accepted: Verdict,
    instances: Sequence[InstanceFindings],
    signals: Mapping[ConditionType, Verdict],
    now: str,
) -> PolicyStatus:
    """The status as it should be. `now` is RFC 3339 and is used only for conditions that flip."""
    verdicts = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.READY: _ready(instances, accepted),
        ConditionType.SLA_MET: NO_VERDICT,
        ConditionType.METRICS_AVAILABLE: NOT_MEASURED,
        ConditionType.SETTINGS_APPLIED: _applied(instances, before),
        ConditionType.CAPACITY_SHORT: NOT_MEASURED,
        ConditionType.DRIFT_DETECTED: NO_REVIEW,
        **signals,
    }
    if verdicts[ConditionType.METRICS_AVAILABLE].reason == NO_READY_WORKERS and _any_ready(instances):
        verdicts[ConditionType.METRICS_AVAILABLE] = NOT_READ
    known = {condition.type: condition for condition in before.conditions} if before else {}
    ready = sum(findings.health.ready and findings.health.reason != Reason.SCALED_TO_ZERO for findings in instances)
    return PolicyStatus(
        observed_generation=generation,
        conditions=[_condition(kind, verdict, known.get(kind), generation, now) for kind, verdict in verdicts.items()],
        instances=[_instance(findings) for findings in instances],
        summary=f"{ready}/{len(instances)}",
    )


def _any_ready(instances: Sequence[InstanceFindings]) -> bool:
    """A status of before a restart, or the time until the next read, may say that there is no worker."""
    return any(findings.health.ready_replicas for findings in instances)


def strays(policy: BatchingPolicy) -> list[str]:
    """What is said about annotations of ours that mean nothing: a misspelt name, an instance that does not exist, a
    pause that is neither on nor off."""
    names = [instance.name for instance in policy.spec.instances]
    found = (_stray(name, value, names) for name, value in sorted(policy.metadata.annotations.items()))
    return [words for words in found if words]


def _stray(annotation: str, value: str, instances: Sequence[str]) -> str:
    if not annotation.startswith(f"{GROUP}/") or annotation == ANNOTATION_ROLL:
        return ""
    prefix = next((prefix for prefix in _PREFIXES if annotation.startswith(prefix)), None)
    if prefix is None:
        return f"{annotation}: there is no such annotation; there are {', '.join(f'{p}INSTANCE' for p in _PREFIXES)}"
    if annotation.removeprefix(prefix) not in instances:
        known = f"there {'is' if len(instances) == 1 else 'are'} {', '.join(instances)}"
        return f"{annotation}: there is no instance {annotation.removeprefix(prefix)}; {known}"
    if prefix == ANNOTATION_PAUSE_PREFIX and value not in PAUSE_VALUES:
        return f'{annotation}: {value[:40]!r} is neither "true" nor "false"; the instance is not paused'
    return ""


def accepted_verdict(instances: Sequence[InstanceFindings], strays: Sequence[str] = ()) -> Verdict:
    """Of a policy that reads well: an instance may still be impossible, and a manual value refused.

    `strays`: annotations that mean nothing, in words."""
    invalid = [findings for findings in instances if findings.health.reason == Reason.INVALID]
    if invalid:
        return Verdict(ConditionStatus.FALSE, Reason.INVALID, _joined(findings.health.message for findings in invalid))
    complaints = [findings.complaint for findings in instances if findings.complaint]
    if complaints or strays:
        reason = "ManualValueRefused" if complaints else "AnnotationIgnored"
        return Verdict(ConditionStatus.TRUE, reason, _joined([*complaints, *strays]))
    return Verdict(ConditionStatus.TRUE, "Valid")


def _ready(instances: Sequence[InstanceFindings], accepted: Verdict) -> Verdict:
    unready = [findings for findings in instances if not findings.health.ready]
    if unready:
        worst = min(unready, key=lambda findings: findings.health.reason in (Reason.STARTING, Reason.ROLLING_OUT))
        words = (f"{findings.name}: {findings.health.message}" for findings in unready)
        return Verdict(ConditionStatus.FALSE, _reason(worst.health.reason), _joined(words))
    if not instances:
        return Verdict(ConditionStatus.FALSE, accepted.reason, "no instance was ever accepted")
    # The conditions of a rollout, and of instances that nobody wants to run, are no trouble, and not the whole truth.
    rest = [findings for findings in instances if findings.health.reason != Reason.ALL_READY]
    if not rest:
        return Verdict(ConditionStatus.TRUE, Reason.ALL_READY, "all instances serve")
    told = _joined(f"{findings.name}: {findings.health.message}" for findings in rest)
    empty = [findings for findings in instances if findings.health.reason == Reason.SCALED_TO_ZERO]
    if len(empty) < len(instances):
        told = f"{'the others' if empty else 'all'} serve; {told}"
    return Verdict(ConditionStatus.TRUE, _reason(rest[0].health.reason), told)


def _applied(instances: Sequence[InstanceFindings], before: PolicyStatus | None) -> Verdict:
    order = list(SyncState)
    worst = min((findings.sync.state for findings in instances), key=order.index, default=SyncState.NO_WORKERS)
    words = _joined(
        f"{findings.name}: {findings.sync.message}"
        for findings in instances
        if findings.sync.state is worst and findings.sync.message
    )
    match worst:
        case SyncState.BEHIND:
            return Verdict(ConditionStatus.FALSE, worst, words)
        case SyncState.APPLIED:
            return Verdict(ConditionStatus.TRUE, worst, "every ready worker applies the newest settings")
        case SyncState.PENDING:
            return _unchanged(before) or Verdict(ConditionStatus.UNKNOWN, worst, "the workers were not asked yet")
        case SyncState.SILENT | SyncState.NO_WORKERS:
            return Verdict(ConditionStatus.UNKNOWN, worst, words)


def _unchanged(before: PolicyStatus | None) -> Verdict | None:
    """Settings travel for a moment after each move: that is no news, least of all one that takes itself back."""
    for condition in before.conditions if before else []:
        if condition.type is ConditionType.SETTINGS_APPLIED:
            return Verdict(condition.status, condition.reason, condition.message)
    return None


def _instance(findings: InstanceFindings) -> InstanceStatus:
    health = findings.health
    return InstanceStatus(
        name=findings.name,
        ready=health.ready,
        reason=_reason(health.reason),
        message=health.message[:LONGEST_TEXT],
        desired_replicas=health.desired,
        ready_replicas=health.ready_replicas,
        settings_generation=findings.settings.generation if findings.settings else 0,
        applied_generation=findings.sync.applied_generation,
        effective=findings.settings,
        last_move=findings.last_move,
        paused=findings.paused,
    )


def _condition(kind: ConditionType, verdict: Verdict, known: Condition | None, generation: int, now: str) -> Condition:
    flipped = known is None or known.status is not verdict.status
    return Condition(
        type=kind,
        status=verdict.status,
        reason=_reason(verdict.reason),
        message=verdict.message[:LONGEST_TEXT],
        observed_generation=generation,
        last_transition_time=now if known is None or flipped else known.last_transition_time,
    )


def _reason(reason: str) -> str:
    """The kubelet's and the server's reasons are passed on as far as the conventions allow them."""
    return str(reason) if _REASON.match(reason) else "Unready"


def _joined(messages: Iterable[str]) -> str:
    return "; ".join(messages)[:LONGEST_TEXT]
