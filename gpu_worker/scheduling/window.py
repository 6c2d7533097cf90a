"""The window of request mode, from the arrivals and the learnt latency. Smooth, with hysteresis."""

import math
from dataclasses import dataclass

from gpu_worker.scheduling.plan import Plan
from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.iterations import Cost, keeping_up
from tailkeeper.model.lengths import OutputLengths
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
        most = min(most, sla_window(plan.sla_s, line))
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


def settle_iterations(
    state: WindowState,
    plan: Plan,
    cost: Cost | None,
    lengths: OutputLengths,
    arrivals: ArrivalModel,
    memory: int | None,
    now_s: float,
) -> int:
    """The same for continuous mode: how many sequences hold a slot."""
    most = min(plan.idle, plan.ceiling)
    if memory is not None:
        most = min(most, memory)
    if not plan.dynamic:
        most = plan.busy if memory is None else min(plan.busy, memory)
        state.window = state.cap = max(1, most)
        return state.window
    state.cap = most = max(1, most)
    if cost is None or not lengths.seen:
        state.window = min(plan.busy, most)
        return state.window
    prompt, output = lengths.mean_prompt, lengths.mean_output
    rate = arrivals.rate_per_s(now_s)
    peak = peak_rate(rate, arrivals.dispersion, plan.sla_s)
    stable = keeping_up(peak, cost, prompt, output)
    if stable is None:
        state.window = most
        return most
    rho = peak * cost.per_request(most, prompt, output)
    wanted = between(rho, most, min(most, max(plan.busy, stable)))
    if abs(wanted - state.window) > STEP * state.window or wanted >= most:
        state.window = max(1, min(most, round(wanted)))
    state.window = min(state.window, most)
    return state.window
