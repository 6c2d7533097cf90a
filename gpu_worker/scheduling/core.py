"""What both kinds of scheduling share: taking requests in within bounds, and answering each exactly once.

`requests` (batch by batch) and `iterations` (iteration by iteration) are the two; what they add is who runs next."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from gpu_worker.scheduling.backlog import Backlog
from gpu_worker.scheduling.entries import E, EngineClock, Entry, State
from gpu_worker.scheduling.hold import Company
from gpu_worker.scheduling.interface import (
    Answer,
    Decision,
    Outcome,
    Request,
    SchedulerState,
    StepReport,
    TierState,
    Waits,
)
from gpu_worker.scheduling.plan import EngineLimits, Plan, TierPlan, compile_plan
from gpu_worker.scheduling.window import WindowState
from tailkeeper.api.settings import Settings
from tailkeeper.model.arrivals import ArrivalModel

TIMER_S = 1e-6
"""No timer is finer: a batch due within a microsecond is due now."""
GAP_CLIP_SLAS = 4.0
PRIORITY_STEP = 16
"""The caller's `priority` moves a request by D/16 a step, up to ±D: an order inside the tier that still ages."""
UNKNOWN_QUEUE = 10_000
"""Most that may wait per tier while the engine's speed is not known."""
EFFICIENCY_TAU_S = 10.0
SHARE_STEP = 1 / 256
"""How much one arrival moves what is known of the tiers' shares."""

QUEUED, RUNNING, GONE = State.QUEUED, State.RUNNING, State.GONE


