"""The report of a run: what `-o json` writes. Its JSON schema is documentation that scripts may rely on.

Times in milliseconds have `_ms` in their name, those in seconds `_s`; ratios are from 0 to 1. A number that cannot be
known, such as a wait that the server does not report, is null and never 0.
"""

import json
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Final = "tailkeeper.bench/v1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Quantiles(_Part):
    """A distribution, in milliseconds. A quantile is the smallest value with at least that share at or below it."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float
    p99_low: float
    """Lower end of the 95 % interval of the p99."""
    p99_high: float | None
    """Upper end; null when there are too few requests to bound it."""


class Outcomes(_Part):
    """How many requests ended how. All but `unfinished` are counted in ratios and percentiles."""

    ok: int
    """Answered within the SLA and its own deadline, or answered at all where it has neither."""
    late: int
    """Answered over the SLA or after its own deadline."""
    shed: int
    """429."""
    expired: int
    """504."""
    timeout: int
    """No whole answer within the client's timeout."""
    error: int
    """Another status, a broken connection, an answer that is none."""
    unfinished: int
    """Under way when the run was stopped."""


class Waits(_Part):
    """Where the time went of requests that were answered or expired, as the server's `Server-Timing` says."""

    hold_ms: Quantiles
    """The batch wait: engine idle, batch kept open to fill."""
    busy_ms: Quantiles
    """The batch that ran at arrival."""
    slot_ms: Quantiles
    """Later batches that left without the request."""
    exec_ms: Quantiles
    """From joining a batch to the end, of the answered."""
    waiting_ms: Quantiles
    """hold + busy + slot."""


class BreachReport(_Part):
    """A stretch in which more than 1 % were late; seconds from the start of the load, by intended send time."""

    first_late_s: float
    inside_s: float | None
    """Begin of the first of three 5 s buckets in a row with at most 1 % late; null: not before the end."""
    lasted_s: float | None


class Point(_Part):
    """One bucket of a time series, by intended send time."""

    start_s: float
    sent: int
    late_ratio: float | None
    timeout_ratio: float | None
    p50_ms: float | None
    p99_ms: float | None
    hold_p99_ms: float | None


class Series(_Part):
    """A time series of one tier. Warm-up is not in it."""

    bucket_s: float
    points: tuple[Point, ...]


class TierReport(_Part):
    """One tier, or all of them together."""

    tier: str
    sla_ms: float | None
    timeout_ms: float | None
    """What a missing answer counts as; null in `total`, where each counts as its own tier's."""
    sent: int
    sent_per_s: float
    answered_per_s: float
    outcomes: Outcomes
    statuses: dict[str, int]
    """By HTTP status; "none" where no answer came."""
    late_ratio: float | None
    """Not answered well within the SLA: late, shed, expired, timeout, error. Null without an SLA."""
    timeout_ratio: float
    """shed + expired + timeout."""
    error_ratio: float
    latency_ms: Quantiles | None
    """Intended send time to the whole answer, over all requests sent; a missing answer counts as the timeout."""
    first_token_ms: Quantiles | None
    """Streams only, likewise."""
    inter_token_ms: Quantiles | None
    """Between tokens of answered streams."""
    output_tokens_per_s: float | None
    waits: Waits | None
    """Null when no answer had a Server-Timing header."""
    breaches: tuple[BreachReport, ...]
    series: tuple[Series, ...]


class SendLag(_Part):
    """Sent less intended, in milliseconds."""

    p50: float
    p99: float
    max: float


class GeneratorReport(_Part):
    """Whether the load was sent as planned. When `kept_up` is false all other numbers are of another load."""

    kept_up: bool
    why_not: str | None
    send_lag_ms: SendLag
    max_send_lag_ms: float
    processes: int
    connections: int
    cpu_fraction: float
    """Of one core, the busiest sending process over the run."""
    realtime: bool
    """Whether the system let the senders run before other processes; else lag is what the machine had left."""


class ErrorCount(_Part):
    """What went wrong, and how often."""

    what: str
    count: int


class Report(_Part):
    """One run."""

    schema_: Literal["tailkeeper.bench/v1"] = Field(default=SCHEMA, alias="schema")
    url: str
    api: str
    model: str
    started_at: str
    """RFC 3339, UTC."""
    warmup_s: float
    duration_s: float
    """Length of what is measured; shorter than planned when interrupted."""
    seed: int
    interrupted: bool
    generator: GeneratorReport
    total: TierReport
    tiers: tuple[TierReport, ...]
    errors: tuple[ErrorCount, ...]
    warnings: tuple[str, ...]

    def tier(self, name: str) -> TierReport:
        """Return one tier's part.

        Raises:
            KeyError: there is no such tier.
        """
        for tier in self.tiers:
            if tier.tier == name:
                return tier
        raise KeyError(name)

    def to_json(self) -> str:
        """Return the JSON text."""
        return self.model_dump_json(indent=2, by_alias=True)


def schema_json() -> str:
    """Return the JSON schema of a report, as it is kept in the docs."""
    return json.dumps(Report.model_json_schema(by_alias=True, mode="serialization"), indent=2) + "\n"


if __name__ == "__main__":
    print(schema_json(), end="")
