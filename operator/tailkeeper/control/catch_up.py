"""What happened to the settings since the last tick: our step landed, it did not, or someone else moved a lever."""

from dataclasses import replace

from tailkeeper.api.enums import MoveCause, MoveOutcome
from tailkeeper.api.levers import Key, Move, Value, values_of
from tailkeeper.api.settings import Settings
from tailkeeper.control.decision import Ended
from tailkeeper.control.restraint import by_hand, made, reverses, rolled_back
from tailkeeper.control.state import State, Trial


def catch_up(state: State, settings: Settings, now_s: float) -> tuple[State, Ended | None]:
    """The state as of these settings; and the end of the trial before, when a later move cut it short."""
    if settings.generation == state.generation:
        # A step that was decided and is not in force was not written: it is decided anew if it is still right.
        return replace(state, proposed=None), None
    levers = tuple(Move(key, value) for key, value in values_of(settings).items())
    first_look = state.generation == 0
    trial = None if first_look else _what_moved(state, levers, settings, now_s)
    ended = None
    if trial is not None:
        cut_short = state.trial if trial.cause is not MoveCause.ROLLBACK else None
        if cut_short is not None:
            ended = Ended(cut_short.generation, cut_short.cause, MoveOutcome.KEPT, now_s - cut_short.at_s)
        if trial.cause is MoveCause.MANUAL:
            state = by_hand(state, {move.key for move in trial.taken})
        reversal = bool(reverses(trial.taken, _values(state.levers), state, now_s))
        if trial.cause is MoveCause.ROLLBACK and state.trial is not None:
            state = rolled_back(state, state.trial, now_s)
        state = made(state, trial, reversal)
    else:
        state = replace(state, trial=None)
    return (
        replace(
            state,
            generation=settings.generation,
            levers=levers,
            changed=not first_look,
            proposed=None,
            in_sync_since_s=None,
            clean_since_s=None,
        ),
        ended,
    )


def _what_moved(state: State, levers: tuple[Move, ...], settings: Settings, now_s: float) -> Trial | None:
    """Our own step if that is what is in force now, else a move by hand; None when only the spec changed."""
    proposed, now = state.proposed, _values(levers)
    if proposed is not None and all(now.get(taken.key) == taken.value for taken in proposed.taken):
        return replace(proposed, generation=settings.generation)
    changed = [(left, now[left.key]) for left in state.levers if left.key in now and now[left.key] != left.value]
    if not changed:
        return None
    return Trial(
        generation=settings.generation,
        cause=MoveCause.MANUAL,
        left=tuple(left for left, _ in changed),
        taken=tuple(Move(left.key, value) for left, value in changed),
        at_s=now_s,
        before=state.before,
        queued=state.queued,
    )


def _values(levers: tuple[Move, ...]) -> dict[Key, Value]:
    return {move.key: move.value for move in levers}
