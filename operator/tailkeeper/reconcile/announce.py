"""Which Events a change of status is worth, and a limit on how many are posted.

Events follow from the status that was and the status that is, so that a restarted operator, which reads the status that
it wrote before, says nothing twice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailkeeper.api.enums import ConditionStatus, ConditionType, MoveCause
from tailkeeper.api.status import Condition, InstanceStatus, MoveRecord, PolicyStatus
from tailkeeper.reconcile.diagnosis import Reason
from tailkeeper.reconcile.kinds import Manifest
from tailkeeper.reconcile.limits import TokenBuckets
from tailkeeper.reconcile.store import Key

NORMAL = "Normal"
WARNING = "Warning"

LONGEST_MESSAGE = 1_000
SAME_AGAIN_S = 600.0
BURST = 25.0
REFILL_S = 20.0
"""25 at once for a policy, then one every 20 s."""

_MOVED: Final[Mapping[MoveCause, str]] = {
    MoveCause.SPEC: "SettingsWritten",
    MoveCause.MANUAL: "SettingsWritten",
    MoveCause.ROLLBACK: "RolledBack",
}
"""Reasons of the Events of moves; those of the tuner itself are `Retuned`."""

_ON_THE_WAY = (Reason.STARTING, Reason.ROLLING_OUT)


class Announcement(NamedTuple):
    """One Event to be."""

    kind: str
    reason: str
    message: str


def announcements(before: PolicyStatus | None, after: PolicyStatus) -> list[Announcement]:
    """What people should hear of this change."""
    known = {instance.name: instance for instance in before.instances} if before else {}
    found = list(_of_conditions(before, after))
    for instance in after.instances:
        found += _of_instance(known.get(instance.name), instance)
    gone = known.keys() - {instance.name for instance in after.instances}
    found += [Announcement(NORMAL, "InstanceRemoved", f"{name}: removed") for name in sorted(gone)]
    return found


def describe_move(move: MoveRecord) -> str:
    """A move in one line: `Manual: ceiling 64 → 4 (numbers)`."""
    changes = ", ".join(
        f"{change.lever.value}{f' of {change.tier}' if change.tier else ''} {change.before} → {change.after}"
        for change in move.changes
    )
    numbers = f" ({move.numbers})" if move.numbers else ""
    return f"{move.cause.value}: {changes or 'the spec changed'}{numbers}"


def _of_conditions(before: PolicyStatus | None, after: PolicyStatus) -> Iterable[Announcement]:
    known = {condition.type: condition for condition in before.conditions} if before else {}
    for condition in after.conditions:
        old = known.get(condition.type)
        match condition.type:
            case ConditionType.ACCEPTED if _is_news(old, condition):
                if condition.status is ConditionStatus.FALSE or condition.message:
                    yield Announcement(WARNING, condition.reason, condition.message)
            case ConditionType.SETTINGS_APPLIED if _is_news(old, condition):
                if condition.status is ConditionStatus.FALSE:
                    yield Announcement(WARNING, "SettingsNotApplied", condition.message)
            case _:
                pass


def _is_news(old: Condition | None, new: Condition) -> bool:
    return old is None or (old.status, old.reason, old.message) != (new.status, new.reason, new.message)


def _of_instance(old: InstanceStatus | None, new: InstanceStatus) -> Iterable[Announcement]:
    if new.settings_generation and (old is None or old.settings_generation != new.settings_generation):
        move = new.last_move
        reason, what = "SettingsWritten", "first settings"
        if move and move.generation == new.settings_generation:
            reason, what = _MOVED.get(move.cause, "Retuned"), describe_move(move)
        elif old is not None and old.settings_generation:
            reason, what = (
                "Repaired",
                "the same values once more: the settings ConfigMap was changed or deleted by others",
            )
        yield Announcement(NORMAL, reason, f"{new.name}: generation {new.settings_generation}, {what}")
    if new.ready and not (old and old.ready):
        yield Announcement(NORMAL, "InstanceReady", f"{new.name}: {new.message}")
    elif not new.ready and new.reason not in _ON_THE_WAY and (old is None or old.reason != new.reason):
        yield Announcement(WARNING, new.reason, f"{new.name}: {new.message}")


@dataclass
class EventLimit:
    """Keeps Events from becoming a storm: none twice within ten minutes, and a budget for each policy."""

    _budget: TokenBuckets[Key] = field(default_factory=lambda: TokenBuckets(BURST, REFILL_S))
    _said: dict[Key, dict[tuple[str, str], float]] = field(default_factory=dict)

    def allows(self, key: Key, announcement: Announcement, now_s: float) -> bool:
        """Whether this one may be posted now; counts it when it may."""
        said = {what: when_s for what, when_s in self._said.get(key, {}).items() if now_s - when_s < SAME_AGAIN_S}
        what = (announcement.reason, announcement.message)
        allowed = what not in said and self._budget.take(key, now_s)
        self._said[key] = {**said, what: now_s} if allowed else said
        return allowed

    def forget(self, key: Key) -> None:
        """The policy is gone."""
        self._budget.forget(key)
        self._said.pop(key, None)


def event_manifest(
    policy: Manifest, key: Key, announcement: Announcement, now: str, name_suffix: str, reporter: str
) -> Manifest:
    """A core/v1 Event about a policy. `now` is RFC 3339."""
    metadata = policy["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{name_suffix}", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": policy["apiVersion"],
            "kind": policy["kind"],
            "name": key.name,
            "namespace": key.namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": announcement.kind,
        "reason": announcement.reason,
        "message": announcement.message[:LONGEST_MESSAGE],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": reporter},
        "reportingComponent": reporter,
        "reportingInstance": reporter,
    }
