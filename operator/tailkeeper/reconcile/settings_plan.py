"""Which settings document an instance should have now, and under which generation. Pure.

The ConfigMap is the record: the document, the move that made it, and the manual value that was acted on last, written
at once. The status repeats the document, so that levers survive the loss of the ConfigMap. The generation only grows:
past the ConfigMap's, past the status's, and past whatever a worker reports, because a worker refuses what is older than
what it applies (a cluster restored from a backup would otherwise never be in sync again)."""

from dataclasses import dataclass

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.levers import carry, changes, move, parse_moves
from tailkeeper.api.settings import LONGEST_LEAP, Settings
from tailkeeper.api.status import MoveRecord
from tailkeeper.reconcile.moves import Proposal

MOST_CHANGES = 16
"""As many as a record of a move holds."""


@dataclass(frozen=True)
class Record:
    """What the ConfigMap says."""

    settings: Settings | None = None
    """None when there is no ConfigMap, or its document does not parse."""
    intact: bool = False
    """The document is as we wrote it: nobody else changed it since."""
    generation_seen: int = 0
    """The generation that the document claims, whoever wrote it."""
    manual: str | None = None
    move: MoveRecord | None = None


@dataclass(frozen=True)
class Plan:
    """What the ConfigMap should say."""

    settings: Settings
    manual: str | None
    move: MoveRecord | None
    rewrite: bool
    """A new generation: the document differs from what is there."""
    complaint: str = ""
    """Why the manual value was refused."""
    took: Proposal | None = None
    """The proposal that it contains."""


def plan_settings(
    *,
    spec: Settings,
    record: Record,
    status_settings: Settings | None,
    highest_reported: int,
    manual: str | None,
    proposal: Proposal | None,
    now: str,
) -> Plan:
    """`spec`: what the policy alone gives (any generation). `manual`: the annotation as it is now. `now`: RFC 3339."""
    trusted = record.settings if record.intact else None
    base = trusted or status_settings
    known = max(trusted.generation if trusted else 0, status_settings.generation if status_settings else 0)
    claims = (claim for claim in (record.generation_seen, highest_reported) if claim <= known + LONGEST_LEAP)
    newest = max(known, *claims, 0)
    settings, cause, numbers = (carry(base, spec) if base else spec), MoveCause.SPEC, ""
    moved_by_spec = base is not None and not same_values(settings, base)

    took = None
    if proposal is not None and base is not None and not moved_by_spec and proposal.based_on == base.generation:
        allowed = carry(proposal.settings, spec)
        if same_values(allowed, proposal.settings):
            took = proposal
            settings, cause, numbers = proposal.settings, proposal.cause, proposal.numbers

    acted_on, complaint = record.manual, ""
    if manual is None:
        acted_on = None
    elif manual != record.manual:
        try:
            settings = move(settings, parse_moves(manual), spec)
            cause, numbers, acted_on = MoveCause.MANUAL, "", manual
        except ValueError as error:
            complaint = str(error)

    same = base is not None and same_values(settings, base)
    if trusted is not None and same and trusted.generation >= newest:
        return Plan(trusted, acted_on, record.move, rewrite=False, complaint=complaint, took=took)
    written = settings.but(generation=newest + 1)
    last_move = record.move
    if not same_values(settings, base or spec):
        changed = changes(base or spec, settings)[:MOST_CHANGES]
        last_move = MoveRecord(time=now, cause=cause, generation=written.generation, changes=changed, numbers=numbers)
    return Plan(written, acted_on, last_move, rewrite=True, complaint=complaint, took=took)


def same_values(one: Settings, other: Settings) -> bool:
    """Whether two documents say the same, whatever their generations."""
    return one.model_copy(update={"generation": other.generation}) == other
