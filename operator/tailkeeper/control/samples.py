"""What one read of an instance's workers says, whoever read it: Prometheus or a direct scrape.

Counters are cumulative since the worker's process started; nothing here is a rate yet, and nothing here is NaN."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import add, lt, sub
from typing import Final, Literal, NamedTuple


class InstanceKey(NamedTuple):
    """Which model instance of which policy."""

    namespace: str
    policy: str
    instance: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.policy}/{self.instance}"


class CounterKey(NamedTuple):
    """What the tuner's counters are split by."""

    generation: int
    """Settings generation that applied when the request arrived."""
    tier: str


class Counts(NamedTuple):
    """Requests of one tier under one settings generation. `late…` and `timeouts` count requests, `…_s` seconds.

    A tuple, since thousands are added and subtracted at every tick."""

    requests: float = 0.0
    """All that were sent: ok, late, shed, expired, cancelled, failed."""
    late: float = 0.0
    """Over the tier's SLA, or shed, expired, or failed for lack of time."""
    late_first_token: float = 0.0
    late_inter_token: float = 0.0
    timeouts: float = 0.0
    """Expired, shed, or failed for lack of time."""
    hold_s: float = 0.0
    """Waiting of the late ones by cause, and their execution."""
    busy_s: float = 0.0
    slot_s: float = 0.0
    exec_s: float = 0.0
    nn: float = 0.0
    """Σn², Σnk, Σk² over seconds, n requests ended and k late: what the design effect needs."""
    nk: float = 0.0
    kk: float = 0.0

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(*map(add, self, other))

    def less(self, earlier: "Counts") -> "Counts":
        """Growth since an earlier reading."""
        return Counts(*map(sub, self, earlier))

    def fell_below(self, earlier: "Counts") -> bool:
        """Whether any counter is lower than it was: the process began anew."""
        return any(map(lt, self, earlier))


NO_COUNTS: Final = Counts()


@dataclass(frozen=True, slots=True)
class Gauges:
    """A worker's present state. None and absent keys: the worker does not (yet) say."""

    window: float | None = None
    window_cap: float | None = None
    ceiling: float | None = None
    efficiency: float | None = None
    arrival_cv: float | None = None
    """Coefficient of variation of the gaps between arrivals; 1 is Poisson."""
    queue: Mapping[str, float] = field(default_factory=dict)
    """Waiting requests by tier."""
    latency_model: Mapping[str, float] = field(default_factory=dict)
    """Coefficients: `c`, `a` in seconds; or `alpha`, `beta`, `gamma`, `delta` in seconds with `prompt_tokens` and
    `output_tokens`, the mean size of a request."""


@dataclass(frozen=True, slots=True)
class PodSample:
    """One worker at one moment."""

    pod: str
    time_s: float
    """The sample's own timestamp (unix seconds), not when it was read."""
    counts: Mapping[CounterKey, Counts]
    busy_s: float = 0.0
    """Seconds that the engine ran forward passes."""
    work: float = 0.0
    """Requests, or tokens in continuous mode."""
    gauges: Gauges = Gauges()


class UnknownReason(StrEnum):
    """Why nothing can be said about an instance. Never to be taken for zero."""

    ABSENT = "Absent"
    """The series are not there."""
    NOT_FINITE = "NotFinite"
    """A counter is NaN or infinite."""
    STALE = "Stale"
    """Samples stopped growing newer."""
    PARTIAL = "Partial"
    """The answer lacks a worker that exists, or says itself that it is incomplete."""
    ERROR = "Error"
    """The source could not be read."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing can be said: of one instance, or of all."""

    reason: UnknownReason
    text: str
    """One line for people: what is wrong and what to do."""
    kind: Literal["unknown"] = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """One read for all instances. An instance in neither map has no series."""

    samples: Mapping[InstanceKey, tuple[PodSample, ...]] = field(default_factory=dict)
    faults: Mapping[InstanceKey, Unknown] = field(default_factory=dict)

    def of(self, key: InstanceKey) -> tuple[PodSample, ...] | Unknown:
        """That instance's samples; an empty tuple when it has no series."""
        return self.faults.get(key) or self.samples.get(key, ())
