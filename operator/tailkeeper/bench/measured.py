"""What a run measured, request by request, as columns to compute with."""

import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailkeeper.bench.outcome import ROW_FIELDS, Outcome
from tailkeeper.bench.plan import Plan
from tailkeeper.model.load_trace import LoadRequest

ROW_TYPE: Final = np.dtype(list(ROW_FIELDS))

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Generator:
    """How the sending processes did."""

    processes: int
    sent: int
    connections: int
    cpu_fraction: float
    """Of one core, the busiest process over the run."""
    realtime: bool
    """Whether the system let them run before other processes."""


@dataclass(frozen=True)
class Measured:
    """Everything that one run brought."""

    schedule: tuple[LoadRequest, ...]
    rows: bytes
    """Packed `outcome.ROW`s in order of ending; requests that were never sent have none."""
    gaps_s: "Mapping[str, array.array[float]]"
    """Times between tokens, by tier."""
    errors: Mapping[str, int]
    generator: Generator
    model: str
    started_at: float
    """Time of day of the start, seconds since 1970."""
    interrupted: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """Requests in order of intended send time; all arrays are as long as there are requests."""

    index: NDArray[np.uint32]
    tier: NDArray[np.str_]
    intended_s: Floats
    lag_ms: Floats
    answer_ms: Floats
    """Whole answer less intended send time; NaN where no good answer came."""
    latency_ms: Floats
    """The same, with the tier's timeout in the place of what is missing: what percentiles are over."""
    first_token_ms: Floats
    """Likewise for the first token; NaN where answers are not streamed."""
    hold_ms: Floats
    busy_ms: Floats
    slot_ms: Floats
    exec_ms: Floats
    output_tokens: NDArray[np.uint32]
    status: NDArray[np.uint16]
    outcome: NDArray[np.uint8]
    attempts: NDArray[np.uint8]
    late: Bools
    """Not answered well within the SLA and its own deadline. False throughout for requests that have neither."""

    def where(self, chosen: Bools) -> "Columns":
        """Return the chosen requests only."""
        return Columns(**{name: column[chosen] for name, column in vars(self).items()})

    def __len__(self) -> int:
        return len(self.index)

    @property
    def waiting_ms(self) -> Floats:
        """All waiting: hold, busy and slot; NaN where the server did not say."""
        return self.hold_ms + self.busy_ms + self.slot_ms


def columns(plan: Plan, measured: Measured) -> Columns:
    """Put rows and schedule together."""
    rows = np.frombuffer(measured.rows, ROW_TYPE)
    rows = rows[np.argsort(rows["index"], kind="stable")]
    requests = [measured.schedule[i] for i in rows["index"]]
    timeout_ms = np.array([plan.limits_of(r.tier).timeout_ms for r in requests], float)
    # A caller that has gone at its own deadline has no use for an answer within the SLA.
    limit_ms = np.array(
        [min(plan.limits_of(r.tier).sla_ms or np.inf, r.deadline_ms or np.inf) for r in requests], float
    )
    answered = rows["outcome"] == Outcome.ANSWERED
    answer_ms = np.where(answered, rows["latency_s"].astype(float) * 1e3, np.nan)
    first_ms = rows["first_token_s"].astype(float) * 1e3
    if plan.target.streams:
        first_ms = np.where(answered & np.isfinite(first_ms), first_ms, timeout_ms)
    return Columns(
        index=rows["index"],
        tier=np.array([r.tier for r in requests], dtype=np.str_),
        intended_s=np.array([r.arrival_s for r in requests], float),
        lag_ms=rows["lag_s"].astype(float) * 1e3,
        answer_ms=answer_ms,
        latency_ms=np.where(answered, answer_ms, timeout_ms),
        first_token_ms=first_ms,
        hold_ms=rows["hold_ms"].astype(float),
        busy_ms=rows["busy_ms"].astype(float),
        slot_ms=rows["slot_ms"].astype(float),
        exec_ms=rows["exec_ms"].astype(float),
        output_tokens=rows["output_tokens"],
        status=rows["status"],
        outcome=rows["outcome"],
        attempts=rows["attempts"],
        late=np.isfinite(limit_ms) & ~(answered & (answer_ms <= limit_ms)),
    )
