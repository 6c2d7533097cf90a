"""How a run goes, told while it goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tailkeeper.bench.measured import ROW_TYPE
from tailkeeper.bench.outcome import Outcome
from tailkeeper.bench.plan import Plan
from tailkeeper.model.load_trace import LoadRequest

RECENT_S: Final = 5.0


@dataclass(frozen=True)
class TierProgress:
    """One tier: of the answers that came in the last seconds."""

    tier: str
    ended: int
    late: int
    """Late, shed, expired, timed out or failed; 0 where the tier has no SLA and all were answered."""
    p99_ms: float | None


@dataclass(frozen=True)
class Progress:
    """One look at a run."""

    elapsed_s: float
    total_s: float
    due: int
    """Requests whose time has come."""
    planned: int
    ended: int
    tiers: tuple[TierProgress, ...]

    @property
    def in_flight(self) -> int:
        """Sent and not ended."""
        return max(0, self.due - self.ended)


class ProgressKeeper:
    """Turns what the senders report into looks."""

    def __init__(self, plan: Plan, schedule: Sequence[LoadRequest], start_s: float) -> None:
        self._plan = plan
        self._start_s = start_s
        self._arrival_s = np.array([r.arrival_s for r in schedule], float)
        numbers = {tier: n for n, tier in enumerate(plan.tiers)}
        self._tier = np.array([numbers[r.tier] for r in schedule], int)
        self._sla_ms = [plan.limits_of(tier).sla_ms or plan.limits_of(tier).timeout_ms for tier in plan.tiers]
        self._timeout_ms = [plan.limits_of(tier).timeout_ms for tier in plan.tiers]
        self._read = 0
        self._ended = 0
        self._recent: list[tuple[float, int, list[np.ndarray]]] = []

    def look(self, rows: Sequence[bytes], now_s: float) -> Progress:
        """Take in what has come since the last look. `rows` only ever grows."""
        new = np.frombuffer(b"".join(rows[self._read :]), ROW_TYPE)
        self._read = len(rows)
        self._ended += len(new)
        tier_of = self._tier[new["index"]]
        answered = new["outcome"] == Outcome.ANSWERED
        by_tier = []
        for n, timeout_ms in enumerate(self._timeout_ms):
            mine = tier_of == n
            by_tier.append(np.where(answered[mine], new["latency_s"][mine].astype(float) * 1e3, timeout_ms))
        self._recent.append((now_s, len(new), by_tier))
        while self._recent[0][0] < now_s - RECENT_S:
            self._recent.pop(0)
        return Progress(
            elapsed_s=now_s - self._start_s,
            total_s=self._plan.end_s,
            due=int(np.searchsorted(self._arrival_s, now_s - self._start_s)),
            planned=len(self._arrival_s),
            ended=self._ended,
            tiers=tuple(self._of_tier(n, tier) for n, tier in enumerate(self._plan.tiers)),
        )

    def _of_tier(self, n: int, tier: str) -> TierProgress:
        latency_ms = np.concatenate([by_tier[n] for _, _, by_tier in self._recent])
        p99_ms = float(np.percentile(latency_ms, 99, method="inverted_cdf")) if len(latency_ms) else None
        late = int(np.count_nonzero(latency_ms > self._sla_ms[n]))
        return TierProgress(tier, ended=len(latency_ms), late=late, p99_ms=p99_ms)
