"""The conditions that follow from measurements: SlaMet, MetricsAvailable, CapacityShort. Pure; times are arguments.

A measurement is anew every few seconds, a condition is a write to the API server and something that people are woken
by. So a change counts once it has held for a while, longer for good news than for bad, and a text changes with its
meaning only. What is not settled yet is left out: then the condition stays as it was, also over a restart."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from tailkeeper.api.enums import ConditionStatus, ConditionType, StillReason
from tailkeeper.api.status import PolicyStatus
from tailkeeper.control.record import Tick
from tailkeeper.control.samples import InstanceKey, Unknown, UnknownReason
from tailkeeper.reconcile.status import NO_READY_WORKERS, Verdict
from tailkeeper.reconcile.store import Key

T = TypeVar("T")

UNREAD_S: Final = 10.0
"""A read that fails is tried again with the next look; what fails for this long is a condition."""
UNSEEN_S: Final = 30.0
"""A worker that has just become ready may not have been scraped yet."""
MET_S: Final = 15.0
"""The short look-back: without a breach for so long."""
FEW_S: Final = 900.0
"""Too few requests for a verdict: as long as the furthest look-back, what was known last still holds."""
SHORT_S: Final = 10.0
ENOUGH_S: Final = 60.0

MEASURED: Final[tuple[ConditionType, ...]] = (
    ConditionType.SLA_MET,
    ConditionType.METRICS_AVAILABLE,
    ConditionType.CAPACITY_SHORT,
)

_SAYS_NOTHING: Final = frozenset(
    {
        StillReason.NO_DATA,
        StillReason.STALE,
        StillReason.PROMETHEUS_ERROR,
        StillReason.SETTLING,
        StillReason.NOT_IN_SYNC,
        StillReason.ROLLOUT_IN_PROGRESS,
        StillReason.CONFLICT,
    }
)
"""Reasons under which capacity is not judged."""


@dataclass
class Settled(Generic[T]):
    """A fact that counts once it has held for a while."""

    same: Callable[[T, T], bool] = lambda one, other: one == other
    told: T | None = None
    """None: not settled yet."""
    _next: T | None = None
    _since_s: float = 0.0

    def see(self, fact: T, patience_s: float, now_s: float) -> bool:
        """Whether it changed what counts."""
        if self.told is not None and self.same(fact, self.told):
            self._next = None
            return False
        if self._next is None or not self.same(fact, self._next):
            self._next, self._since_s = fact, now_s
        if now_s - self._since_s < patience_s:
            return False
        self.told, self._next = fact, None
        return True


class Sla(StrEnum):
    """One instance against its SLA."""

    MET = "Met"
    BREACHED = "Breached"
    NOT_KNOWN = "NotKnown"


@dataclass(frozen=True)
class Short:
    """Whether an instance has too few workers whatever its settings."""

    short: bool | None
    """None: nobody judges it now."""
    needed: int = 0
    """Workers that would do."""
    present: int = 0


@dataclass
class Measured:
    """What counts of one instance."""

    sla: Settled[Sla] = field(default_factory=Settled)
    metrics: Settled[Verdict] = field(default_factory=lambda: Settled(_same_meaning))
    capacity: Settled[Short] = field(default_factory=Settled)
    unread_since_s: float | None = None
    """When reads began to fail; None while they do not."""

    def see(self, tick: Tick, pods: int, now_s: float) -> bool:
        """Takes one look in; whether it changed what counts."""
        changed = self._see_metrics(tick, pods, now_s)
        changed = self._see_sla(tick, now_s) or changed
        return self._see_capacity(tick, pods, now_s) or changed

    def _see_metrics(self, tick: Tick, pods: int, now_s: float) -> bool:
        observation = tick.observation
        if pods == 0:
            return self.metrics.see(_NO_WORKERS, UNSEEN_S, now_s)
        if isinstance(observation, Unknown):
            reason = f"Signals{observation.reason.value}"
            slow = observation.reason in (UnknownReason.ABSENT, UnknownReason.PARTIAL)
            verdict = Verdict(ConditionStatus.FALSE, reason, observation.text)
            patience_s = UNSEEN_S if slow else UNREAD_S
            if self.unread_since_s is None:
                self.unread_since_s = now_s
            told = self.metrics.told
            if (told is None or told.status is not ConditionStatus.FALSE) and now_s - self.unread_since_s >= patience_s:
                patience_s = 0.0  # it fails for so long, even if each time for another reason
            return self.metrics.see(verdict, patience_s, now_s)
        if tick.next_state.unknown is not None and self.metrics.told != _NO_WORKERS:
            return False  # one good read after bad ones; the tuner waits for more as well
        self.unread_since_s = None
        return self.metrics.see(_READ, 0.0, now_s)

    def _see_sla(self, tick: Tick, now_s: float) -> bool:
        if self.metrics.told is not None and self.metrics.told.status is not ConditionStatus.TRUE:
            return self.sla.see(Sla.NOT_KNOWN, 0.0, now_s)
        match tick.decision.sla_met:
            case False:
                return self.sla.see(Sla.BREACHED, 0.0, now_s)
            case True:
                return self.sla.see(Sla.MET, MET_S if self.sla.told is Sla.BREACHED else 0.0, now_s)
            case None:
                return self.sla.see(Sla.NOT_KNOWN, FEW_S, now_s)

    def _see_capacity(self, tick: Tick, pods: int, now_s: float) -> bool:
        decision, told = tick.decision, self.capacity.told
        if decision.still in _SAYS_NOTHING:
            return False
        if decision.still is StillReason.PAUSED:
            return self.capacity.see(Short(None), ENOUGH_S, now_s)
        if not decision.capacity_short:
            return self.capacity.see(Short(False), 0.0 if told is None else ENOUGH_S, now_s)
        needed = max(decision.replicas_needed or 0, pods + 1)
        if told is not None and told.short and told.present == pods:
            needed = max(told.needed, needed)  # the most that was needed: the present number wanders
        return self.capacity.see(Short(True, needed, pods), SHORT_S, now_s)


@dataclass
class Conditions:
    """What counts of all instances, and the conditions of their policies."""

    _of: dict[InstanceKey, Measured] = field(default_factory=dict)

    def see(self, key: InstanceKey, tick: Tick, pods: int, now_s: float) -> bool:
        """Takes one look at an instance in; whether a condition may have changed."""
        return self._of.setdefault(key, Measured()).see(tick, pods, now_s)

    def metrics_of(self, key: InstanceKey) -> Verdict | None:
        """What counts as to whether this instance can be read."""
        measured = self._of.get(key)
        return measured.metrics.told if measured else None

    def missing_workers(self, key: InstanceKey) -> int:
        """How many more workers this instance needs; 0 while it is not short of them."""
        measured = self._of.get(key)
        told = measured.capacity.told if measured else None
        return told.needed - told.present if told is not None and told.short else 0

    def forget_all_but(self, keys: set[InstanceKey]) -> None:
        """Instances that no longer exist do not count."""
        for key in self._of.keys() - keys:
            del self._of[key]

    def of(self, policy: Key, before: PolicyStatus | None) -> dict[ConditionType, Verdict]:
        """The policy's conditions. What is not settled stays as it is in `before`, or is left out."""
        mine = {key.instance: each for key, each in sorted(self._of.items()) if key[:2] == policy}
        kept: dict[ConditionType, Verdict] = {
            condition.type: Verdict(condition.status, condition.reason, condition.message)
            for condition in (before.conditions if before else [])
            if condition.type in MEASURED
        }
        found: dict[ConditionType, Verdict | None] = {
            ConditionType.SLA_MET: _sla({name: each.sla.told for name, each in mine.items()}),
            ConditionType.METRICS_AVAILABLE: _metrics({name: each.metrics.told for name, each in mine.items()}),
            ConditionType.CAPACITY_SHORT: _capacity({name: each.capacity.told for name, each in mine.items()}),
        }
        for kind, verdict in found.items():
            if verdict is not None and not (kind in kept and _same_meaning(kept[kind], verdict)):
                kept[kind] = verdict
        return kept


