"""The window of request mode, from the arrivals and the learnt latency. Smooth, with hysteresis."""

import math
from dataclasses import dataclass

from gpu_worker.scheduling.plan import Plan
from tailkeeper.api.enums import Mode
from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.iterations import Cost, keeping_up, pace_window
from tailkeeper.model.windows import (
    Line,
    between,
    drain_window,
    load,
    peak_rate,
    sla_window,
    stable_window,
)

STEP = 0.1
"""The window stays while the one wanted is within a tenth of it: a rate that wavers moves nothing."""


@dataclass(slots=True)
class WindowState:
    """What the window is now."""

    window: int
    cap: int


def cap(plan: Plan, line: Line | None, memory: int | None) -> int:
    """W_cap = min(windowIdle, W_sla, ceiling, memory), at least 1."""
    most = min(plan.idle, plan.ceiling)
    if memory is not None:
        most = min(most, memory)
    if line is not None:
        most = min(most, sla_window(plan.sla_s - plan.margin_s, line))
    return max(1, most)


def settle(
    state: WindowState, plan: Plan, line: Line | None, arrivals: ArrivalModel, memory: int | None, now_s: float
) -> int:
    """Moves the window to where the load wants it, and returns it."""
    if not plan.dynamic:
        state.window = plan.busy if memory is None else max(1, min(plan.busy, memory))
        state.cap = state.window
        return state.window
    state.cap = most = cap(plan, line, memory)
    if line is None:
        state.window = min(plan.busy, most)
        return state.window
    rate = arrivals.rate_per_s(now_s)
    peak = peak_rate(rate, arrivals.dispersion, plan.sla_s)
    stable = stable_window(peak, line)
    if stable is None:
        state.window = most  # λa >= 1: no window keeps up; take the widest and shed
        return most
    # at W_cap, never at the present window: a narrow one would make its own load and stay narrow
    rho = load(peak, most, line)
    wanted = between(rho, most, min(most, max(plan.busy, stable)))
    if abs(wanted - state.window) > STEP * state.window or wanted >= most:
        state.window = max(1, min(most, round(wanted)))
    state.window = min(state.window, most)
    return state.window


def drain(window: int, most: int, queued: int, slack_s: float, line: Line | None) -> int:
    """With more waiting than fit: the smallest window that still drains them within the oldest one's slack."""
    if line is None:
        return window
    needed = drain_window(queued, slack_s, line)
    return most if needed is None else max(window, min(most, math.ceil(needed)))


CROWDED = 0.25
"""With more waiting than is served in this share of their deadline the window opens for throughput, but only so far
that nine in ten still end in time: a burst taken whole would make all of them late."""


@dataclass(frozen=True, slots=True)
class Pressing:
    """The highest tier that runs or waits: what its sequences are like, and how fast they come."""

    deadline_s: float
    rate_per_s: float
    prompt: float
    output: float
    longest: float
    """The 99th percentile of its outputs, tokens: n*, because the SLA is a p99."""
    waiting: int
    long: float
    """The 90th percentile of its outputs, tokens."""

    def load(self, window: int, cost: Cost) -> float:
        """ρ: the share of time that the engine must run for these alone."""
        return self.rate_per_s * cost.per_request(window, self.prompt, self.output)


def settle_iterations(
    state: WindowState,
    plan: Plan,
    cost: Cost | None,
    pressing: Pressing | None,
    memory: int | None,
) -> int:
    """The same for continuous mode: how many sequences work in an iteration.

    Not more than W_sla, or the longest outputs come late; but as many as it takes to keep up, or all do."""
    most = plan.idle if plan.mode is Mode.FIXED else min(plan.idle, plan.ceiling) if plan.dynamic else plan.busy
    most = max(1, most if memory is None else min(most, memory))
    state.cap = most
    if plan.mode is Mode.FIXED or not plan.dynamic:
        state.window = most
        return most
    if cost is None or pressing is None:
        state.window = min(plan.busy, most)
        return state.window
    prompt, output = pressing.prompt, pressing.output
    stable = keeping_up(pressing.rate_per_s, cost, prompt, output) or most
    sla = pace_window(pressing.deadline_s, plan.margin, cost, prompt, output, pressing.longest)
    rho = pressing.load(most, cost)
    wanted = between(rho, most, min(most, max(plan.busy, stable)))
    wanted = min(wanted, max(sla, stable))
    if pressing.waiting * cost.per_request(wanted, prompt, output) > CROWDED * pressing.deadline_s:
        wanted = max(wanted, pace_window(pressing.deadline_s, plan.margin, cost, prompt, output, pressing.long))
    if abs(wanted - state.window) > STEP * state.window or wanted >= most:
        state.window = max(1, min(most, round(wanted)))
    state.window = min(state.window, most)
    return state.window
