"""What made the late ones late, and so which kind of move could help. Capacity comes first: closing a window that is
too small for the load is a death spiral (longer queue, more late ones, smaller window)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.settings import Settings
from tailkeeper.control.capacity import Capacity, batch_window, ceiling_moves_window
from tailkeeper.control.judge import Finding, Objective
from tailkeeper.control.observation import Value

WORTH: Final = 0.2
"""A cause with less of the late ones' time than this is not where they are to be helped."""
BINDING: Final = 0.95
"""A window this near to its ceiling is held by it."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the time of the late requests went, as shares; all 0 when none was late."""

    hold: float = 0.0
    busy: float = 0.0
    slot: float = 0.0
    exec: float = 0.0
    late_s: float = 0.0
    """Mean latency of the late ones."""

    @property
    def batch(self) -> float:
        """Waiting for the batch that ran, and riding in the next: both grow with the window."""
        return self.busy + self.exec

    @property
    def waiting(self) -> float:
        """For the engine: what fewer requests per worker would shorten."""
        return self.busy + self.slot

    @property
    def name(self) -> str:
        """The largest cause, as `cause` labels have it; empty when none was late."""
        largest = max(("hold", self.hold), ("busy", self.busy), ("slot", self.slot), ("exec", self.exec), key=_second)
        return largest[0] if largest[1] > 0 else ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Causes to act on, the most telling first."""

    causes: tuple[MoveCause, ...]
    shares: Shares
    lower_served: bool
    """Requests of lower tiers got engine time, or wait for it, while these were late."""
    short: bool = False
    """Beyond capacity whatever the settings: nothing is moved."""
    tight: bool = False
    """Beyond what the best window comfortably serves; settings may still help, and if none does it is capacity."""


def attribute(finding: Finding, value: Value, settings: Settings, capacity: Capacity | None) -> Diagnosis:
    """Why the requests of this finding were late."""
    shares = shares_of(value, settings, finding.tier)
    lower_served = _lower_served(value, settings, finding.tier)
    # A stream's pace does not depend on how many wait for a place in the running set.
    waits_for_place = finding.objective is not Objective.INTER_TOKEN
    if waits_for_place and capacity is not None and capacity.short:
        return Diagnosis((), shares, lower_served, short=True)
    found = _causes(finding, value, settings, capacity, shares, lower_served)
    tight = capacity is not None and not capacity.keeps_up(capacity.widest)
    return Diagnosis(tuple(dict.fromkeys(found)), shares, lower_served, tight=tight and waits_for_place)


def shares_of(value: Value, settings: Settings, tier: str) -> Shares:
    """From the short look-back when anyone was late there, else from the minute."""
    for look in (value.short, value.long):
        counts = look.counts(settings.generation, tier)
        total = counts.hold_s + counts.busy_s + counts.slot_s + counts.exec_s
        if total > 0 and counts.late > 0:
            return Shares(
                hold=counts.hold_s / total,
                busy=counts.busy_s / total,
                slot=counts.slot_s / total,
                exec=counts.exec_s / total,
                late_s=total / counts.late,
            )
    return Shares()


def _causes(
    finding: Finding,
    value: Value,
    settings: Settings,
    capacity: Capacity | None,
    shares: Shares,
    lower_served: bool,
) -> Iterator[MoveCause]:
    if finding.objective is Objective.INTER_TOKEN:
        yield MoveCause.INTER_TOKEN
        yield MoveCause.LONG_BATCHES
        return
    if _ceiling_too_small(value, settings, capacity, shares):
        yield MoveCause.CAPACITY
    if finding.objective is Objective.FIRST_TOKEN:
        yield MoveCause.FIRST_TOKEN
    too_long, oversized = _batches_too_long(value, settings, capacity, shares)
    # A batch that is longer than the SLA allows makes those wait long that must let one or two go first, too.
    in_batches = shares.batch + (shares.slot if oversized else 0.0)
    by_share = [
        (shares.hold, MoveCause.HOLD, True),
        (in_batches, MoveCause.LONG_BATCHES, too_long),
        (shares.slot, MoveCause.PRIORITY, lower_served or _higher_served(value, settings, finding.tier)),
    ]
    for share, cause, helps in sorted(by_share, key=lambda entry: -entry[0]):
        if helps and share >= WORTH:
            yield cause


def _ceiling_too_small(value: Value, settings: Settings, capacity: Capacity | None, shares: Shares) -> bool:
    """The ceiling keeps the window under what the arrivals need, or requests wait for slots that it denies them."""
    widest = capacity.widest if capacity else settings.window_idle
    if settings.ceiling >= widest or not ceiling_moves_window(settings):
        return False
    if capacity is not None and not capacity.keeps_up(settings.ceiling):
        return True
    window = value.gauges.window
    return shares.slot >= max(shares.hold, shares.batch) > 0 and (
        window is None or window >= BINDING * settings.ceiling
    )


def _batches_too_long(value: Value, settings: Settings, capacity: Capacity | None, shares: Shares) -> tuple[bool, bool]:
    """Whether shorter batches would help, and whether by the workers' own model the present ones break the SLA.

    They help where the window makes the batches long: where most of T(W) is its fixed part, in continuous mode the
    iteration's α, a smaller window only trades time in batches for time in the queue."""
    if not ceiling_moves_window(settings):
        return False, False
    spent_s, sla_s = shares.batch * shares.late_s, settings.sla_ms / 1000
    if capacity is None:
        return spent_s > sla_s, False
    line, window = capacity.line, batch_window(value, settings, capacity)
    if line.a * window < line.c:
        return False, False
    oversized = line.at(window) > capacity.longest_s
    alone_s = spent_s * line.at(1) / line.at(window)
    return oversized or (spent_s > sla_s >= alone_s), oversized


def _lower_served(value: Value, settings: Settings, tier: str) -> bool:
    deadline = settings.tier(tier).deadline_ms
    return _served(value, {other.name for other in settings.tiers if other.deadline_ms > deadline})


def _higher_served(value: Value, settings: Settings, tier: str) -> bool:
    deadline = settings.tier(tier).deadline_ms
    return _served(value, {other.name for other in settings.tiers if other.deadline_ms < deadline})


def _served(value: Value, tiers: set[str]) -> bool:
    requests = sum(row.counts.requests for row in value.short.tiers if row.tier in tiers)
    return requests + sum(value.gauges.queue.get(tier, 0.0) for tier in tiers) > 0


def _second(pair: tuple[str, float]) -> float:
    return pair[1]
