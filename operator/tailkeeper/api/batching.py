"""What a policy and each of its instances may say of batching and of tiers. Nothing here has a default: what is not
said is inherited (`resolve`)."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from tailkeeper.api.base import DAY_MS, Bool, Contract, DnsLabel, Int, Milliseconds, Percent, Rule, rules
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import MAX_RESERVED_PERCENT, Window


class Batching(Contract):
    """Batching settings; the policy's hold for every instance that does not override them."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.windowBusy) || !has(self.windowIdle) || self.windowBusy <= self.windowIdle",
                "windowBusy must not exceed windowIdle: lower windowBusy or raise windowIdle",
                field=".windowBusy",
            )
        )
    )

    mode: Mode | None = Field(
        None,
        description="continuous (iteration level), request (batch by batch) or fixed "
        "(wait until windowIdle requests are there, or for a tier's maxHoldMs: the old way). Default by engine.",
    )
    window_dynamic: Bool | None = Field(
        None,
        description="Derive the window from the arrivals between windowBusy and "
        "windowIdle. When false the window is windowBusy.",
    )
    window_idle: Window | None = Field(None, description="Window when idle, and the most that it may ever be.")
    window_busy: Window | None = Field(None, description="Preferred window when busy.")
    priority_queue: Bool | None = Field(
        None, description="Order requests by tier. When false, tiers are labels on one first-in first-out queue."
    )
    tail_latency_sla_ms: Milliseconds | None = Field(
        None, description="p99 of the end-to-end latency of the default tier, in milliseconds."
    )
    first_token_sla_ms: Milliseconds | None = Field(None, description="p99 of the time to the first token.")
    inter_token_sla_ms: Milliseconds | None = Field(None, description="p99 of the time between tokens of a stream.")
    timeout_target_per_mille: Annotated[Int, Field(ge=0, le=1000)] | None = Field(
        None, description="Requests per thousand that may time out."
    )
    min_efficiency_percent: Percent | None = Field(
        None, description="Least work per busy second, as a share of that at the saturation window."
    )

    @model_validator(mode="after")
    def _windows_ordered(self) -> Self:
        if self.window_busy is not None and self.window_idle is not None and self.window_busy > self.window_idle:
            raise ValueError(f"windowBusy ({self.window_busy}) must not exceed windowIdle ({self.window_idle})")
        return self


class Tier(Contract):
    """A priority level of requests. What is left out comes from the traffic class, by the tier's name."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.timeoutMs) || !has(self.deadlineMs) || self.timeoutMs >= self.deadlineMs",
                "timeoutMs must not be under deadlineMs: raise timeoutMs or leave it out",
                field=".timeoutMs",
            )
        )
    )

    name: DnsLabel = Field(description="What callers ask for, and how metrics tell tiers apart.")
    deadline_ms: Milliseconds | None = Field(
        None, description="The tier's SLA: p99 of its end-to-end latency, in milliseconds."
    )
    timeout_ms: Milliseconds | None = Field(
        None,
        description="When the caller is gone: a request older than this is not worth serving. At least deadlineMs.",
    )
    max_hold_ms: Annotated[Int, Field(ge=0, le=DAY_MS)] | None = Field(
        None, description="Longest that an incomplete batch is kept open for a request of this tier; 0 starts at once."
    )
    preempts: Bool | None = Field(None, description="May take the slot of a running request of a lower tier.")
    reserve_percent: Annotated[Int, Field(ge=0, le=MAX_RESERVED_PERCENT)] | None = Field(
        None, description="Share of a batch kept for this tier's requests that are due."
    )

    @model_validator(mode="after")
    def _timeout_after_deadline(self) -> Self:
        if self.timeout_ms is not None and self.deadline_ms is not None and self.timeout_ms < self.deadline_ms:
            raise ValueError(f"timeoutMs ({self.timeout_ms}) must not be under deadlineMs ({self.deadline_ms})")
        return self
