"""Batch by batch: the scheduler of an engine whose step serves whole requests (modes `request` and `fixed`)."""

import math

from gpu_worker.scheduling import hold, window
from gpu_worker.scheduling.backlog import Backlog
from gpu_worker.scheduling.entries import EngineClock, Entry, State
from gpu_worker.scheduling.interface import (
    Answer,
    Decision,
    Outcome,
    Request,
    SchedulerState,
    Step,
    StepReport,
    TierState,
    Work,
)
from gpu_worker.scheduling.plan import EngineLimits, TierPlan, compile_plan, prior_line
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import Settings
from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.latency import ShapedLatency, shape_bucket
from tailkeeper.model.windows import saturation_window

TIMER_S = 1e-6
"""No timer is finer: a batch due within a microsecond is due now."""
GAP_CLIP_SLAS = 4.0
PRIORITY_STEP = 16
"""The caller's `priority` moves a request by D/16 a step, up to ±D: an order inside the tier that still ages."""
UNKNOWN_QUEUE = 10_000
"""Most that may wait per tier while the engine's speed is not known."""
EFFICIENCY_TAU_S = 10.0

QUEUED, RUNNING, GONE = State.QUEUED, State.RUNNING, State.GONE


class RequestScheduler:
    """Implements `Scheduler`. One batch runs at a time; the next is formed when it has ended."""

    def __init__(self, settings: Settings, now_s: float, limits: EngineLimits) -> None:
        self._plan = compile_plan(settings)
        self._limits = limits
        self._entries: dict[str, Entry] = {}
        self._backlog = Backlog(self._plan)
        self._clock = EngineClock(now_s)
        self._arrivals = ArrivalModel(GAP_CLIP_SLAS * self._plan.sla_s, self._plan.sla_s)
        self._latency = ShapedLatency(prior_line(self._plan.prior))
        self._window = window.WindowState(self._plan.busy, self._plan.busy)
        self._batch: list[Entry] = []
        self._batch_hard_s = math.inf
        self._seq = 0
        self._steps = 0
        self._overloaded = False
        self._ideal_s = self._spent_s = 0.0
        self._efficient_at_s = now_s
        self._settle(now_s)

    # -- the policy

    def next(self, now_s: float) -> Decision:
        """The next batch, if one should run now."""
        answers = self._expire(now_s)
        backlog = self._backlog
        if not backlog.n:
            return Decision(None, tuple(answers))
        size = self._settle(now_s)
        if backlog.n < size:
            start_at_s = self._start_at_s(now_s)
            if start_at_s > now_s + TIMER_S:
                return Decision(None, tuple(answers), min(start_at_s, backlog.next_expiry_s()))
        batch = self._form(size, now_s, answers)
        if not batch:
            return Decision(None, tuple(answers), self._wake_at_s())
        return Decision(self._start(batch, now_s), tuple(answers), self._wake_at_s())

    def _start_at_s(self, now_s: float) -> float:
        """When a batch that is not full starts."""
        plan = self._plan
        if plan.mode is Mode.FIXED:
            return math.inf  # the old way: wait until it is full, whatever it costs
        if not plan.dynamic:
            return now_s
        return hold.start_at_s(self._backlog, plan, self._arrivals, self._latency.overall, now_s)

    def _form(self, size: int, now_s: float, answers: list[Answer]) -> list[Entry]:
        """The batch, without those that could not be served in time: they are answered before they cost engine time."""
        backlog, latency = self._backlog, self._latency.overall
        size = min(size, backlog.n)
        if latency.line is None or self._plan.mode is Mode.FIXED:
            return backlog.take(size, -math.inf, -math.inf)
        size = self._fitting(size, now_s)
        while self._overloaded and (late := backlog.late_head()) is not None:
            backlog.remove(late, GONE)
            answers.append(self._end(late, Outcome.SHED, now_s, self._drained_in_s()))
        batch: list[Entry] = []
        finish_s = now_s + latency.high(size)
        due_by_s = now_s + 2.0 * latency.high(self._window.cap) + self._plan.margin_s
        while len(batch) < size and backlog.n:
            for entry in backlog.take(size - len(batch), finish_s, due_by_s):
                if finish_s > self._limit_s(entry):
                    answers.append(self._end(entry, Outcome.SHED, now_s, self._drained_in_s()))
                else:
                    batch.append(entry)
        return batch

    def _fitting(self, size: int, now_s: float) -> int:
        """A smaller batch, where that saves the first in order and the rest still meet their deadlines after it."""
        backlog, latency = self._backlog, self._latency.overall
        head = backlog.head()
        if head is None or backlog.n > size or now_s + latency.high(size) <= head.deadline_s:
            return size
        fit = latency.largest(head.deadline_s - now_s)
        if not 1 <= fit < size:
            return size
        rest_end_s = now_s + latency.high(fit) + latency.high(size - fit)
        rest = sorted(entry.deadline_s for entry in backlog)[fit]
        return fit if rest_end_s <= rest else size

    # -- the contract

    def apply(self, settings: Settings, now_s: float) -> tuple[Answer, ...]:
        """Takes new settings. Who waits keeps its key, deadline and timeout: old keys keep their order."""
        plan = compile_plan(settings)
        if plan.sla_s != self._plan.sla_s:
            self._arrivals = ArrivalModel(GAP_CLIP_SLAS * plan.sla_s, plan.sla_s)
        self._plan = plan
        waiting = sorted(self._backlog, key=lambda entry: entry.seq)
        self._backlog = Backlog(plan)
        for entry in self._entries.values():
            entry.tier = plan.tier(entry.tier.name) or plan.default
        service_s = self._service_s()
        for entry in waiting:
            self._backlog.add(entry, service_s)
        self._settle(now_s)
        return ()

    def submit(self, request: Request, now_s: float) -> tuple[Answer, ...]:
        """Takes a request in, or sheds: it, or the newest of the lowest tier. KeyError: unknown tier; ValueError: the
        id is here already."""
        tier = self._plan.tier(request.tier)
        if tier is None:
            raise KeyError(request.tier)
        if request.id in self._entries:
            raise ValueError(f"request {request.id} is here already")
        entry = self._entry(request, tier)
        self._arrivals.arrive(now_s)
        self._clock.enter(entry)
        if entry.hard_s <= now_s:
            self._clock.leave(entry, now_s)
            return (self._answer(entry, Outcome.EXPIRED, now_s, None),)
        shed = self._room_for(entry, now_s)
        if shed is not entry:
            self._entries[entry.id] = entry
            self._backlog.add(entry, self._service_s())
        return () if shed is None else (self._shed(shed, now_s),)

    def cancel(self, request_id: str, now_s: float) -> Answer | None:
        """Ends a request whose caller is gone; one that runs is let go at once, its place at the batch's end."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        return self._drop(entry, Outcome.CANCELLED, now_s)

    def tick(self, now_s: float) -> Decision:
        """Expires what is due while the engine is busy."""
        answers = self._expire(now_s)
        return Decision(None, tuple(answers), self._wake_at_s())

    def finished(self, report: StepReport, now_s: float) -> tuple[Answer, ...]:
        """Takes in what a batch did. A member that the engine says nothing about has failed.

        A step that this scheduler did not start, such as a warm-up's, only teaches the latency model."""
        size = len(report.step.work)
        seconds = report.ended_s - report.started_s
        if not report.failed and size:
            longest = max(work.request.prompt_tokens for work in report.step.work)
            self._latency.learn(size, shape_bucket(longest), seconds)
        if not self._clock.running or report.step.number != self._steps:
            return ()
        self._clock.end(report.ended_s)
        batch, self._batch = self._batch, []
        self._batch_hard_s = math.inf
        self._count_efficiency(size, seconds, now_s)
        answers = []
        ended_s = report.ended_s
        for entry in batch:
            if entry.state is not RUNNING:
                continue
            entry.state = GONE
            del self._entries[entry.id]
            entry.exec_s += ended_s - entry.joined_s
            if entry.id in report.completed:
                outcome = Outcome.OK if ended_s <= entry.deadline_s else Outcome.LATE
            else:
                outcome = Outcome.ERROR
            answers.append(self._answer(entry, outcome, ended_s, None))
        return tuple(answers)

    def state(self, now_s: float) -> SchedulerState:
        """A snapshot."""
        line = self._latency.overall.line
        return SchedulerState(
            window=self._window.window,
            window_cap=self._window.cap,
            running=len(self._batch),
            tiers={queue.plan.name: _tier_state(queue.n, queue.oldest(), now_s) for queue in self._backlog.queues},
            arrival_rate_per_s=self._arrivals.rate_per_s(now_s),
            arrival_cv=self._arrivals.cv,
            latency_model={} if line is None else {"c": line.c, "a": line.a},
            efficiency=self._efficiency(now_s),
        )

    # -- beyond the contract

    def limit(self, limits: EngineLimits, now_s: float) -> None:
        """The engine can do less (out of memory), or more, from now on."""
        self._limits = limits
        self._settle(now_s)

    # -- parts

    def _entry(self, request: Request, tier: TierPlan) -> Entry:
        plan = self._plan
        self._seq += 1
        entry = Entry(request, tier, self._seq)
        sla_at_s = request.arrival_s + tier.deadline_s
        own_s = request.deadline_s
        if own_s is None:
            entry.deadline_s = sla_at_s
            patience_s = tier.timeout_s
            if patience_s is None:
                batch_s = self._latency.overall.high(self._window.window)
                patience_s = tier.deadline_s + 2.0 * (batch_s or tier.deadline_s)
            entry.hard_s = request.arrival_s + patience_s
        else:
            entry.deadline_s = min(own_s, sla_at_s)
            entry.hard_s = own_s
        if plan.priority:
            entry.key = entry.deadline_s - tier.boost_s
            if request.priority:
                steps = max(-PRIORITY_STEP, min(PRIORITY_STEP, request.priority))
                entry.key += steps * tier.deadline_s / PRIORITY_STEP
        else:
            entry.key = request.arrival_s
        return entry

    def _settle(self, now_s: float) -> int:
        plan, state = self._plan, self._window
        memory = self._limits.max_batch
        if plan.mode is Mode.FIXED:
            state.window = state.cap = plan.idle if memory is None else max(1, min(plan.idle, memory))
            return state.window
        line = self._latency.overall.line
        size = window.settle(state, plan, line, self._arrivals, memory, now_s)
        queued = self._backlog.n
        if plan.dynamic and queued > size and line is not None:
            head = self._backlog.head()
            if head is not None:
                size = window.drain(size, state.cap, queued, head.deadline_s - now_s, line)
        return size

    def _service_s(self) -> float:
        line = self._latency.overall.line
        return line.at(self._window.cap) / self._window.cap if line is not None else 0.0

    def _limit_s(self, entry: Entry) -> float:
        """The end of a request's usefulness: its timeout; its SLA while the instance does not keep up."""
        return entry.deadline_s if self._overloaded else entry.hard_s

    def _room_for(self, entry: Entry, now_s: float) -> Entry | None:
        """Whom to shed so that the queue stays within its bounds: nobody, the newcomer, or another."""
        backlog = self._backlog
        queue = backlog.queues[entry.tier.index]
        service_s = self._service_s()
        self._judge_load(now_s, service_s)
        if service_s > 0.0:
            limit = max(self._window.cap, int((self._limit_s(entry) - now_s) / service_s))
            total = max(self._window.cap, int(max(tier.deadline_s for tier in self._plan.tiers) * 2.0 / service_s))
        else:
            limit, total = UNKNOWN_QUEUE, UNKNOWN_QUEUE * len(backlog.queues)
        if queue.n >= limit:
            tenants = queue.tenants
            mine = tenants.get(entry.tenant)
            if mine is not None and mine.queued * len(tenants) >= queue.n:
                return entry
            flood = max(tenants, key=lambda name: tenants[name].queued)
            return queue.newest(flood)
        if backlog.n >= total:
            lowest = backlog.newest_of_lowest()
            return entry if lowest is None or lowest.tier.index < entry.tier.index else lowest
        return None

    def _judge_load(self, now_s: float, service_s: float) -> None:
        """Overloaded: the backlog takes longer than the SLA, or half of it while more comes than can be served."""
        backlog_s = self._backlog.n * service_s
        sla_s = self._plan.sla_s
        if backlog_s > sla_s:
            self._overloaded = True
        elif backlog_s > sla_s / 2.0 or self._overloaded:
            self._overloaded = self._arrivals.fast_rate_per_s(now_s) * service_s > 1.0

    def _drained_in_s(self) -> float:
        return self._backlog.n * self._service_s()

    def _expire(self, now_s: float) -> list[Answer]:
        answers = [self._end(entry, Outcome.EXPIRED, now_s, None) for entry in self._backlog.expired(now_s)]
        if self._batch_hard_s <= now_s:
            due = [entry for entry in self._batch if entry.hard_s <= now_s and entry.state is RUNNING]
            answers += [self._drop(entry, Outcome.EXPIRED, now_s) for entry in due]
            self._batch_hard_s = min((e.hard_s for e in self._batch if e.state is RUNNING), default=math.inf)
        return answers

    def _wake_at_s(self) -> float | None:
        wake_s = min(self._backlog.next_expiry_s(), self._batch_hard_s)
        return wake_s if wake_s < math.inf else None

    def _start(self, batch: list[Entry], now_s: float) -> Step:
        self._clock.start(now_s)
        leave = self._clock.leave
        self._batch = batch
        self._steps += 1
        self._batch_hard_s = min(entry.hard_s for entry in batch)
        work = []
        for entry in batch:
            leave(entry, now_s)
            entry.joined_s = now_s
            work.append(Work(entry.request, entry.request.prompt_tokens))
        return Step(self._steps, tuple(work), (), self._window.window)

    def _shed(self, entry: Entry, now_s: float) -> Answer:
        retry_s = self._drained_in_s()
        if entry.id in self._entries and self._entries[entry.id] is entry:
            return self._drop(entry, Outcome.SHED, now_s, retry_s)
        self._clock.leave(entry, now_s)
        return self._answer(entry, Outcome.SHED, now_s, retry_s)

    def _drop(self, entry: Entry, outcome: Outcome, now_s: float, retry_after_s: float | None = None) -> Answer:
        """Ends a request wherever it is."""
        if entry.state is QUEUED:
            self._backlog.remove(entry, GONE)
            return self._end(entry, outcome, now_s, retry_after_s)
        entry.state = GONE
        entry.exec_s += max(0.0, now_s - entry.joined_s)
        del self._entries[entry.id]
        return self._answer(entry, outcome, now_s, retry_after_s)

    def _end(self, entry: Entry, outcome: Outcome, now_s: float, retry_after_s: float | None) -> Answer:
        """Ends a request that has just left the backlog without a batch."""
        entry.state = GONE
        del self._entries[entry.id]
        self._clock.leave(entry, now_s)
        return self._answer(entry, outcome, now_s, retry_after_s)

    def _answer(self, entry: Entry, outcome: Outcome, ended_s: float, retry_after_s: float | None) -> Answer:
        return Answer(entry.request, outcome, entry.waits(), ended_s, retry_after_s)

    def _count_efficiency(self, size: int, seconds: float, now_s: float) -> None:
        """Engine time that this work costs at the saturation window, beside what it took; both fade with τ 10 s."""
        line = self._latency.overall.line
        if line is None:
            return
        saturated = saturation_window(line, self._plan.idle)
        fade = math.exp(-max(0.0, now_s - self._efficient_at_s) / EFFICIENCY_TAU_S)
        self._efficient_at_s = now_s
        self._ideal_s = self._ideal_s * fade + size / line.rate(saturated)
        self._spent_s = self._spent_s * fade + seconds

    def _efficiency(self, now_s: float) -> float | None:
        idle_s = now_s - self._efficient_at_s
        if self._spent_s <= 0.0 or idle_s > 2.0 * EFFICIENCY_TAU_S:
            return None
        return self._ideal_s / self._spent_s


def _tier_state(queued: int, oldest: Entry | None, now_s: float) -> TierState:
    return TierState(queued, None if oldest is None else max(0.0, now_s - oldest.arrival_s))
