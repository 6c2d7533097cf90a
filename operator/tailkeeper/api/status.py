"""`status` of a BatchingPolicy. It changes on meaning only: a number that moves by itself belongs into metrics.

It is read by operators older than the one that wrote it (after a rollback), so unknown fields are ignored."""

from typing import Annotated

from pydantic import Field

from tailkeeper.api.base import Bool, Count, DnsLabel, Generation, Keyed, Str, Time, Tolerant
from tailkeeper.api.enums import ConditionStatus, ConditionType, Lever, MoveCause, MoveOutcome
from tailkeeper.api.settings import Settings

Text = Annotated[Str, Field(max_length=1024)]


class Condition(Tolerant):
    """One condition, as the Kubernetes API conventions have it."""

    type: ConditionType
    status: ConditionStatus
    reason: Annotated[Str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    message: Text = ""
    observed_generation: Count | None = None
    last_transition_time: Time


class Change(Tolerant):
    """One lever from a value to another, as people read them (`8`, `20ms`, `on`)."""

    lever: Lever
    tier: DnsLabel | None = None
    before: Annotated[Str, Field(max_length=64)]
    after: Annotated[Str, Field(max_length=64)]


class MoveRecord(Tolerant):
    """One move: when, why, what, with which numbers, and what became of it."""

    time: Time
    cause: MoveCause
    generation: Generation
    changes: Annotated[list[Change], Field(max_length=16)] = Field(default_factory=list)
    numbers: Text = Field("", description="The numbers that caused it, as one line of key=value.")
    outcome: MoveOutcome = MoveOutcome.PENDING


class InstanceStatus(Tolerant):
    """What is known of one instance."""

    name: DnsLabel
    ready: Bool = False
    reason: Annotated[Str, Field(max_length=64)] = ""
    message: Text = ""
    desired_replicas: Count = 0
    ready_replicas: Count = 0
    settings_generation: Count = Field(0, description="Newest generation written; only grows.")
    applied_generation: Count = Field(
        0, description="Oldest generation that a ready worker says it applies; 0 while none answers."
    )
    effective: Settings | None = Field(None, description="The settings after class, policy and instance defaults.")
    last_move: MoveRecord | None = None
    paused: Bool = False


class PolicyStatus(Tolerant):
    """`status` of a BatchingPolicy."""

    observed_generation: Count | None = None
    conditions: Annotated[list[Condition], Field(max_length=16), Keyed("type")] = Field(default_factory=list)
    instances: Annotated[list[InstanceStatus], Field(max_length=32), Keyed("name")] = Field(default_factory=list)
    summary: Text = Field("", description="Ready instances of all, for the printer column: 2/3.")
