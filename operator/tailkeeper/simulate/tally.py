"""What came of the requests: latencies and waits by tier, late ones, and what the engine did meanwhile."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_worker.scheduling.interface import Answer, Outcome
from tailkeeper.api.settings import Settings

CAUSES = ("hold", "busy", "slot", "exec")


@dataclass(frozen=True)
class Wait:
    """One cause over all requests that were sent, milliseconds."""

    p99: float
    sum: float


@dataclass(frozen=True)
class TierResult:
    """One tier, or all. Percentiles are over all requests sent; a missing answer counts as its timeout."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    over_sla_ratio: float
    """Late ÷ sent."""
    timeouts: int
    """Expired and shed."""
    shed: int
    goodput_per_s: float
    """Answered inside the SLA."""
    wait_ms: Mapping[str, Wait]
    waiting_p99_ms: float
    """hold + busy + slot of each request."""
    served_p99_ms: float
    """Of those that were answered with a result alone."""


@dataclass
class Tally:
    """Collects answers; one per tier."""

    timeout_s: float
    """What a missing answer counts as."""
    served_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Latencies of those answered with a result."""
    missing_s: "array[float]" = field(default_factory=lambda: array("d"))
    """What the others count as."""
    waits_s: "tuple[array[float], ...]" = field(default_factory=lambda: tuple(array("d") for _ in CAUSES))
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))

    def add(self, answer: Answer) -> None:
        """Takes one answer in."""
        outcome = answer.outcome
        self.outcomes[outcome] += 1
        request = answer.request
        if outcome is Outcome.OK or outcome is Outcome.LATE:
            self.served_s.append(answer.ended_s - request.arrival_s)
        elif request.deadline_s is None:
            self.missing_s.append(self.timeout_s)
        else:
            self.missing_s.append(request.deadline_s - request.arrival_s)
        waits = answer.waits
        hold, busy, slot, exec_ = self.waits_s
        hold.append(waits.hold_s)
        busy.append(waits.busy_s)
        slot.append(waits.slot_s)
        exec_.append(waits.exec_s)


def tallies(settings: Settings) -> dict[str, Tally]:
    """One empty tally per tier."""
    return {tier.name: Tally((tier.timeout_ms or 3 * tier.deadline_ms) / 1000) for tier in settings.tiers}


def result(tallies: Iterable[Tally], seconds: float) -> TierResult:
    """Sums one tier, or several, up."""
    parts = list(tallies)
    served = sorted(value for tally in parts for value in tally.served_s)
    latencies = sorted([*served, *(value for tally in parts for value in tally.missing_s)])
    outcomes = {outcome: sum(tally.outcomes[outcome] for tally in parts) for outcome in Outcome}
    waits = [[value for tally in parts for value in tally.waits_s[cause]] for cause in range(len(CAUSES))]
    waiting = sorted(hold + busy + slot for hold, busy, slot in zip(*waits[:3], strict=True))
    count = len(latencies)
    late = count - outcomes[Outcome.OK] - outcomes[Outcome.CANCELLED]
    return TierResult(
        count=count,
        mean_ms=1000.0 * sum(latencies) / count if count else math.nan,
        p50_ms=1000.0 * quantile(latencies, 0.5),
        p95_ms=1000.0 * quantile(latencies, 0.95),
        p99_ms=1000.0 * quantile(latencies, 0.99),
        max_ms=1000.0 * quantile(latencies, 1.0),
        over_sla_ratio=late / count if count else 0.0,
        timeouts=outcomes[Outcome.EXPIRED] + outcomes[Outcome.SHED],
        shed=outcomes[Outcome.SHED],
        goodput_per_s=outcomes[Outcome.OK] / seconds if seconds > 0.0 else 0.0,
        wait_ms={
            cause: Wait(1000.0 * quantile(sorted(values), 0.99), 1000.0 * sum(values))
            for cause, values in zip(CAUSES, waits, strict=True)
        },
        waiting_p99_ms=1000.0 * quantile(waiting, 0.99),
        served_p99_ms=1000.0 * quantile(served, 0.99),
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value that this share of all does not exceed; NaN of nothing."""
    return ordered[max(0, math.ceil(q * len(ordered) - 1e-9) - 1)] if ordered else math.nan