_READ: Final = Verdict(ConditionStatus.TRUE, "Read", "the counters of all workers are read")
_NO_WORKERS: Final = Verdict(ConditionStatus.UNKNOWN, NO_READY_WORKERS, "no worker is ready")


def _sla(of: Mapping[str, Sla | None]) -> Verdict | None:
    breached = [name for name, told in of.items() if told is Sla.BREACHED]
    if breached:
        return Verdict(ConditionStatus.FALSE, "Breached", f"over the SLA: {', '.join(breached)}")
    if not of or None in of.values():
        return None
    if Sla.MET in of.values():
        return Verdict(ConditionStatus.TRUE, "WithinSla", "no instance is over its SLA")
    return Verdict(ConditionStatus.UNKNOWN, "NotKnown", "too few requests for a verdict, or no metrics")


def _metrics(of: Mapping[str, Verdict | None]) -> Verdict | None:
    told = {name: verdict for name, verdict in of.items() if verdict is not None}
    bad = {name: verdict for name, verdict in told.items() if verdict.status is ConditionStatus.FALSE}
    if bad:
        texts: dict[str, list[str]] = {}
        for name, verdict in bad.items():
            texts.setdefault(verdict.message, []).append(name)
        words = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
        return Verdict(ConditionStatus.FALSE, next(iter(bad.values())).reason, f"nothing is moved. {words}")
    if not of or len(told) < len(of):
        return None
    return _READ if _READ in told.values() else _NO_WORKERS


def _capacity(of: Mapping[str, Short | None]) -> Verdict | None:
    short = {name: told for name, told in of.items() if told is not None and told.short}
    if short:
        words = "; ".join(
            f"{name} has {told.present} workers, and what arrives needs {told.needed}" for name, told in short.items()
        )
        return Verdict(ConditionStatus.TRUE, "TooFewWorkers", f"no setting helps: {words}")
    if not of or None in of.values():
        return None
    if all(told is not None and told.short is None for told in of.values()):
        return Verdict(ConditionStatus.UNKNOWN, "Paused", "the tuner does not look at it")
    return Verdict(ConditionStatus.FALSE, "EnoughWorkers", "")


_PASSING = re.compile(r"\b[\d.]+ ?(s|ms|bytes)\b")
"""Numbers that tell time: they move by themselves."""


def _same_meaning(one: Verdict, other: Verdict) -> bool:
    return one[:2] == other[:2] and _PASSING.sub("…", one.message) == _PASSING.sub("…", other.message)
