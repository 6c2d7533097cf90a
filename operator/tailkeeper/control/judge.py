"""Is the SLA broken, kept, or is there too little to say? The verdict is on ratios of late requests, not on quantiles.

Only requests that arrived under the settings now applied count: those before them say nothing about these settings."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tailkeeper.api.settings import Settings
from tailkeeper.control.observation import LookBack, Value
from tailkeeper.control.samples import Counts
from tailkeeper.model.statistics import Proportion, design_effect

ALLOWED_LATE: Final = 0.01
"""A p99 objective."""
BREACH_Z: Final = 2.6
CLEAN_Z: Final = 1.645
MIN_MISSES: Final = 3.0
"""Independent misses (after the design effect) below which no bound is trusted to say "breach"."""
SEVERE: Final = 6.0
"""A ratio so many times the allowed one on both look-backs is mended in one stride, not in steps."""
LEAST: Final = 5e-4
"""The smallest ratio that is told from none: a target of zero would need requests without end."""


class Objective(StrEnum):
    """What a request can be late by; the `objective` label of `tailkeeper_late_total`."""

    LATENCY = "latency"
    FIRST_TOKEN = "first_token"
    INTER_TOKEN = "inter_token"
    TIMEOUT = "timeout"


class Verdict(StrEnum):
    """What can be said of one objective of one tier."""

    SEVERE = "Severe"
    """Over 6 times the allowed ratio, on the short and on the long look-back."""
    BREACH = "Breach"
    """Surely over the allowed ratio, on both."""
    OPEN = "Open"
    """Enough requests, and neither a breach nor clean."""
    CLEAN = "Clean"
    """Surely under half the allowed ratio: room to recover."""
    FEW = "Few"
    """Too few requests, even 15 minutes back."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One objective of one tier."""

    tier: str
    objective: Objective
    verdict: Verdict
    allowed: float
    late: Proportion
    """As counted, on the look-back that decided."""
    sure: Proportion
    """The same, divided by the design effect."""
    recent: Proportion
    """As `sure`, on the short look-back."""
    span_s: float
    """Length of the look-back that decided."""

    @property
    def excess(self) -> float:
        """How many times the allowed ratio."""
        return self.late.ratio / self.allowed if self.allowed > 0 else self.late.ratio * 1000

    @property
    def broken(self) -> bool:
        """Breach, severe or not."""
        return self.verdict in (Verdict.BREACH, Verdict.SEVERE)


def judge(value: Value, settings: Settings) -> tuple[Finding, ...]:
    """Every objective of every tier that had requests under these settings, the worst first."""
    findings = [
        _find(value, settings, tier.name, objective, allowed)
        for tier in settings.tiers
        if value.look_backs[-1].counts(settings.generation, tier.name).requests > 0
        for objective, allowed in _objectives(settings, tier.name)
    ]
    return tuple(sorted(findings, key=lambda finding: (not finding.broken, -finding.excess)))


def _objectives(settings: Settings, tier: str) -> list[tuple[Objective, float]]:
    """Objectives of a tier with their allowed ratios. Token objectives are those of the default tier and above."""
    found = [(Objective.LATENCY, ALLOWED_LATE), (Objective.TIMEOUT, settings.timeout_target_per_mille / 1000)]
    if settings.tier(tier).deadline_ms <= settings.sla_ms:
        if settings.first_token_sla_ms is not None:
            found.append((Objective.FIRST_TOKEN, ALLOWED_LATE))
        if settings.inter_token_sla_ms is not None:
            found.append((Objective.INTER_TOKEN, ALLOWED_LATE))
    return found


def _find(value: Value, settings: Settings, tier: str, objective: Objective, allowed: float) -> Finding:
    known: list[_Counted] = []

    def counted(index: int) -> _Counted:
        """Mostly the first two are all that is needed."""
        while len(known) <= index:
            look = value.look_backs[len(known)]
            known.append(_Counted.of(look, settings.generation, tier, objective))
        return known[index]

    def finding(verdict: Verdict, on: _Counted) -> Finding:
        return Finding(tier, objective, verdict, allowed, on.late, on.sure, counted(0).sure, on.span_s)

    further = range(1, len(value.look_backs))
    for index in further:
        short, long = counted(index - 1), counted(index)
        if short.surely_over(allowed) and long.surely_over(allowed):
            severe = min(short.late.ratio, long.late.ratio) > SEVERE * allowed
            return finding(Verdict.SEVERE if severe else Verdict.BREACH, long)
        if _enough(short.sure.n, allowed):
            break  # it is not happening now; what lies further back is history
    for index in further:
        if counted(index).sure.upper(CLEAN_Z) < max(allowed / 2, LEAST):
            return finding(Verdict.CLEAN, counted(index))
    for index in further:
        if _enough(counted(index).sure.n, allowed):
            return finding(Verdict.OPEN, counted(index))
    return finding(Verdict.FEW, counted(further[-1]))


def _enough(n: float, ratio: float) -> bool:
    """Whether a claim of "at most that ratio" is possible at all from n requests: 268 for 1 %."""
    return n >= CLEAN_Z * CLEAN_Z * (1 / max(ratio, LEAST) - 1)  # where the upper Wilson bound of 0 of n is the ratio


@dataclass(frozen=True, slots=True)
class _Counted:
    """Late requests of one look-back."""

    late: Proportion
    sure: Proportion
    span_s: float

    @classmethod
    def of(cls, look: LookBack, generation: int, tier: str, objective: Objective) -> "_Counted":
        counts = look.counts(generation, tier)
        late = Proportion(min(_late(counts, objective), counts.requests), counts.requests)
        if late.k == 0:
            return cls(late, late, look.span_s)
        latency = Proportion(min(counts.late, counts.requests), counts.requests)
        # Only misses of the latency are counted by the second; the other objectives miss in the same bursts.
        effect = design_effect(latency, counts.nn, counts.nk, counts.kk, look.span_s)
        return cls(late, late.thinned(effect), look.span_s)

    def surely_over(self, allowed: float) -> bool:
        return self.sure.k >= MIN_MISSES and self.sure.lower(BREACH_Z) > allowed


def _late(counts: Counts, objective: Objective) -> float:
    match objective:
        case Objective.LATENCY:
            return counts.late
        case Objective.FIRST_TOKEN:
            return counts.late_first_token
        case Objective.INTER_TOKEN:
            return counts.late_inter_token
        case Objective.TIMEOUT:
            return counts.timeouts
