"""One request inside the scheduler, and the clock that says where its time went.

Wait causes come from timestamps of their own. The clock keeps two sums that only grow, the engine's idle time and its
busy time; a request notes both when it comes, and the difference when it leaves is its `hold` and its `slot`. The batch
that ran at its arrival is `busy`: its end less the arrival."""

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

from gpu_worker.scheduling.interface import Request
from gpu_worker.scheduling.plan import TierPlan


class State(IntEnum):
    """Where a request is."""

    QUEUED = 0
    """Waits, for the first time or again: preempted at an iteration boundary."""
    RUNNING = 1
    """In the engine: in the batch under way, or holding a slot."""
    GONE = 2


QUEUED = State.QUEUED


class Run:
    """One step of the engine, from its dispatch to its end."""

    __slots__ = ("busy_before_s", "ended_s", "idle_before_s", "started_s")

    def __init__(self, started_s: float, idle_before_s: float, busy_before_s: float) -> None:
        self.started_s = started_s
        self.ended_s: float | None = None
        self.idle_before_s = idle_before_s
        self.busy_before_s = busy_before_s


class Entry:
    """A request and what the scheduler knows about it. Times in seconds."""

    __slots__ = (
        "_busy_mark_s",
        "_hold_s",
        "_idle_mark_s",
        "_run",
        "arrival_s",
        "busy_s",
        "deadline_s",
        "exec_s",
        "hard_s",
        "held",
        "hold_s",
        "id",
        "key",
        "rank",
        "request",
        "reserved",
        "seq",
        "since_s",
        "slot_s",
        "started",
        "state",
        "tenant",
        "tier",
        "working",
    )

    hold_s: float
    busy_s: float
    slot_s: float
    """All three set when it stops waiting; more `hold_s` and `slot_s` may come."""
    working: bool
    """Takes part in the step under way; one that holds a slot may be left out of it."""
    held: bool
    """Has started, and waits with the whole engine for company."""
    rank: float
    """Its place in its tier's queue: the key, and its tenant's debt."""
    since_s: float
    """Since when it works, or does not."""
    _run: Run | None
    _idle_mark_s: float
    _busy_mark_s: float
    _hold_s: float

    def __init__(
        self, request: Request, tier: TierPlan, seq: int, deadline_s: float, hard_s: float, key: float
    ) -> None:
        self.request = request
        self.id = request.id
        self.tier = tier
        self.tenant = request.tenant
        self.seq = seq
        self.arrival_s = request.arrival_s
        self.deadline_s = deadline_s
        """Its SLA: that of its tier, or sooner where the caller says so."""
        self.hard_s = hard_s
        """When its caller is gone."""
        self.key = key
        """What it is ordered by among the tiers; never changes."""
        self.state = QUEUED
        self.started = False
        """Has been in the engine."""
        self.reserved = False
        """Got in by its tier's reserve."""
        self.exec_s = 0.0

    def start(self, now_s: float) -> None:
        """Joins its first step."""
        self.started = self.working = True
        self.held = False
        self.since_s = now_s

    def work(self, working: bool, now_s: float) -> None:
        """Takes part in the step that starts now, or is left out of it."""
        if working is not self.working or self.held:
            self.settle(now_s)
            self.working, self.held = working, False

    def hold(self, now_s: float) -> None:
        """Waits with the whole engine from now on."""
        if not self.held:
            self.settle(now_s)
            self.held = True

    def settle(self, now_s: float) -> None:
        """Books the time since the last change: `exec` while it worked, `slot` while steps left without it, `hold`
        while the engine was kept idle."""
        if self.held:
            self.hold_s += now_s - self.since_s
        elif self.working:
            self.exec_s += now_s - self.since_s
        else:
            self.slot_s += now_s - self.since_s
        self.since_s = now_s