class Core(ABC, Generic[E]):
    """Intake, bounds, expiry, cancel, answers, live settings."""

    _make: type[E]

    def __init__(self, settings: Settings, now_s: float, limits: EngineLimits) -> None:
        self._plan: Plan = compile_plan(settings)
        self._limits = limits
        self._entries: dict[str, E] = {}
        self._tiers: dict[str, TierPlan] = {tier.name: tier for tier in self._plan.tiers}
        self._backlog = Backlog[E](self._plan)
        self._running: list[E] = []
        """In the engine: the batch under way, or the sequences that hold a slot."""
        self._running_hard_s = math.inf
        """When the first of them times out."""
        self._clock = EngineClock(now_s)
        self._arrivals = ArrivalModel(GAP_CLIP_SLAS * self._plan.sla_s, self._plan.sla_s)
        self._company = Company()
        self._window = WindowState(self._plan.busy, self._plan.busy)
        self._service_s = 0.0
        """Engine time per request at the widest window; 0 while not known."""
        self._roomy = UNKNOWN_QUEUE
        """With fewer waiting no bound is near."""
        self._overloaded = [False] * len(self._plan.tiers)
        self._tier_shares = _even(self._plan.tiers)
        """Of the newest arrivals, by tier."""
        """By tier: it and those above it do not keep up."""
        self._seq = 0
        self._steps = 0
        self._ideal_s = self._spent_s = 0.0
        self._efficient_at_s = now_s

    @abstractmethod
    def next(self, now_s: float) -> Decision:
        """The next step, if one should run now."""

    @abstractmethod
    def finished(self, report: StepReport, now_s: float) -> tuple[Answer, ...]:
        """Takes in what a step did."""

    @abstractmethod
    def _settle(self, now_s: float) -> int:
        """Moves the window to where the load wants it; the most that may run now."""

    @abstractmethod
    def _patience_s(self, tier: TierPlan) -> float:
        """Timeout of a tier that has none of its own: deadline + 2·T(W)."""

    @abstractmethod
    def _coefficients(self) -> dict[str, float]:
        """The latency model by name."""

    # -- the contract

    def apply(self, settings: Settings, now_s: float) -> tuple[Answer, ...]:
        """Takes new settings. Who waits keeps its key, deadline and timeout: old keys keep their order."""
        before, plan = self._plan, compile_plan(settings)
        if plan.sla_s != before.sla_s:
            self._arrivals = ArrivalModel(GAP_CLIP_SLAS * plan.sla_s, plan.sla_s)
        self._plan = plan
        self._tiers = {tier.name: tier for tier in plan.tiers}
        for entry in self._entries.values():
            entry.tier = self._tiers.get(entry.tier.name, plan.default)
        waiting = sorted(self._backlog, key=lambda entry: entry.seq)
        self._backlog = Backlog[E](plan)
        self._overloaded = [False] * len(plan.tiers)
        self._tier_shares = _even(plan.tiers)
        for entry in reversed(waiting):
            self._backlog.put_back(entry)
        self._settle(now_s)
        return ()

    def limit(self, limits: EngineLimits, now_s: float) -> None:
        """The engine can do less (it ran out of memory), or more, from now on."""
        self._limits = limits
        self._settle(now_s)

    def submit(self, request: Request, now_s: float) -> tuple[Answer, ...]:
        """Takes a request in, or sheds: it, or another that stands further back. KeyError: unknown tier; ValueError:
        its id is here already."""
        tier = self._tiers[request.tier]
        if request.id in self._entries:
            raise ValueError(f"request {request.id} is here already")
        entry = self._entry(request, tier)
        backlog = self._backlog
        self._arrivals.arrive(now_s)
        shares = self._tier_shares
        if len(shares) > 1:
            for index in range(len(shares)):
                shares[index] *= 1.0 - SHARE_STEP
            shares[tier.index] += SHARE_STEP
        if self._company.in_vain:
            self._company.met(backlog.n + len(self._running))
        self._clock.enter(entry)
        if entry.hard_s <= now_s:
            return (self._end(entry, Outcome.EXPIRED, now_s),)
        shed = self._room_for(entry, now_s) if backlog.n >= self._roomy else None
        if shed is entry:
            return (self._end(entry, Outcome.SHED, now_s),)
        self._entries[request.id] = entry
        backlog.add(entry, self._service_s)
        return () if shed is None else (self._drop(shed, Outcome.SHED, now_s),)

    def cancel(self, request_id: str, now_s: float) -> Answer | None:
        """Ends a request whose caller is gone, in whatever state; one that runs frees its slot with the step."""
        entry = self._entries.get(request_id)
        return None if entry is None else self._drop(entry, Outcome.CANCELLED, now_s)

    def tick(self, now_s: float) -> Decision:
        """Expires what is due while the engine is busy."""
        answers = self._expire(now_s)
        return Decision(None, tuple(answers), self._wake_at_s())

    def state(self, now_s: float) -> SchedulerState:
        """A snapshot."""
        return SchedulerState(
            window=self._window.window,
            window_cap=self._window.cap,
            running=len(self._running),
            tiers={queue.plan.name: _tier_state(queue.n, queue.oldest(), now_s) for queue in self._backlog.queues},
            arrival_rate_per_s=self._arrivals.rate_per_s(now_s),
            arrival_cv=self._arrivals.cv,
            latency_model=self._coefficients(),
            efficiency=self._efficiency(now_s),
        )

    # -- taking in

    def _entry(self, request: Request, tier: TierPlan) -> E:
        self._seq += 1
        arrival_s, own_s = request.arrival_s, request.deadline_s
        deadline_s = arrival_s + tier.deadline_s
        if own_s is None:
            patience_s = tier.timeout_s
            hard_s = arrival_s + (self._patience_s(tier) if patience_s is None else patience_s)
        else:
            deadline_s, hard_s = min(own_s, deadline_s), own_s
        key = deadline_s - tier.boost_s if self._plan.priority else arrival_s
        if request.priority and self._plan.priority:
            steps = max(-PRIORITY_STEP, min(PRIORITY_STEP, request.priority))
            key += steps * tier.deadline_s / PRIORITY_STEP
        return self._make(request, tier, self._seq, deadline_s, hard_s, key)

    def _room_for(self, entry: E, now_s: float) -> E | None:
        """Whom to shed so that the queue stays within its bounds: nobody, the newcomer, or another.

        By Little's law nobody past rate·patience could be served in time. Over its own bound a tier sheds from the
        tenant that floods it; over the bound of all together, the lowest tier goes first."""
        backlog, service_s = self._backlog, self._service_s
        queue = backlog.queues[entry.tier.index]
        self._judge_load(now_s)
        if service_s > 0.0:
            least = self._window.cap
            limit = max(least, int((self._limit_s(entry) - now_s) / service_s))
            total = max(least, int(2.0 * self._plan.longest_deadline_s / service_s))
        else:
            limit, total = UNKNOWN_QUEUE, UNKNOWN_QUEUE * len(backlog.queues)
        if queue.n >= limit:
            tenants = queue.tenants
            mine = tenants.get(entry.tenant)
            if mine is not None and mine.queued * len(tenants) >= queue.n:
                return entry
            flood = max(tenants, key=lambda name: tenants[name].queued)
            return queue.newest(flood) or entry
        if backlog.n >= total:
            lowest = backlog.newest_of_lowest()
            return entry if lowest is None or lowest.tier.index < entry.tier.index else lowest
        return None

    def _serves_in(self, service_s: float) -> None:
        """Takes the engine time per request at the widest window."""
        self._service_s = service_s
        plan = self._plan
        self._roomy = int(plan.shortest_deadline_s / 2.0 / service_s)

    def _judge_load(self, now_s: float) -> None:
        """A tier is overloaded when what waits at its level and above takes longer than its deadline, or half of that
        while more comes there than can be served. What waits or comes below it is no reason to refuse it anything."""
        backlog, overloaded = self._backlog, self._overloaded
        if backlog.n <= self._roomy and True not in overloaded:
            return
        service_s, ahead_s, share = self._service_s, 0.0, 0.0
        if not self._plan.priority:
            ahead_s, share = backlog.n * service_s, 1.0
            service_s = 0.0
        for queue in backlog.queues:
            ahead_s += queue.n * service_s
            index, deadline_s = queue.plan.index, queue.plan.deadline_s
            share = min(1.0, share + self._tier_shares[index])
            if ahead_s > deadline_s:
                overloaded[index] = True
            elif ahead_s > deadline_s / 2.0 or overloaded[index]:
                overloaded[index] = share * self._arrivals.rate_over_s(deadline_s, now_s) * self._service_s > 1.0

    def _limit_s(self, entry: E) -> float:
        """The end of a request's usefulness: its timeout; its SLA while the instance does not keep up."""
        return entry.deadline_s if self._overloaded[entry.tier.index] else entry.hard_s

    def _may_refuse(self, alone_s: float, now_s: float) -> bool:
        """Whether the estimate that somebody cannot be served in time is enough to refuse.

        Not after the engine stood idle for as long as one request takes: then trying costs nobody anything, and what
        runs corrects the estimate. One learnt on a bad day would otherwise refuse everybody and never see better."""
        return self._clock.rest_s(now_s) < alone_s

    # -- answering

    def _expire(self, now_s: float) -> list[Answer]:
        answers = [self._end(entry, Outcome.EXPIRED, now_s) for entry in self._backlog.expired(now_s)]
        if self._running_hard_s <= now_s:
            due = [entry for entry in self._running if entry.hard_s <= now_s and entry.state is RUNNING]
            answers += [self._drop(entry, Outcome.EXPIRED, now_s) for entry in due]
            self._running_hard_s = min((e.hard_s for e in self._running if e.state is RUNNING), default=math.inf)
        return answers

    def _wake_at_s(self) -> float | None:
        wake_s = min(self._backlog.next_expiry_s, self._running_hard_s)
        return wake_s if wake_s < math.inf else None

    def _shed_late(self, now_s: float, answers: list[Answer]) -> None:
        """While its tier does not keep up, who is late anyhow costs no engine time any more."""
        for queue in self._backlog.queues:
            while self._overloaded[queue.plan.index] and queue.n and (late := queue.late_head()) is not None:
                answers.append(self._drop(late, Outcome.SHED, now_s))

    def _drop(self, entry: E, outcome: Outcome, now_s: float) -> Answer:
        """Ends a request wherever it is."""
        if entry.state is QUEUED:
            self._backlog.remove(entry, GONE)
        return self._end(entry, outcome, now_s)

    def _end(self, entry: E, outcome: Outcome, ended_s: float) -> Answer:
        """Ends a request that has left the backlog, or was never in it."""
        if entry.started:
            entry.settle(ended_s)
        else:
            self._clock.leave((entry,), ended_s)
        entry.state = GONE
        self._entries.pop(entry.id, None)
        retry_after_s = self._backlog.n * self._service_s if outcome is Outcome.SHED else None
        waits = Waits(entry.hold_s, entry.busy_s, entry.slot_s, entry.exec_s)
        return Answer(entry.request, outcome, waits, ended_s, retry_after_s)

    # -- efficiency

    def _count_work(self, ideal_s: float, spent_s: float, now_s: float) -> None:
        """Engine time that this work costs at the saturation window, beside what it took; both fade with τ 10 s."""
        fade = math.exp(-max(0.0, now_s - self._efficient_at_s) / EFFICIENCY_TAU_S)
        self._efficient_at_s = now_s
        self._ideal_s = self._ideal_s * fade + ideal_s
        self._spent_s = self._spent_s * fade + spent_s

    def _efficiency(self, now_s: float) -> float | None:
        idle_s = now_s - self._efficient_at_s
        if self._spent_s <= 0.0 or idle_s > 2.0 * EFFICIENCY_TAU_S:
            return None
        return self._ideal_s / self._spent_s


def _even(tiers: Sequence[TierPlan]) -> list[float]:
    return [1.0 / len(tiers)] * len(tiers)


def _tier_state(queued: int, oldest: Entry | None, now_s: float) -> TierState:
    return TierState(queued, None if oldest is None else max(0.0, now_s - oldest.arrival_s))
