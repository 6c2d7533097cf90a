"""What the worker's loop and its scheduler say to each other. Plain data; times are seconds on one monotonic clock.

The loop owns the clock, the engine and the content of requests; the scheduler owns the order. The loop calls `submit`
when a request arrives, `next` whenever the engine is free and something may have changed (an arrival, a finished step,
a due timer), `finished` when a step ends, and `tick` for timers while a step runs. A request is answered exactly once:
by the `Answer` of `submit`, `cancel`, `tick`, `next` or `finished`, whichever comes first. `finished` also takes steps
that the scheduler did not start (a warm-up's): they only teach it how long a step takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar, dataclass_transform

from tailkeeper.api.settings import Settings

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Frozen to the type checker; at run time a plain dataclass, because a frozen one takes five times as long to make
    (1.5 µs against .3), and every request needs three of them."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Outcome(StrEnum):
    """How a request ended; the `outcome` label of `tailkeeper_requests_total`."""

    OK = "ok"
    LATE = "late"
    SHED = "shed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ERROR = "error"


class Cause(StrEnum):
    """Where a request's time went; the `cause` label of `tailkeeper_wait_seconds_total`."""

    HOLD = "hold"
    """Engine idle, batch kept open to fill: the batch wait."""
    BUSY = "busy"
    """The batch that ran at arrival."""
    SLOT = "slot"
    """Later batches that left without it."""
    EXEC = "exec"
    """From joining a batch to the end, less time preempted, which is `slot`."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the scheduler sees it: no content."""

    id: str
    tier: str
    arrival_s: float
    deadline_s: float | None = None
    """The caller's own deadline, absolute; None: the tier's."""
    tenant: str = ""
    """Whom to share fairly with inside a tier."""
    prompt_tokens: int = 1
    """Size: tokens to prefill (continuous), or of the input (request mode, which sets the shape bucket)."""
    max_output_tokens: int = 1
    """Most tokens that it may produce; 1 in request mode."""
    priority: int = 0
    """Caller's order inside its tier, lower first (as vLLM takes it)."""


@record
class Waits:
    """Seconds by cause, each from its own timestamps; they add up to the latency."""

    hold_s: float = 0.0
    busy_s: float = 0.0
    slot_s: float = 0.0
    exec_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The latency."""
        return self.hold_s + self.busy_s + self.slot_s + self.exec_s


@record
class Answer:
    """The end of one request."""

    request: Request
    outcome: Outcome
    waits: Waits
    ended_s: float
    retry_after_s: float | None = None
    """When shed: how long until the backlog has drained."""


@record
class Work:
    """What one request gets in one step."""

    request: Request
    prefill_tokens: int = 0
    """Tokens of the prompt to forward now, 0 when it decodes; the whole input in request mode."""
    decode: bool = False
    """Forwards its newest token for the next one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch (request mode) or one iteration (continuous mode)."""

    number: int
    work: tuple[Work, ...]
    preempted: tuple[Request, ...] = ()
    """Lose their slot with this step; their tokens are kept and they go on later."""
    window: int = 1
    evicted: tuple[Request, ...] = ()
    """Lose their KV memory with this step, and work in none until they get it anew: their prompt and what they have
    produced is then prefilled again. What was preempted and is not evicted keeps its memory and goes on decoding."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    step: Step | None = None
    answers: tuple[Answer, ...] = ()
    """Requests that end without (more) engine time: expired, shed."""
    wake_at_s: float | None = None
    """Call again at this time if nothing happens before."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did, by the engine's own timestamps."""

    step: Step
    started_s: float
    ended_s: float
    completed: frozenset[str] = frozenset()
    """Ids whose last token (or whole output) this step made."""
    failed: frozenset[str] = frozenset()
    """Ids that the engine could not serve."""


@dataclass(frozen=True, slots=True)
class TierState:
    """One tier's queue now."""

    queued: int
    oldest_s: float | None
    """Age of the oldest waiting request in seconds."""


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What metrics and people read."""

    window: int
    window_cap: int
    running: int
    tiers: Mapping[str, TierState]
    arrival_rate_per_s: float
    arrival_cv: float
    latency_model: Mapping[str, float] = field(default_factory=dict)
    """Coefficients in seconds by name: `c`, `a`; or `alpha`, `beta`, `gamma`, `delta`."""
    efficiency: float | None = None
    """Work per busy second over that at the saturation window; None while idle or not yet known."""


class Scheduler(Protocol):
    """Decides which requests run now. Pure: the time is an argument and never goes back."""

    def apply(self, settings: Settings, now_s: float) -> tuple[Answer, ...]:
        """Takes new settings for everything from now on; requests of a tier that is gone move to the default tier."""
        ...

    def submit(self, request: Request, now_s: float) -> tuple[Answer, ...]:
        """Takes a request in, or answers it (and perhaps others of a lower tier) as shed. KeyError: unknown tier."""
        ...

    def cancel(self, request_id: str, now_s: float) -> Answer | None:
        """Ends a request whose caller is gone, in whatever state it is; None when it is not here (any more)."""
        ...

    def tick(self, now_s: float) -> Decision:
        """Expires what is due while the engine is busy. Never returns a step."""
        ...

    def next(self, now_s: float) -> Decision:
        """The next step, if one should run now. Only called while the engine is free."""
        ...

    def finished(self, report: StepReport, now_s: float) -> tuple[Answer, ...]:
        """Takes in what a step did; returns the answers of the requests that ended with it."""
        ...

    def state(self, now_s: float) -> SchedulerState:
        """A snapshot; costs O(tiers)."""
        ...
