"""`BatchingProfile`: what was learnt about one model on one kind of hardware."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tailkeeper.api.base import Contract, Count, DnsLabel, Int, Keyed, Rule, Str, Time, Tolerant, rules
from tailkeeper.api.enums import Engine
from tailkeeper.api.meta import ObjectMeta
from tailkeeper.api.names import API_VERSION, PROFILE_KIND
from tailkeeper.api.settings import LatencyPrior, Window
from tailkeeper.api.status import Condition, MoveRecord

Microseconds = Annotated[Int, Field(ge=0, le=86_400_000_000)]


class Hardware(Contract):
    """What a worker ran on; profiles match on all of it."""

    device: Annotated[Str, Field(min_length=1, max_length=128)] = Field(description="cpu, or the GPU's product name.")
    device_count: Annotated[Int, Field(ge=1, le=64)] = Field(1, description="Devices that one worker uses.")
    memory_mib: Count | None = Field(None, description="Memory of a device.")


class ProfileSpec(Contract):
    """What the profile is about. Immutable."""

    model_config = ConfigDict(
        json_schema_extra=rules(Rule("self == oldSelf", "spec is immutable: make a new BatchingProfile instead"))
    )

    model: Annotated[Str, Field(min_length=1, max_length=128)] = Field(description="The model, as instances name it.")
    engine: Engine = Field(description="What ran it.")
    hardware: Hardware


class WindowThroughput(Tolerant):
    """Measured work rate at one window."""

    window: Window = Field(description="The window.")
    work_per_second_milli: Count = Field(
        description="Thousandths of requests (tokens in continuous mode) per busy second."
    )


class GapBucket(Tolerant):
    """One bucket of the inter-arrival histogram."""

    upper_us: Microseconds = Field(description="Upper edge of the bucket.")
    per_million: Annotated[Int, Field(ge=0, le=1_000_000)] = Field(description="Gaps per million that are in it.")


class Arrivals(Tolerant):
    """The arrival distribution at a review."""

    rate_per_hour: Count = Field(description="Requests per hour.")
    cv_percent: Count = Field(description="Coefficient of variation of the gaps between arrivals; 100 for Poisson.")
    dispersion_percent: Count = Field(0, description="Variance over mean of the counts; 100 for Poisson.")
    gaps: Annotated[list[GapBucket], Field(max_length=64)] = Field(
        default_factory=list, description="Histogram of the gaps between arrivals."
    )


class TierQuantiles(Tolerant):
    """Latency quantiles of one tier at a review."""

    tier: DnsLabel = Field(description="The tier.")
    count: Count = Field(description="Requests that the quantiles are over.")
    p50_us: Microseconds = Field(description="Median of the end-to-end latency.")
    p95_us: Microseconds = Field(description="95th percentile of it.")
    p99_us: Microseconds = Field(description="99th percentile of it.")
    batch_wait_p99_us: Microseconds = Field(0, description="99th percentile of the time that batches were kept open.")


class ReviewRecord(Tolerant):
    """Distributions as they were at the last review."""

    time: Time = Field(description="When.")
    arrivals: Arrivals
    tiers: Annotated[list[TierQuantiles], Field(max_length=8), Keyed("tier")] = Field(
        default_factory=list, description="Latency of each tier."
    )


class TuningRecord(MoveRecord):
    """One move and what it did, as the profile keeps it."""

    instance: Annotated[Str, Field(max_length=192)] = Field(description="NAMESPACE/POLICY/INSTANCE that was moved.")
    p99_before_us: Microseconds | None = Field(None, description="p99 of the default tier before the move.")
    p99_after_us: Microseconds | None = Field(None, description="p99 of the default tier after it.")
    efficiency_percent_before: Annotated[Int, Field(ge=0, le=1000)] | None = Field(
        None, description="Efficiency before the move."
    )
    efficiency_percent_after: Annotated[Int, Field(ge=0, le=1000)] | None = Field(
        None, description="Efficiency after it."
    )


class ProfileStatus(Tolerant):
    """What was learnt."""

    latency_model: LatencyPrior | None = None
    throughput: Annotated[list[WindowThroughput], Field(max_length=32), Keyed("window")] = Field(
        default_factory=list, description="Measured work rate per window."
    )
    saturation_window: Window | None = Field(
        None, description="Smallest window that gives (nearly) all the throughput."
    )
    recommended_window_idle: Window | None = Field(None, description="What to write as windowIdle.")
    recommended_window_busy: Window | None = Field(None, description="What to write as windowBusy.")
    last_review: ReviewRecord | None = None
    tuning: Annotated[list[TuningRecord], Field(max_length=50)] = Field(
        default_factory=list, description="The newest moves and what they did, newest last."
    )
    updated: Time | None = Field(None, description="When something was last learnt.")
    conditions: Annotated[list[Condition], Field(max_length=16), Keyed("type")] = Field(
        default_factory=list, description="What is and is not the case."
    )


class BatchingProfile(Contract):
    """What was learnt about one model on one kind of hardware, for the next instance to start from."""

    api_version: Literal["tailkeeper.dev/v1alpha1"] = API_VERSION
    kind: Literal["BatchingProfile"] = PROFILE_KIND
    metadata: ObjectMeta
    spec: ProfileSpec
    status: ProfileStatus | None = None
