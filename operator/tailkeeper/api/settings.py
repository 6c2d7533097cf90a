"""The settings document: what a worker applies live. It travels as JSON in a ConfigMap of its own.

A worker older than its operator must still read it (an operator upgrade restarts no worker), so unknown fields are
ignored here, and a field that changes meaning takes a new `formatVersion`, which an older worker refuses whole."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from tailkeeper.api.base import Bool, Contract, DnsLabel, Int, Milliseconds, Percent
from tailkeeper.api.enums import Mode, TrafficClass

FORMAT_VERSION = 1
MAX_BYTES = 65_536

Window = Annotated[Int, Field(ge=1, le=65_536)]
"""A number of requests that one batch, or one iteration's running set, may hold."""

DEFAULT_MARGIN_PERCENT = 10
MIN_MARGIN_PERCENT = 2
MAX_MARGIN_PERCENT = 90


class _Tolerant(Contract):
    model_config = ConfigDict(extra="ignore")


class TierSettings(_Tolerant):
    """One tier with nothing left to default. Tiers are listed from the highest to the lowest."""

    name: DnsLabel
    deadline_ms: Milliseconds
    timeout_ms: Milliseconds | None = Field(
        None, description="When the caller is gone; absent: deadline + 2·T(W), which only the worker knows."
    )
    max_hold_ms: Annotated[Int, Field(ge=0, le=86_400_000)]
    preempts: Bool = False
    reserve_percent: Annotated[Int, Field(ge=0, le=90)] = 0
    boost_ms: Annotated[Int, Field(ge=0, le=86_400_000)] = Field(
        0, description="Offset of the ordering key: the tier is ordered as if its deadline were this much shorter."
    )

    @model_validator(mode="after")
    def _timeout_after_deadline(self) -> Self:
        if self.timeout_ms is not None and self.timeout_ms < self.deadline_ms:
            raise ValueError(f"tier {self.name}: timeoutMs ({self.timeout_ms}) under deadlineMs ({self.deadline_ms})")
        return self


class LatencyPrior(_Tolerant):
    """A latency model to start from until a worker has its own. Integers in nanoseconds.

    Request mode `T(b) = fixed + perRequest·b`; continuous mode `T = fixed + perPrefillToken·prefill tokens +
    perSequence·decoding sequences + perKvToken·KV tokens`."""

    fixed_ns: Annotated[Int, Field(ge=0)]
    per_request_ns: Annotated[Int, Field(ge=0)] = 0
    per_prefill_token_ns: Annotated[Int, Field(ge=0)] = 0
    per_sequence_ns: Annotated[Int, Field(ge=0)] = 0
    per_kv_token_ns: Annotated[Int, Field(ge=0)] = 0


class Settings(_Tolerant):
    """Everything that a worker may change without a restart."""

    format_version: Annotated[Int, Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    generation: Annotated[Int, Field(ge=1)]
    policy_namespace: DnsLabel
    policy: DnsLabel
    model_instance: DnsLabel
    traffic_class: TrafficClass
    mode: Mode
    window_dynamic: Bool
    window_idle: Window
    window_busy: Window
    priority_queue: Bool
    first_token_sla_ms: Milliseconds | None = None
    inter_token_sla_ms: Milliseconds | None = None
    timeout_target_per_mille: Annotated[Int, Field(ge=0, le=1000)]
    min_efficiency_percent: Percent
    tiers: Annotated[list[TierSettings], Field(min_length=1, max_length=8)]
    default_tier: DnsLabel
    ceiling: Window = Field(description="Lever: the most that the window may be, at most windowIdle.")
    margin_percent: Annotated[Int, Field(ge=0, le=MAX_MARGIN_PERCENT)] = DEFAULT_MARGIN_PERCENT
    token_budget: Annotated[Int, Field(ge=1, le=1_048_576)] | None = Field(
        None, description="Lever: tokens forwarded in one iteration; absent: no bound but the window's."
    )
    latency_prior: LatencyPrior | None = None

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        if self.window_busy > self.window_idle:
            raise ValueError(f"windowBusy ({self.window_busy}) must not exceed windowIdle ({self.window_idle})")
        if self.ceiling > self.window_idle:
            raise ValueError(f"ceiling ({self.ceiling}) must not exceed windowIdle ({self.window_idle})")
        names = [tier.name for tier in self.tiers]
        if len(set(names)) != len(names):
            raise ValueError("tiers: names must be unique")
        if self.default_tier not in names:
            raise ValueError(f"defaultTier {self.default_tier} is not one of {', '.join(names)}")
        reserved = sum(tier.reserve_percent for tier in self.tiers)
        if reserved > 90:
            raise ValueError(f"tiers: reserves add up to {reserved} %, over 90 %")
        return self

    @property
    def sla_ms(self) -> int:
        """SLA of the instance in milliseconds: the deadline of its default tier."""
        return self.tier(self.default_tier).deadline_ms

    def tier(self, name: str) -> TierSettings:
        """The tier of that name; KeyError when there is none."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise KeyError(name)


def parse_settings(document: str | bytes) -> Settings:
    """Reads a settings document. Raises ValueError (pydantic's ValidationError is one) when it is refused whole."""
    size = len(document)
    if size > MAX_BYTES:
        raise ValueError(f"settings document of {size} bytes, over {MAX_BYTES}")
    return Settings.model_validate_json(document, by_alias=True, by_name=False)
