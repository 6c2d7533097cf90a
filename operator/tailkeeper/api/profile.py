"""`BatchingProfile`: what was learnt about one model on one kind of hardware."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tailkeeper.api.base import Contract, Count, DnsLabel, Int, Keyed, Rule, Str, Time, Tolerant, rules
from tailkeeper.api.enums import Engine
from tailkeeper.api.names import API_VERSION, PROFILE_KIND
from tailkeeper.api.policy import ObjectMeta
from tailkeeper.api.settings import LatencyPrior, Window
from tailkeeper.api.status import Condition, MoveRecord

Microseconds = Annotated[Int, Field(ge=0, le=86_400_000_000)]


class Hardware(Contract):
    """What a worker ran on; profiles match on all of it."""

    device: Annotated[Str, Field(min_length=1, max_length=128)] = Field(description="cpu, or the GPU's product name.")
    device_count: Annotated[Int, Field(ge=1, le=64)] = 1
    memory_mib: Count | None = None


class ProfileSpec(Contract):
    """What the profile is about. Immutable."""

    model_config = ConfigDict(
        json_schema_extra=rules(Rule("self == oldSelf", "spec is immutable: make a new BatchingProfile instead"))
    )

    model: Annotated[Str, Field(min_length=1, max_length=128)]
    engine: Engine
    hardware: Hardware


class WindowThroughput(Tolerant):
    """Measured work rate at one window."""

    window: Window
    work_per_second_milli: Count = Field(
        description="Thousandths of requests (tokens in continuous mode) per busy second."
    )


class GapBucket(Tolerant):
    """One bucket of the inter-arrival histogram."""

    upper_us: Microseconds
    per_million: Annotated[Int, Field(ge=0, le=1_000_000)]


class Arrivals(Tolerant):
    """The arrival distribution at a review."""

    rate_per_hour: Count
    cv_percent: Count
    dispersion_percent: Count = 0
    gaps: Annotated[list[GapBucket], Field(max_length=64)] = Field(default_factory=list)


class TierQuantiles(Tolerant):
    """Latency quantiles of one tier at a review."""

    tier: DnsLabel
    count: Count
    p50_us: Microseconds
    p95_us: Microseconds
    p99_us: Microseconds
    batch_wait_p99_us: Microseconds = 0


class ReviewRecord(Tolerant):
    """Distributions as they were at the last review."""

    time: Time
    arrivals: Arrivals
    tiers: Annotated[list[TierQuantiles], Field(max_length=8), Keyed("tier")] = Field(default_factory=list)


class TuningRecord(MoveRecord):
    """One move and what it did, as the profile keeps it."""

    instance: Annotated[Str, Field(max_length=192)]
    p99_before_us: Microseconds | None = None
    p99_after_us: Microseconds | None = None
    efficiency_percent_before: Annotated[Int, Field(ge=0, le=1000)] | None = None
    efficiency_percent_after: Annotated[Int, Field(ge=0, le=1000)] | None = None


class ProfileStatus(Tolerant):
    """What was learnt."""

    latency_model: LatencyPrior | None = None
    throughput: Annotated[list[WindowThroughput], Field(max_length=32), Keyed("window")] = Field(default_factory=list)
    saturation_window: Window | None = None
    recommended_window_idle: Window | None = None
    recommended_window_busy: Window | None = None
    last_review: ReviewRecord | None = None
    tuning: Annotated[list[TuningRecord], Field(max_length=50)] = Field(default_factory=list)
    updated: Time | None = None
    conditions: Annotated[list[Condition], Field(max_length=16), Keyed("type")] = Field(default_factory=list)


class BatchingProfile(Contract):
    """What was learnt about one model on one kind of hardware, for the next instance to start from."""

    api_version: Literal["tailkeeper.dev/v1alpha1"] = API_VERSION
    kind: Literal["BatchingProfile"] = PROFILE_KIND
    metadata: ObjectMeta
    spec: ProfileSpec
    status: ProfileStatus | None = None
