"""Ticks as JSON lines, and their replay: the same inputs give the same decisions, today and in a bug report."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from tailkeeper.api.settings import Settings
from tailkeeper.control.decide import decide
from tailkeeper.control.decision import Decision
from tailkeeper.control.freeze import Situation
from tailkeeper.control.move import Bounds
from tailkeeper.control.observation import Observation
from tailkeeper.control.state import State


@dataclass(frozen=True, slots=True)
class Tick:
    """Everything that went into one decision, and what came out."""

    now_s: float
    state: State
    observation: Observation
    settings: Settings
    bounds: Bounds
    situation: Situation
    next_state: State
    decision: Decision


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded tick that is decided otherwise now."""

    number: int
    """Of the line, from 1."""
    recorded: Tick
    next_state: State
    decision: Decision


_TICK: TypeAdapter[Tick] = TypeAdapter(Tick)
_STATE: TypeAdapter[State] = TypeAdapter(State)


def decide_and_record(
    state: State, observation: Observation, settings: Settings, bounds: Bounds, situation: Situation, now_s: float
) -> Tick:
    """`decide`, with all of it kept together."""
    next_state, decision = decide(state, observation, settings, bounds, situation, now_s)
    return Tick(now_s, state, observation, settings, bounds, situation, next_state, decision)


def to_line(tick: Tick) -> str:
    """One line of JSON without a line break."""
    return _TICK.dump_json(tick).decode()


def from_line(line: str) -> Tick:
    """Reads what `to_line` wrote. Raises ValueError."""
    return _TICK.validate_json(line)


def state_to_json(state: State) -> str:
    """A state for whoever keeps it over a restart."""
    return _STATE.dump_json(state).decode()


def state_from_json(text: str) -> State:
    """Raises ValueError when it is of another version or broken: then start with `State()`."""
    return _STATE.validate_json(text)


def replay(lines: Iterable[str]) -> Iterator[Difference]:
    """Decides every recorded tick anew and yields those that differ. Raises ValueError for an unreadable line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        tick = from_line(line)
        again = decide_and_record(tick.state, tick.observation, tick.settings, tick.bounds, tick.situation, tick.now_s)
        if (again.next_state, again.decision) != (tick.next_state, tick.decision):
            yield Difference(number, tick, again.next_state, again.decision)
