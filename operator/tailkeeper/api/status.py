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

    type: ConditionType = Field(description="What is or is not the case.")
    status: ConditionStatus = Field(description="Whether it is.")
    reason: Annotated[Str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")] = Field(
        description="Why, in one word."
    )
    message: Text = Field("", description="Why, for people.")
    observed_generation: Count | None = Field(None, description="Generation of the policy that it is about.")
    last_transition_time: Time = Field(description="When the status last changed.")


class Change(Tolerant):
    """One lever from a value to another, as people read them (`8`, `20ms`, `on`)."""

    lever: Lever = Field(description="What was moved.")
    tier: DnsLabel | None = Field(None, description="Whose, for a lever that every tier has.")
    before: Annotated[Str, Field(max_length=64)] = Field(description="Its value before.")
    after: Annotated[Str, Field(max_length=64)] = Field(description="Its value after.")


class MoveRecord(Tolerant):
    """One move: when, why, what, with which numbers, and what became of it."""

    time: Time = Field(description="When.")
    cause: MoveCause = Field(description="Why.")
    generation: Generation = Field(description="The settings generation that it made.")
    changes: Annotated[list[Change], Field(max_length=16)] = Field(default_factory=list, description="What it moved.")
    numbers: Text = Field("", description="The numbers that caused it, as one line of key=value.")
    outcome: MoveOutcome = Field(MoveOutcome.PENDING, description="What became of it.")


class InstanceStatus(Tolerant):
    """What is known of one instance."""

    name: DnsLabel = Field(description="Name of the instance in the spec.")
    ready: Bool = Field(False, description="Whether it serves with all its workers.")
    reason: Annotated[Str, Field(max_length=64)] = Field("", description="Why (not), in one word.")
    message: Text = Field("", description="Why (not), for people.")
    desired_replicas: Count = Field(0, description="Workers that there should be.")
    ready_replicas: Count = Field(0, description="Workers that serve.")
    settings_generation: Count = Field(0, description="Newest generation written; only grows.")
    applied_generation: Count = Field(
        0, description="Oldest generation that a ready worker says it applies; 0 while none answers."
    )
    effective: Settings | None = Field(
        None,
        description="The settings as written to the workers: class, policy and instance put together, and the moves.",
    )
    last_move: MoveRecord | None = Field(None, description="The newest move.")
    paused: Bool = Field(False, description="Whether an annotation keeps the tuner's hands off.")


class PolicyStatus(Tolerant):
    """What is the case, as far as the operator knows."""

    observed_generation: Count | None = Field(None, description="Generation of the policy that the status is about.")
    conditions: Annotated[list[Condition], Field(max_length=16), Keyed("type")] = Field(
        default_factory=list, description="What is and is not the case."
    )
    instances: Annotated[list[InstanceStatus], Field(max_length=32), Keyed("name")] = Field(
        default_factory=list, description="What is known of each instance."
    )
    summary: Text = Field("", description="Ready instances of all, as 2/3.")
