"""What one tick says: a step to take, one to recommend, or the reason for none; and what became of the step before."""

from dataclasses import dataclass

from tailkeeper.api.enums import MoveCause, MoveOutcome, StillReason
from tailkeeper.api.levers import Move
from tailkeeper.control.judge import Finding


@dataclass(frozen=True, slots=True)
class Step:
    """One change of settings: usually one lever, in a severe breach two."""

    cause: MoveCause
    left: tuple[Move, ...]
    """The levers at their values before."""
    moves: tuple[Move, ...]
    """The same levers at their new values."""
    finding: Finding | None = None
    """What it is to mend; None for a recovery or a rollback."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an earlier move's trial."""

    generation: int
    """Settings generation that the move made."""
    cause: MoveCause
    outcome: MoveOutcome
    """Kept or RolledBack."""
    after_s: float
    """Since the move."""
    efficiency_before: float | None = None
    efficiency_after: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Exactly one of `step`, `recommended`, `still` is there."""

    step: Step | None = None
    """To be written as the next settings generation."""
    recommended: Step | None = None
    """What mode Auto would do; nothing is to be written."""
    still: StillReason | None = None
    why: str = ""
    """One line for people."""
    numbers: str = ""
    """The numbers that caused it, as one line of key=value; empty when there are none."""
    sla_met: bool | None = None
    """None: too little is known."""
    capacity_short: bool = False
    """No setting would do: more workers are needed."""
    replicas_needed: int | None = None
    """Workers that would serve the present arrivals at 85 % of their capacity; None while that is not known."""
    ended: Ended | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.step, self.recommended, self.still)) != 1:
            raise ValueError("a decision is a step, a recommendation or a reason to stand still: exactly one of them")