class StreamEntry(Entry):
    """One that is served token by token."""

    __slots__ = ("generated", "kept", "most", "preemptions", "prefilled", "target", "tokens")

    def __init__(
        self, request: Request, tier: TierPlan, seq: int, deadline_s: float, hard_s: float, key: float
    ) -> None:
        super().__init__(request, tier, seq, deadline_s, hard_s, key)
        self.most = request.max_output_tokens
        self.target = request.prompt_tokens
        """Tokens to prefill: the prompt; what it has produced as well when its KV memory was taken."""
        self.prefilled = self.generated = self.preemptions = 0
        self.kept = False
        """Its tokens are in the engine's KV memory."""
        self.tokens = request.prompt_tokens + request.max_output_tokens
        """The most KV memory that it can need."""


E = TypeVar("E", bound=Entry)


class EngineClock:
    """Idle and busy time of the engine, and every waiting request's share in them."""

    __slots__ = ("_idle_s", "_since_s", "busy_s", "run")

    def __init__(self, now_s: float) -> None:
        self.run: Run | None = None
        """The newest step, running or ended."""
        self.busy_s = 0.0
        """Seconds of all ended steps."""
        self._idle_s = 0.0
        self._since_s = now_s

    @property
    def running(self) -> bool:
        """Whether a step is under way."""
        return self.run is not None and self.run.ended_s is None

    def rest_s(self, now_s: float) -> float:
        """How long the engine has stood idle."""
        return 0.0 if self.running else max(0.0, now_s - self._since_s)

    def start(self, now_s: float) -> None:
        """A step is dispatched."""
        self._idle_s += max(0.0, now_s - self._since_s)
        self.run = Run(now_s, self._idle_s, self.busy_s)

    def end(self, ended_s: float) -> None:
        """The step under way has ended."""
        run = self.run
        if run is None or run.ended_s is not None:
            return
        run.ended_s = max(ended_s, run.started_s)
        self.busy_s += run.ended_s - run.started_s
        self._since_s = run.ended_s

    def enter(self, entry: Entry) -> None:
        """The request starts to wait, at its arrival: that may lie before now, even before the step under way began."""
        arrival_s, run = entry.arrival_s, self.run
        entry._run = None
        if run is not None and arrival_s >= run.started_s and (run.ended_s is None or arrival_s < run.ended_s):
            entry._run = run
            return
        entry._hold_s = 0.0
        if run is None or (run.ended_s is not None and arrival_s >= run.ended_s):
            entry._idle_mark_s = self._idle_s + (arrival_s - self._since_s)
            entry._busy_mark_s = self.busy_s
        else:
            entry._idle_mark_s, entry._busy_mark_s = run.idle_before_s, run.busy_before_s
            entry._hold_s = run.started_s - arrival_s

    def leave(self, entries: Iterable[Entry], now_s: float) -> None:
        """These requests stop waiting: they join a batch, or end without one."""
        run = self.run
        idle_s, busy_s = self._idle_s, self.busy_s
        if run is None or run.ended_s is not None:
            idle_s += max(0.0, now_s - self._since_s)
        else:
            busy_s += now_s - run.started_s
        for entry in entries:
            arrived_in = entry._run
            if arrived_in is None:
                hold_s = entry._hold_s + idle_s - entry._idle_mark_s
                slot_s = busy_s - entry._busy_mark_s
                entry.busy_s = 0.0
            elif (ended_s := arrived_in.ended_s) is None:
                hold_s = slot_s = 0.0
                entry.busy_s = now_s - entry.arrival_s
            else:
                hold_s = idle_s - arrived_in.idle_before_s
                slot_s = busy_s - arrived_in.busy_before_s - (ended_s - arrived_in.started_s)
                entry.busy_s = ended_s - entry.arrival_s
            # differences of sums: what should be 0 may come out as -1e-17
            entry.hold_s = hold_s if hold_s > 0.0 else 0.0
            entry.slot_s = slot_s if slot_s > 0.0 else 0.0
