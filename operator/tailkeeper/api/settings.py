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
LONGEST_LEAP = 1_000_000
"""A generation further ahead than this is a forgery or a bug: following it would use up the numbers there are. The
operator does not count on from it, a worker that has settings refuses it."""

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

    name: DnsLabel = Field(description="What callers ask for.")
    deadline_ms: Milliseconds = Field(description="The tier's SLA: p99 of its end-to-end latency.")
    timeout_ms: Milliseconds | None = Field(
        None, description="When the caller is gone; absent: deadline + 2·T(W), which only the worker knows."
    )
    max_hold_ms: Annotated[Int, Field(ge=0, le=DAY_MS)] = Field(
        description="Lever: the longest that an incomplete batch is kept open for a request of this tier."
    )
    preempts: Bool = Field(False, description="Lever: may take the slot of a running request of a lower tier.")
    reserve_percent: Annotated[Int, Field(ge=0, le=MAX_RESERVED_PERCENT)] = Field(
        0, description="Lever: share of a batch kept for this tier's requests that are due."
    )
    boost_ms: Annotated[Int, Field(ge=0, le=DAY_MS)] = Field(
        0,
        description="Lever: offset of the ordering key: the tier is ordered as if its deadline were this much shorter.",
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

    fixed_ns: Nanoseconds = Field(description="Of every batch or iteration, however small.")
    per_request_ns: Nanoseconds = Field(0, description="Of each request in a batch.")
    per_prefill_token_ns: Nanoseconds = Field(0, description="Of each prompt token forwarded in an iteration.")
    per_sequence_ns: Nanoseconds = Field(0, description="Of each sequence that an iteration decodes.")
    per_kv_token_ns: Nanoseconds = Field(0, description="Of each token that the decoding sequences look back on.")


class Settings(Tolerant):
    """Everything that a worker may change without a restart."""

    format_version: Annotated[Int, Field(ge=1, le=FORMAT_VERSION)] = Field(
        FORMAT_VERSION, description="Of this document; a worker refuses one that it does not know."
    )
    generation: Generation = Field(description="Number of this version of the settings. It only grows.")
    policy_namespace: Namespace = Field(description="Namespace of the policy.")
    policy: DnsLabel = Field(description="Name of the policy.")
    model_instance: DnsLabel = Field(description="Name of the instance.")
    traffic_class: TrafficClass = Field(description="What matters about the traffic.")
    mode: Mode = Field(description="How batches form.")
    window_dynamic: Bool = Field(description="Whether the window follows the arrivals; else it is windowBusy.")
    window_idle: Window = Field(description="Window when idle, and the most that it may ever be.")
    window_busy: Window = Field(description="Preferred window when busy.")
    priority_queue: Bool = Field(description="Whether requests are ordered by tier; else first in, first out.")
    first_token_sla_ms: Milliseconds | None = Field(None, description="p99 of the time to the first token.")
    inter_token_sla_ms: Milliseconds | None = Field(None, description="p99 of the time between tokens of a stream.")
    timeout_target_per_mille: Annotated[Int, Field(ge=0, le=1000)] = Field(
        description="Requests per thousand that may time out."
    )
    min_efficiency_percent: Percent = Field(
        description="Least work per busy second, as a share of that at the saturation window."
    )
    tiers: Annotated[list[TierSettings], Field(min_length=1, max_length=8), Keyed("name")] = Field(
        description="The tiers, from the highest to the lowest."
    )
    default_tier: DnsLabel = Field(description="Tier of a request that names none.")
    ceiling: Window = Field(description="Lever: the most that the window may be, at most windowIdle.")
    margin_percent: Annotated[Int, Field(ge=0, le=MAX_MARGIN_PERCENT)] = Field(
        DEFAULT_MARGIN_PERCENT,
        description="Lever: share of the SLA kept free when a batch starts at the last moment; costs GPU time.",
    )
    token_budget: Annotated[Int, Field(ge=1, le=MAX_TOKEN_BUDGET)] | None = Field(
        None, description="Lever: tokens forwarded in one iteration; absent: no bound but the window's."
    )
    latency_prior: LatencyPrior | None = Field(
        None, description="A latency model to start from until the worker has its own."
    )
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
