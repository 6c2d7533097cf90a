"""What the tuner remembers of one instance between ticks. Frozen and JSON-able; a restarted operator may lose all of
it: then it only forgets what it was waiting for, and looks on for one whole look-back before it moves anything."""

from dataclasses import dataclass
from typing import Final

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.levers import Key, Move
from tailkeeper.control.judge import Objective
from tailkeeper.control.samples import UnknownReason
from tailkeeper.model.statistics import Proportion

GOOD_READS: Final = 3
"""After an Unknown, so many good reads in a row before anything is moved."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One objective of one tier, as it was under some settings."""

    tier: str
    objective: Objective
    sure: Proportion


@dataclass(frozen=True, slots=True)
class Before:
    """How things stood under the settings that a move left."""

    measured: tuple[Measured, ...] = ()
    rate_per_s: float = 0.0
    efficiency: float | None = None

    def of(self, tier: str, objective: Objective) -> Proportion:
        """That objective's ratio; nothing counted when it was not judged then."""
        for each in self.measured:
            if each.tier == tier and each.objective is objective:
                return each.sure
        return Proportion(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Trial:
    """A move whose effect is still being looked at."""

    generation: int
    """That it made; while it is only proposed, the one that it is expected to make."""
    cause: MoveCause
    left: tuple[Move, ...]
    """Values before."""
    taken: tuple[Move, ...]
    """Values after; the same levers in the same order."""
    at_s: float
    before: Before
    queued: float = 0.0
    """Requests waiting when it was made: their backlog is the old settings' doing."""
    attempt: "Try | None" = None
    """What it was to mend; None for a recovery, a rollback or a move by hand."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value that made things worse: nothing goes to it or beyond for a while."""

    taken: Move
    upward: bool
    """Beyond means above; else below."""
    until_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Which way a lever was last moved: what makes the next move a reversal."""

    key: Key
    upward: bool
    at_s: float
    rate_per_s: float
    """The load then."""


@dataclass(frozen=True, slots=True)
class Try:
    """A step against one cause, and how bad it was then."""

    cause: MoveCause
    tier: str
    excess: float
    """Times the allowed ratio of late ones."""
    at_s: float
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class State:
    """Start with `State()`."""

    generation: int = 0
    """Settings that were in force at the last tick; 0 before the first."""
    levers: tuple[Move, ...] = ()
    """Their levers: a later generation with other values was moved by someone else."""
    unknown: UnknownReason | None = None
    """Why it was last unknown, until enough good reads followed."""
    good_reads: int = 0
    changed: bool = False
    """The settings in force came since the first look: they have to settle."""
    in_sync_since_s: float | None = None
    """Since when every worker applies `generation`."""
    proposed: Trial | None = None
    """A move that was decided and is not yet seen in the settings."""
    trial: Trial | None = None
    queued: float = 0.0
    before: Before = Before()
    """The newest measurement under the settings in force."""
    clean_since_s: float | None = None
    breach_since_s: float | None = None
    reverted_in_s: float | None = None
    """How long the last breach took."""
    settle_factor: int = 1
    settle_doubled_s: float = 0.0
    bars: tuple[Bar, ...] = ()
    turns: tuple[Turn, ...] = ()
    reversals_s: tuple[float, ...] = ()
    tries: tuple[Try, ...] = ()
