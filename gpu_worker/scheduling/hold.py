"""The hold rule: how long an idle engine is kept waiting for more company, and never longer than it is worth."""

import math

from gpu_worker.scheduling.backlog import Backlog
from gpu_worker.scheduling.entries import Entry
from gpu_worker.scheduling.plan import Plan
from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.latency import BatchLatency

KAPPA = 5.0
"""κ: one fixed cost c saved is worth κ·c seconds of requests' waiting."""


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
