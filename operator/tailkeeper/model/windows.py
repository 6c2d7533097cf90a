"""Bounds of the window, as formulas. Times in seconds, rates per second, windows in requests.

Request mode, T(b) = c + a·b. `Line` is that pair of coefficients; the continuous ones are in `iterations`."""

import math
from dataclasses import dataclass

IDLE_LOAD = 0.5
"""Up to this load the window is the widest: a burst is taken whole."""
BUSY_LOAD = 0.85
"""From this load on it is the narrowest that keeps up: a late urgent request never waits behind a huge batch."""
HEADROOM = 1.1
"""A stable window is laid out for this multiple of the rate, or the queue would only just not grow."""


@dataclass(frozen=True, slots=True)
class Line:
    """T(b) = c + a·b, seconds; a > 0, c >= 0."""

    c: float
    a: float

    def at(self, size: float) -> float:
        """Seconds that a batch of that size takes."""
        return self.c + self.a * size

    def rate(self, size: int) -> float:
        """Requests per busy second at batches of that size."""
        return size / (self.c + self.a * size)


def sla_window(sla_s: float, line: Line) -> int:
    """W_sla = ⌊(SLA/2 − c)/a⌋, at least 1, for an SLA less the margin: what is not the engine's (the network, texts
    that are cut into tokens, a pass that takes longer than usual) has to fit as well.

    A request may arrive just after a batch left: it waits for that one whole, then rides in the next."""
    return max(1, math.floor((sla_s / 2 - line.c) / line.a))


def stable_window(rate_per_s: float, line: Line) -> int | None:
    """W_stable = ⌈1.1·λc/(1 − λa)⌉, the smallest window that keeps up; None when none does (λa >= 1)."""
    free = 1.0 - rate_per_s * line.a
    if free <= 0.0:
        return None
    return max(1, math.ceil(HEADROOM * rate_per_s * line.c / free))


def peak_rate(rate_per_s: float, dispersion: float, horizon_s: float) -> float:
    """The rate that the arrivals of one horizon reach now and then: λ + √(I·λ/h), one standard deviation up.

    `dispersion` is the index of dispersion I (variance ÷ mean of counts; 1 for Poisson). This is how the shape of the
    gaps moves the window: the same λ in bursts wants a wider one, since a burst has to be drained, not the mean."""
    return rate_per_s + math.sqrt(max(dispersion, 0.0) * rate_per_s / horizon_s)


def load(rate_per_s: float, window: int, line: Line) -> float:
    """ρ = λ·T(W)/W: the share of time that the engine must run."""
    return rate_per_s * line.at(window) / window


def between(rho: float, idle: int, busy: int) -> float:
    """The window at load ρ: `idle` up to .5, `busy` from .85, geometric between. Not rounded."""
    if rho <= IDLE_LOAD or busy >= idle:
        return float(idle)
    if rho >= BUSY_LOAD:
        return float(busy)
    share = (rho - IDLE_LOAD) / (BUSY_LOAD - IDLE_LOAD)
    return float(idle * (busy / idle) ** share)


def drain_window(queued: int, slack_s: float, line: Line) -> int | None:
    """The smallest window that drains the queue within the slack, ⌈n / ⌊(slack − a·n)/c⌋⌉; None when none does."""
    spare = slack_s - line.a * queued
    if spare < line.c:
        return None
    return 1 if line.c <= 0.0 else math.ceil(queued / math.floor(spare / line.c))


SATURATED = 0.95
"""Of the throughput at the widest window: what more there is to gain beyond is not worth its latency."""


def saturation_window(line: Line, widest: int) -> int:
    """W_sat: the smallest window with 95 % of the throughput at the widest one."""
    target = SATURATED * line.rate(widest)
    # W/(c + aW) >= target  <=>  W·(1 − target·a) >= target·c; target·a < 1 because the rate is below 1/a
    return min(widest, max(1, math.ceil(target * line.c / (1.0 - target * line.a) - 1e-9)))
