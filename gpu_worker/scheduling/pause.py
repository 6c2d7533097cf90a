"""The hold rule between iterations: the engine pauses while too few are there to share what an iteration costs.

A sequence that decodes alone pays all of α for every token. While nobody is pressing, a pause lets company come that
shares it. Whoever holds a slot pauses with the rest, so each is held until `maxHoldMs` after its arrival at most, and
no longer than it can afford should its output be long."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.scheduling.backlog import Backlog
from gpu_worker.scheduling.entries import StreamEntry
from gpu_worker.scheduling.hold import KAPPA
from gpu_worker.scheduling.plan import Plan
from gpu_worker.scheduling.queues import TierQueue
from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.iterations import Cost, efficient_window
from tailkeeper.model.lengths import OutputLengths

NO_TIME_TO_LOSE = 0.7
"""From this load of the highest tier on the engine does not pause: the next burst would miss that time."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Who would pause; at least one."""

    waiting: Backlog[StreamEntry]
    running: list[StreamEntry]
    remaining: Callable[[StreamEntry], float]
    """Tokens that a request may still need."""
    rested_s: float
    """Since the last iteration."""


def until_s(
    who: Paused, plan: Plan, arrivals: ArrivalModel, cost: Cost, lengths: OutputLengths, widest: int, now_s: float
) -> float:
    """When the engine goes on if nobody else comes; now or earlier: at once.

    Enough company is what the wanted efficiency takes; for those whose waiting costs little, W_sat (the caller has
    looked). It goes on before that when the most pressing must, or nobody is likely to come soon enough."""
    waiting, running = who.waiting, who.running
    weight = waiting.weight + sum([entry.tier.weight for entry in running])
    prompt, output = lengths.mean_prompt, lengths.mean_output
    enough = efficient_window(cost, prompt, output, widest, plan.efficiency)
    if waiting.n + len(running) >= enough and weight >= KAPPA * cost.alpha / (cost.alpha + cost.gamma):
        return now_s
    step_s = cost.alpha + enough * (cost.sequence(prompt, output) + cost.beta * prompt / max(1.0, output))
    must_s = math.inf
    if running and plan.inter_token_sla_s is not None:
        must_s = now_s - who.rested_s + (1.0 - plan.margin) * plan.inter_token_sla_s - step_s
    for entry in running:
        must_s = min(must_s, entry.arrival_s + entry.tier.max_hold_s, _latest_start_s(entry, who, plan, cost, step_s))
        if must_s <= now_s:
            return now_s
    for queue in waiting.queues:
        if queue.n:
            must_s = min(must_s, _queue_start_s(queue, who, plan, cost, step_s))
    if must_s <= now_s:
        return must_s
    worth_s = KAPPA * cost.alpha * output / weight
    lonely_s = arrivals.last_s + arrivals.silence_until_s(worth_s, max(0.0, now_s - arrivals.last_s))
    return min(must_s, lonely_s, arrivals.quiet_at_s(1.0 / worth_s))


def _latest_start_s(entry: StreamEntry, who: Paused, plan: Plan, cost: Cost, step_s: float) -> float:
    """deadline − margin − what is left of its prompt, and of an output that may become long."""
    left_s = cost.beta * (entry.target - entry.prefilled) + who.remaining(entry) * step_s
    return entry.deadline_s - plan.margin_s - left_s


def _queue_start_s(queue: TierQueue[StreamEntry], who: Paused, plan: Plan, cost: Cost, step_s: float) -> float:
    oldest, head = queue.oldest(), queue.head()
    if oldest is None or head is None:
        return -math.inf
    hold_s = queue.plan.max_hold_s
    if plan.first_token_sla_s is not None:
        hold_s = min(hold_s, (1.0 - plan.margin) * plan.first_token_sla_s - cost.beta * head.target - step_s)
    return min(oldest.arrival_s + hold_s, _latest_start_s(head, who, plan, cost, step_s))
