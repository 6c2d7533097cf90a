"""What keeps the tuner from running in circles: pins, bars, and a budget of reversals."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.levers import Key, Move, Value
from tailkeeper.control.judge import Finding
from tailkeeper.control.move import Bounds
from tailkeeper.control.state import Bar, State, Trial, Turn

BAR_S: Final = 1800.0
TURN_S: Final = 14_400.0
"""A move back within this time is a reversal."""
HOUR_S: Final = 3600.0
BUDGET_S: Final = 2 * HOUR_S
"""Recovery reverses once in this time."""
SAME_LOAD: Final = 0.3
"""Loads within this share of each other are the same."""
SETTLE_FACTOR_MAX: Final = 8
TRIES: Final = 3
REORDERING: Final = (MoveCause.PRIORITY, MoveCause.FIRST_TOKEN)
REORDERINGS: Final = 4
PROGRESS: Final = 0.7
"""A ratio under this share of what it was is progress."""
CALM_S: Final = 7200.0
"""After so long without a rollback the settling time is halved again."""


def permitted(wanted: tuple[Move, ...], bounds: Bounds, state: State, now_s: float) -> tuple[Move, ...]:
    """Those moves that no pin and no bar forbids."""
    return tuple(
        move
        for move in wanted
        if move.key.lever not in bounds.pinned and not any(_forbids(bar, move, now_s) for bar in state.bars)
    )


def reverses(wanted: tuple[Move, ...], now: Mapping[Key, Value], state: State, now_s: float) -> tuple[Turn, ...]:
    """The last turns that this would go back on; `now` are the levers' values without it."""
    turns = {turn.key: turn for turn in state.turns if now_s - turn.at_s < TURN_S}
    return tuple(
        turns[move.key]
        for move in wanted
        if move.key in turns and turns[move.key].upward != upward(Move(move.key, now[move.key]), move)
    )


def may_recover(reversed_turns: tuple[Turn, ...], state: State, now_s: float) -> bool:
    """A recovery that reverses may have to be reversed itself: one in two hours makes one reversal an hour."""
    return not reversed_turns or not any(now_s - at_s < BUDGET_S for at_s in state.reversals_s)


def may_mend(reversed_turns: tuple[Turn, ...], rate_per_s: float, state: State, now_s: float) -> bool:
    """At the same load, to and fro once an hour: what neither opening nor closing mends, the lever does not mend."""
    comparable = any(same_load(rate_per_s, turn.rate_per_s) for turn in reversed_turns)
    return not comparable or not any(now_s - at_s < HOUR_S for at_s in state.reversals_s)


def exhausted(cause: MoveCause, finding: Finding, rate_per_s: float, state: State, now_s: float) -> bool:
    """Whether steps against that cause, within the hour, left it as bad as it was at this load, or were too many.

    Without this the levers of a cause that is not the true one wind up to their bounds, one step after the other.
    Whether a new order of the queue helps shows only over bursts and lulls, so these steps are counted at any load."""
    tried = [each for each in state.tries if (each.cause, each.tier) == (cause, finding.tier)]
    tried = [each for each in tried if now_s - each.at_s < HOUR_S]
    in_vain = [
        each for each in tried if same_load(rate_per_s, each.rate_per_s) and finding.excess > PROGRESS * each.excess
    ]
    return len(in_vain) >= TRIES or (cause in REORDERING and len(tried) >= REORDERINGS)


def made(state: State, trial: Trial, reversal: bool) -> State:
    """The state once that move is in force."""
    now_s, keys = trial.at_s, {move.key for move in trial.taken}
    kept = tuple(turn for turn in state.turns if turn.key not in keys and now_s - turn.at_s < TURN_S)
    new = tuple(
        Turn(taken.key, upward(left, taken), now_s, trial.before.rate_per_s)
        for left, taken in zip(trial.left, trial.taken, strict=True)
    )
    reversals = tuple(at_s for at_s in state.reversals_s if now_s - at_s < BUDGET_S)
    tries = tuple(each for each in state.tries if now_s - each.at_s < HOUR_S)
    return replace(
        state,
        trial=None if trial.cause is MoveCause.ROLLBACK else trial,
        turns=kept + new,
        reversals_s=(*reversals, now_s) if reversal else reversals,
        bars=tuple(bar for bar in state.bars if bar.until_s > now_s),
        tries=(*tries, trial.attempt) if trial.attempt is not None else tries,
    )


def rolled_back(state: State, trial: Trial, now_s: float) -> State:
    """Bars what that move took, and gives later ones twice the time to settle."""
    bars = tuple(
        Bar(taken, upward(left, taken), now_s + BAR_S) for left, taken in zip(trial.left, trial.taken, strict=True)
    )
    factor = min(SETTLE_FACTOR_MAX, state.settle_factor * 2)
    return replace(state, bars=state.bars + bars, settle_factor=factor, settle_doubled_s=now_s)


def by_hand(state: State, keys: Collection[Key]) -> State:
    """Levers that somebody set start anew: what held the tuner back was learnt under circumstances that are no more."""
    return replace(
        state,
        bars=tuple(bar for bar in state.bars if bar.taken.key not in keys),
        turns=tuple(turn for turn in state.turns if turn.key not in keys),
        reversals_s=(),
        tries=(),
    )


def calmed(state: State, now_s: float) -> State:
    """Halves the settling time again after a calm while."""
    if state.settle_factor == 1 or now_s - state.settle_doubled_s < CALM_S:
        return state
    return replace(state, settle_factor=state.settle_factor // 2, settle_doubled_s=now_s)


def upward(left: Move, taken: Move) -> bool:
    """No bound at all counts as the highest value."""
    if left.value is None or taken.value is None:
        return taken.value is None
    return taken.value > left.value


def same_load(one_per_s: float, other_per_s: float) -> bool:
    """Whether two loads may be compared."""
    return other_per_s > 0 and abs(one_per_s / other_per_s - 1) <= SAME_LOAD


def _forbids(bar: Bar, wanted: Move, now_s: float) -> bool:
    key: Key = bar.taken.key
    if now_s >= bar.until_s or key != wanted.key:
        return False
    if bar.taken.value is None or wanted.value is None:
        return bar.taken.value == wanted.value
    return wanted.value >= bar.taken.value if bar.upward else wanted.value <= bar.taken.value
