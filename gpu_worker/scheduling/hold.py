"""The hold rule: how long an idle engine is kept waiting for more company, and never longer than it is worth."""

import math

from gpu_worker.scheduling.backlog import Backlog
from gpu_worker.scheduling.entries import Entry
from gpu_worker.scheduling.plan import Plan
from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.latency import BatchLatency

KAPPA = 5.0
"""κ: one fixed cost c saved is worth κ·c seconds of requests' waiting."""
DISAPPOINTED = 4
"""So many holds in a row for nothing are no chance."""
PROPER = 0.5
"""Shorter than this share of the mean gap a hold says nothing about who comes."""


class Company:
    """Whether anybody comes while so many wait. A client that sends its next request after the last answer never does,
    however often it calls: its own answers make the gaps that the arrivals seem to have."""

    __slots__ = ("_count", "_since_s", "in_vain")

    def __init__(self) -> None:
        self.in_vain: dict[int, int] = {}
        """Holds in a row that nobody joined, by how many were there."""
        self._count = 0
        self._since_s = 0.0

    def never_comes(self, count: int) -> bool:
        """Nobody has joined so many, the last times that they were held."""
        return self.in_vain.get(count, 0) >= DISAPPOINTED

    def met(self, count: int) -> None:
        """A request arrived while so many were there, waiting or in the engine."""
        self.in_vain.pop(count, None)

    def hold(self, count: int, now_s: float) -> None:
        """So many are held from now on, or still."""
        if count != self._count:
            self._count, self._since_s = count, now_s

    def start(self, count: int, mean_gap_s: float, now_s: float) -> None:
        """The engine starts, held or not."""
        if self._count:
            if count == self._count and now_s - self._since_s >= PROPER * mean_gap_s:
                self.in_vain[count] = self.in_vain.get(count, 0) + 1
            self._count = 0


def start_at_s(
    backlog: Backlog[Entry], plan: Plan, arrivals: ArrivalModel, latency: BatchLatency, now_s: float
) -> float:
    """When the open batch is to start if nobody else comes; now or earlier: at once. `backlog` is not empty.

    The earliest of three: when the most pressing of the waiting must start; when the next arrival is so far off
    that waiting costs more than the company saves; when the line has gone quiet."""
    line = latency.line
    if line is None:
        return -math.inf
    must_s = backlog.latest_start_s(latency.high(backlog.n + 1) + plan.margin_s)
    if must_s <= now_s:
        return must_s
    worth_s = KAPPA * line.c / backlog.weight
    last_s = arrivals.last_s
    silence_s = max(0.0, now_s - last_s)
    lonely_s = last_s + arrivals.silence_until_s(worth_s, silence_s)
    quiet_s = arrivals.quiet_at_s(1.0 / worth_s) if worth_s > 0.0 else now_s
    return min(must_s, lonely_s, quiet_s)
