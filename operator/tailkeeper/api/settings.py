"""The settings document: what a worker applies live. It travels as JSON in a ConfigMap of its own.

A worker older than its operator must still read it (an operator upgrade restarts no worker), so unknown fields are
ignored here, and a field that changes meaning takes a new `formatVersion`, which an older worker refuses whole."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from tailkeeper.api.base import (
    DAY_MS,
    Bool,
    DnsLabel,
    Generation,
    Int,
    Keyed,
    Milliseconds,
    Namespace,
    Percent,
    Str,
    Tolerant,
    Unique,
)
from tailkeeper.api.enums import Mode, TrafficClass

FORMAT_VERSION = 1
MAX_BYTES = 65_536

Window = Annotated[Int, Field(ge=1, le=65_536)]
"""A number of requests that one batch, or one iteration's running set, may hold."""

Nanoseconds = Annotated[Int, Field(ge=0, le=DAY_MS * 1_000_000)]

DEFAULT_MARGIN_PERCENT = 10
MIN_MARGIN_PERCENT = 2
MAX_MARGIN_PERCENT = 90
MAX_TOKEN_BUDGET = 1_048_576
MAX_RESERVED_PERCENT = 90
"""Of a batch, all tiers together: a tenth at least is free for whoever is most urgent."""

MoveKey = Annotated[
    Str,
    StringConstraints(pattern=r"^[a-zA-Z]+(\.[a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=80),
]
"""One value that a move changes: `ceiling`, or `maxHold.interactive` where every tier has its own."""


class TierSettings(Tolerant):
    """One tier with nothing left to default. Tiers are listed from the highest to the lowest."""

    name: DnsLabel
    deadline_ms: Milliseconds
    timeout_ms: Milliseconds | None = Field(
        None, description="When the caller is gone; absent: deadline + 2·T(W), which only the worker knows."
    )
    max_hold_ms: Annotated[Int, Field(ge=0, le=DAY_MS)]
    preempts: Bool = False
    reserve_percent: Annotated[Int, Field(ge=0, le=MAX_RESERVED_PERCENT)] = 0
    boost_ms: Annotated[Int, Field(ge=0, le=DAY_MS)] = Field(
        0, description="Offset of the ordering key: the tier is ordered as if its deadline were this much shorter."
    )

    @model_validator(mode="after")
    def _timeout_after_deadline(self) -> Self:
        if self.timeout_ms is not None and self.timeout_ms < self.deadline_ms:
            raise ValueError(f"tier {self.name}: timeoutMs ({self.timeout_ms}) under deadlineMs ({self.deadline_ms})")
        return self


class LatencyPrior(Tolerant):
    """A latency model to start from until a worker has its own. Integers in nanoseconds.

    Request mode `T(b) = fixed + perRequest·b`; continuous mode `T = fixed + perPrefillToken·prefill tokens +
    perSequence·decoding sequences + perKvToken·KV tokens`."""

    fixed_ns: Nanoseconds
    per_request_ns: Nanoseconds = 0
    per_prefill_token_ns: Nanoseconds = 0
    per_sequence_ns: Nanoseconds = 0
    per_kv_token_ns: Nanoseconds = 0


class Settings(Tolerant):
    """Everything that a worker may change without a restart."""

    format_version: Annotated[Int, Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    generation: Generation
    policy_namespace: Namespace
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
    tiers: Annotated[list[TierSettings], Field(min_length=1, max_length=8), Keyed("name")]
    default_tier: DnsLabel
    ceiling: Window = Field(description="Lever: the most that the window may be, at most windowIdle.")
    margin_percent: Annotated[Int, Field(ge=0, le=MAX_MARGIN_PERCENT)] = DEFAULT_MARGIN_PERCENT
    token_budget: Annotated[Int, Field(ge=1, le=MAX_TOKEN_BUDGET)] | None = Field(
        None, description="Lever: tokens forwarded in one iteration; absent: no bound but the window's."
    )
    latency_prior: LatencyPrior | None = None
    moved: Annotated[list[MoveKey], Field(max_length=48), Unique()] = Field(
        default_factory=list,
        description="What moves have set apart from the spec, sorted. These keep their values when the spec changes, "
        "as far as its bounds allow; everything else follows the spec.",
    )

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        if self.window_busy > self.window_idle:
            raise ValueError(f"windowBusy ({self.window_busy}) must not exceed windowIdle ({self.window_idle})")
        if self.ceiling > self.window_idle:
            raise ValueError(f"ceiling ({self.ceiling}) must not exceed windowIdle ({self.window_idle})")
        names = [tier.name for tier in self.tiers]
        if self.default_tier not in names:
            raise ValueError(f"defaultTier {self.default_tier} is not one of {', '.join(names)}")
        reserved = sum(tier.reserve_percent for tier in self.tiers)
        if reserved > MAX_RESERVED_PERCENT:
            raise ValueError(f"tiers: reserves add up to {reserved} %, over {MAX_RESERVED_PERCENT} %")
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
    size = len(document.encode() if isinstance(document, str) else document)
    if size > MAX_BYTES:
        raise ValueError(f"settings document of {size} bytes, over {MAX_BYTES}")
    return Settings.model_validate_json(document, by_alias=True, by_name=False)
