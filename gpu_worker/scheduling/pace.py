"""Who works in an iteration, and how much prompt is prefilled beside them.

Every iteration takes as long for all who are in it. A sequence that may still need m tokens and has s seconds of slack
needs iterations of at most s/m: its pace. All of the highest tier that runs take part; lower tiers fill what the pace
of the most pressing one leaves, and are left out when it leaves nothing."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.scheduling.entries import StreamEntry
from tailkeeper.model.iterations import Cost

LEAST_CHUNK = 16
"""Tokens of prompt that always get their turn."""
LONE_CHUNK = 10.0
"""With nobody decoding a chunk takes at most this multiple of α: a newcomer waits no longer, α costs a tenth."""
LONGEST_GAP = 1.8
"""With prefill an iteration takes at most this multiple of the median one, or of what it takes without: a long prompt
must not stop the streams. Unless prompts come faster than that, or would not be prefilled in time:"""
HURRY = 0.5
"""this share of the slack that they have."""


DUE = 2.0
"""A lower tier's sequence is due when it needs iterations under this multiple of the median."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an iteration must keep to."""

    window: int
    """Sequences that work; more only when they are all of the highest tier, or due in a reserve."""

    margin_s: float
    usual_s: float
    """The median iteration."""
    inter_token_s: float
    """The longest gap between tokens."""
    whole_s: float
    """A usual prompt, taken whole: in chunks it would hold a slot without decoding. 0 where gaps have a bound."""
    prefill_share: float
    """Of the time that prompts of the highest tier need, as they arrive."""
    tokens: float
    """The token budget; infinite when there is none."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one sequence gets in this iteration; `prefill` 0 means it decodes."""

    entry: StreamEntry
    prefill: int = 0


def order(entry: StreamEntry) -> tuple[int, float, int]:
    """In this order the running are kept, and work: by tier, then key."""
    return entry.tier.index, entry.key, entry.seq


def pace_s(entry: StreamEntry, now_s: float, cost: Cost, remaining: float, margin_s: float) -> float:
    """The longest iteration that still lets this request end in time; infinite when none does."""
    slack_s = entry.deadline_s - margin_s - now_s - cost.beta * (entry.target - entry.prefilled)
    pace = slack_s / remaining
    return pace if pace >= cost.alpha + cost.gamma else math.inf


def compose(
    running: list[StreamEntry], now_s: float, cost: Cost, remaining: Callable[[StreamEntry], float], bounds: Bounds
) -> list[Share]:
    """The iteration: at least one sequence works. `running` is in `order`; `remaining`: tokens that may still come."""
    highest = running[0].tier.index
    limit_s = bounds.inter_token_s
    owed: dict[int, int] = {}
    shares: list[Share] = []
    prefilling: list[StreamEntry] = []
    seconds = cost.alpha
    pending_s, hurry = 0.0, bounds.prefill_share
    for entry in running:
        if entry.tier.index == highest:
            left = remaining(entry)
            limit_s = min(limit_s, pace_s(entry, now_s, cost, left, bounds.margin_s))
        if entry.prefilled < entry.target:
            prefilling.append(entry)
            if entry.tier.index == highest:
                pending_s += cost.beta * (entry.target - entry.prefilled)
                slack_s = entry.deadline_s - bounds.margin_s - now_s - left * bounds.usual_s
                if slack_s > pending_s:
                    hurry = max(hurry, pending_s / (HURRY * slack_s))
            continue
        own_s = cost.gamma + cost.delta * (entry.target + entry.generated)
        if (
            entry.tier.index > highest
            and shares
            and (seconds + own_s > limit_s or len(shares) >= bounds.window)
            and not _owed(entry, now_s, cost, remaining, bounds, owed)
        ):
            continue
        if len(shares) >= bounds.tokens:
            break
        shares.append(Share(entry))
        seconds += own_s
    if prefilling:
        # a share h of the time from now on: h = p/(s + p) of an iteration with p of prefill beside s
        hurry_s = seconds * hurry / max(0.1, 1.0 - hurry)
        _prefill(prefilling, highest, shares, seconds, limit_s, cost, bounds, hurry_s)
    return shares


def _owed(
    entry: StreamEntry,
    now_s: float,
    cost: Cost,
    remaining: Callable[[StreamEntry], float],
    bounds: Bounds,
    owed: dict[int, int],
) -> bool:
    """Whether a lower tier's sequence takes part whatever the pace: it is due, and within its tier's reserve."""
    tier = entry.tier
    taken = owed.get(tier.index, 0)
    if tier.reserve <= 0.0 or taken >= max(1.0, tier.reserve * bounds.window):
        return False
    if not entry.reserved and pace_s(entry, now_s, cost, remaining(entry), bounds.margin_s) >= DUE * bounds.usual_s:
        return False
    owed[tier.index] = taken + 1
    return True


def _prefill(
    prefilling: list[StreamEntry],
    highest: int,
    shares: list[Share],
    seconds: float,
    limit_s: float,
    cost: Cost,
    bounds: Bounds,
    hurry_s: float,
) -> None:
    """One prompt after the other, in order: two half-done prompts help nobody."""
    most_s = LONE_CHUNK * cost.alpha
    if shares:
        most_s = max(LONGEST_GAP * bounds.usual_s - seconds, (LONGEST_GAP - 1.0) * seconds, hurry_s, bounds.whole_s)
        most_s = min(most_s, bounds.inter_token_s - seconds)
    spare = bounds.tokens - len(shares)
    least = LEAST_CHUNK
    for entry in prefilling:
        top = entry.tier.index == highest or entry.reserved
        spare_s = most_s if top else min(most_s, limit_s - seconds)
        tokens = spare_s / cost.beta if cost.beta > 0.0 else math.inf
        if top or not shares:
            tokens = max(tokens, least)
        chunk = int(min(tokens, max(spare, 1.0), entry.target - entry.prefilled))
        if chunk < 1:
            break
        shares.append(Share(entry, chunk))
        spare -= chunk
        seconds += chunk * cost.beta
        most_s -= chunk * cost.beta
        least = 0
        if spare < 1.0 or most_s <= 0.0:
            break
