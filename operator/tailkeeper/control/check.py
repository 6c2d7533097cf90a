"""Did the last move help? It is on trial until two look-backs went well, and is taken back when it clearly harmed."""

from collections.abc import Iterable
from typing import Final

from tailkeeper.api.enums import Lever
from tailkeeper.api.levers import Move, values_of
from tailkeeper.api.settings import Settings
from tailkeeper.control.capacity import Capacity
from tailkeeper.control.judge import Finding
from tailkeeper.control.move import Bounds
from tailkeeper.control.observation import Value
from tailkeeper.control.restraint import same_load
from tailkeeper.control.state import Before, Measured, Trial
from tailkeeper.model.statistics import Proportion, difference_z

WORSE_Z: Final = 3.0
SETTLE_MIN_S: Final = 5.0
SETTLE_MAX_S: Final = 60.0
KEPT_AFTER_LOOK_BACKS: Final = 2
TRIAL_MAX_S: Final = 1800.0
"""What goes wrong after so long has another cause."""


def settling_s(settings: Settings, interval_s: float, factor: int) -> float:
    """How long new settings are left alone: until requests that arrived under them have ended and were seen."""
    base = min(SETTLE_MAX_S, max(SETTLE_MIN_S, 2 * settings.sla_ms / 1000 + 2 * interval_s))
    return base * factor


def measure(findings: Iterable[Finding], value: Value) -> Before:
    """How things stand now, to compare what follows the next move with."""
    measured = tuple(Measured(finding.tier, finding.objective, _worse_of(finding)) for finding in findings)
    return Before(measured, value.short.rate_per_s, value.gauges.efficiency)


def harmed(trial: Trial, findings: Iterable[Finding], value: Value) -> Finding | None:
    """What is in breach and significantly worse since that move, at about the same load; None if nothing is.

    In breach alone is not enough: it may have been so before. Worse alone is not either: a z-test repeated every few
    seconds finds something worse 22 to 28 times an hour where nothing is."""
    if not same_load(trial.before.rate_per_s, value.short.rate_per_s):
        return None
    for finding in findings:
        before = trial.before.of(finding.tier, finding.objective)
        if finding.broken and difference_z(before, finding.sure) > WORSE_Z:
            return finding
    return None


def proven(in_sync_since_s: float, findings: Iterable[Finding], now_s: float) -> bool:
    """Whether the settings in force have proven themselves: two look-backs as long as a verdict takes, no breach."""
    found = list(findings)
    longest_s = max((finding.span_s for finding in found), default=0.0)
    since_s = now_s - in_sync_since_s
    well = bool(found) and not any(finding.broken for finding in found)
    return since_s >= TRIAL_MAX_S or (well and since_s >= KEPT_AFTER_LOOK_BACKS * longest_s)


def undone(trial: Trial, settings: Settings, bounds: Bounds, capacity: Capacity | None) -> tuple[Move, ...]:
    """The values before that move, of those levers that are still where it put them and may be touched.

    A window that keeps up is not closed again to one that does not, however bad it looks while a backlog drains."""
    now = values_of(settings)
    least = capacity.enough_window() if capacity is not None else 1
    return tuple(
        left
        for left, taken in zip(trial.left, trial.taken, strict=True)
        if now.get(taken.key) == taken.value
        and left.key.lever not in bounds.pinned
        and not (left.key.lever is Lever.CEILING and isinstance(left.value, int) and left.value < least)
    )


def _worse_of(finding: Finding) -> Proportion:
    """A breach that just began has hardly reached the minute: a move that answers it is not to be held against that."""
    return max(finding.recent, finding.sure, key=lambda proportion: proportion.ratio)
