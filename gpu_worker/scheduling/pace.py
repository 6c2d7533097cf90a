"""Who works in an iteration, and how much prompt is prefilled beside them.

Every iteration takes as long for all who are in it. A sequence that may still need m tokens and has s seconds of slack
needs iterations of at most s/m: its pace. The most pressing one sets the length of the iteration, the others join in
the order of their pace as long as it stays within that: patient ones fill what is free, and are left out when it is
not."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.scheduling.entries import Entry
from tailkeeper.model.iterations import Cost

QUANTILE = 0.99
"""Of the tokens that may still come: the SLA is a p99."""
LEAST_CHUNK = 16
PREFILL_SHARE = 0.9
"""Prefill beside decoding streams at most this share of what they take themselves: no gap over twice the usual one."""
LONE_CHUNK = 10.0
"""With nobody decoding a chunk takes at most this multiple of α: a newcomer waits no longer, α costs a tenth."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an iteration must keep to."""

    margin_s: float
    least_sequences: int
    """As many must work as keep up with the arrivals, whatever the pace."""
    prefill_rate: float
    """Prompt tokens per second that arrive: so many must be prefilled, whatever the pace."""
    inter_token_s: float
    """The longest gap between tokens."""
    tokens: float
    """The token budget; infinite when there is none."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one sequence gets in this iteration; `prefill` 0 means it decodes."""

    entry: Entry
    prefill: int = 0


def pace_s(entry: Entry, now_s: float, cost: Cost, remaining: float, margin_s: float) -> float:
    """The longest iteration that still lets this request end in time; infinite when none does."""
    prefill_s = cost.beta * (entry.target - entry.prefilled)
    least_s = cost.alpha + cost.gamma
    for limit_s in (entry.deadline_s - margin_s, entry.hard_s):
        pace = (limit_s - now_s - prefill_s) / remaining
        if pace >= least_s:
            return pace
    return math.inf


def compose(
    running: list[Entry], now_s: float, cost: Cost, remaining: Callable[[Entry], float], bounds: Bounds
) -> list[Share]:
    """The iteration: at least one sequence works."""
    highest = min(entry.tier.index for entry in running)
    order: list[tuple[bool, float, int, Entry]] = []
    limit_s = bounds.inter_token_s
    for entry in running:
        pace = pace_s(entry, now_s, cost, remaining(entry), bounds.margin_s)
        lower = entry.tier.index > highest
        order.append((lower, pace, entry.seq, entry))
        if pace < limit_s and not lower:
            limit_s = pace
    order.sort()
    shares: list[Share] = []
    prefilling: list[Entry] = []
    seconds = cost.alpha
    for _, _, _, entry in order:
        if entry.prefilled < entry.target:
            prefilling.append(entry)
            continue
        own_s = cost.gamma + cost.delta * (entry.target + entry.generated)
        if shares and len(shares) >= bounds.least_sequences and seconds + own_s > limit_s:
            continue
        if len(shares) >= bounds.tokens:
            break
        shares.append(Share(entry))
        seconds += own_s
    if prefilling:
        _prefill(prefilling, shares, seconds, limit_s, cost, bounds)
    return shares


def _prefill(
    prefilling: list[Entry], shares: list[Share], seconds: float, limit_s: float, cost: Cost, bounds: Bounds
) -> None:
    """One prompt after the other, the most pressing first: two half-done prompts help nobody."""
    spare_s = limit_s - seconds
    spare_s = min(spare_s, PREFILL_SHARE * seconds if shares else LONE_CHUNK * cost.alpha)
    if cost.beta > 0.0:
        keeping_up = bounds.prefill_rate * seconds / max(0.1, 1.0 - bounds.prefill_rate * cost.beta)
        tokens = max(spare_s / cost.beta, keeping_up, LEAST_CHUNK)
    else:
        tokens = math.inf
    tokens = min(tokens, max(bounds.tokens - len(shares), 1.0))
    for entry in prefilling:
        if tokens < 1.0:
            break
        chunk = int(min(tokens, entry.target - entry.prefilled))
        shares.append(Share(entry, chunk))
        tokens -= chunk
