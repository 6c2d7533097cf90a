"""Batch by batch: the scheduler of an engine whose step serves whole requests (modes `request` and `fixed`)."""

import math

from gpu_worker.scheduling import hold, window
from gpu_worker.scheduling.core import TIMER_S, Core
from gpu_worker.scheduling.entries import Entry, State
from gpu_worker.scheduling.interface import Answer, Decision, Outcome, Step, StepReport, Waits, Work
from gpu_worker.scheduling.plan import EngineLimits, TierPlan, prior_line
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import Settings
from tailkeeper.model.latency import ShapedLatency, shape_bucket
from tailkeeper.model.windows import saturation_window

RUNNING, GONE = State.RUNNING, State.GONE


class RequestScheduler(Core[Entry]):
    """Implements `Scheduler`. One batch runs at a time; the next is formed when it has ended."""

    _make = Entry

    def __init__(self, settings: Settings, now_s: float, limits: EngineLimits) -> None:
        super().__init__(settings, now_s, limits)
        self._latency = ShapedLatency(prior_line(self._plan.prior))
        self._settle(now_s)

    def next(self, now_s: float) -> Decision:
        """The next batch, if one should run now."""
        answers = self._expire(now_s)
        backlog = self._backlog
        if not backlog.n:
            return Decision(None, tuple(answers))
        self._judge_load(now_s)
        size = self._settle(now_s)
        if backlog.n < size:
            start_at_s = self._start_at_s(now_s)
            if start_at_s > now_s + TIMER_S:
                self._company.hold(backlog.n, now_s)
                return Decision(None, tuple(answers), min(start_at_s, backlog.next_expiry_s))
        self._company.start(backlog.n, self._arrivals.mean_gap_s, now_s)
        batch = self._form(size, now_s, answers)
        step = self._start(batch, now_s) if batch else None
        return Decision(step, tuple(answers), self._wake_at_s())

    def _start_at_s(self, now_s: float) -> float:
        """When a batch that is not full starts."""
        plan = self._plan
        if plan.mode is Mode.FIXED:
            return self._backlog.hold_end_s()  # the old way: wait until it is full, whatever it costs
        if not plan.dynamic or self._company.never_comes(self._backlog.n):
            return now_s
        return hold.start_at_s(self._backlog, plan, self._arrivals, self._latency.overall, now_s)

    def _form(self, size: int, now_s: float, answers: list[Answer]) -> list[Entry]:
        """The batch, without those that could not be served in time: they are answered before they cost engine time."""
        backlog, latency = self._backlog, self._latency.overall
        size = min(size, backlog.n)
        if latency.line is None or self._plan.mode is Mode.FIXED:
            return backlog.take(size, -math.inf, -math.inf)
        size = self._fitting(size, now_s)
        may_refuse = self._may_refuse(latency.at(1), now_s)
        if may_refuse:
            self._shed_late(now_s, answers)
        batch: list[Entry] = []
        # The expectation, not the 99th percentile: on a noisy machine that would give up those who would have made it.
        finish_s = now_s + latency.at(size)
        due_by_s = now_s + 2.0 * latency.high(self._window.cap) + self._plan.margin_s
        while len(batch) < size and backlog.n:
            taken = backlog.take(size - len(batch), finish_s, due_by_s)
            doomed = [entry for entry in taken if finish_s > self._limit_s(entry)] if may_refuse else []
            answers += [self._end(entry, Outcome.SHED, now_s) for entry in doomed]
            batch += [entry for entry in taken if entry.state is RUNNING] if doomed else taken
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

    def _start(self, batch: list[Entry], now_s: float) -> Step:
        self._clock.start(now_s)
        self._clock.leave(batch, now_s)
        self._running = batch
        self._steps += 1
        self._running_hard_s = min([entry.hard_s for entry in batch])
        for entry in batch:
            entry.start(now_s)
        work = [Work(entry.request, entry.request.prompt_tokens) for entry in batch]
        return Step(self._steps, tuple(work), (), self._window.window)

    def finished(self, report: StepReport, now_s: float) -> tuple[Answer, ...]:
        """Takes in what a batch did. A member that the engine says nothing about has failed.

        A step that this scheduler did not start, such as a warm-up's, only teaches the latency model."""
        size = len(report.step.work)
        seconds = report.ended_s - report.started_s
        if not report.failed and size:
            longest = max([work.request.prompt_tokens for work in report.step.work])
            self._latency.learn(size, shape_bucket(longest), seconds)
        if not self._clock.running or report.step.number != self._steps:
            return ()
        self._clock.end(report.ended_s)
        batch, self._running = self._running, []
        self._running_hard_s = math.inf
        line = self._latency.overall.line
        if line is not None:
            self._count_work(size / line.rate(saturation_window(line, self._plan.idle)), seconds, now_s)
        return self._ended(batch, report)

    def _ended(self, batch: list[Entry], report: StepReport) -> tuple[Answer, ...]:
        """`_end` for a whole batch: every request passes here, and most nowhere else."""
        ended_s, completed, entries = report.ended_s, report.completed, self._entries
        ok, late, error = Outcome.OK, Outcome.LATE, Outcome.ERROR
        answers = []
        for entry in batch:
            if entry.state is RUNNING:
                entry.state = GONE
                del entries[entry.id]
                waits = Waits(entry.hold_s, entry.busy_s, entry.slot_s, ended_s - entry.since_s)
                outcome = error if entry.id not in completed else ok if ended_s <= entry.deadline_s else late
                answers.append(Answer(entry.request, outcome, waits, ended_s))
        return tuple(answers)

    def _settle(self, now_s: float) -> int:
        plan, state = self._plan, self._window
        memory = self._limits.max_batch
        if plan.mode is Mode.FIXED:
            state.window = state.cap = plan.idle if memory is None else max(1, min(plan.idle, memory))
            return state.window
        line = self._latency.overall.line
        size = window.settle(state, plan, line, self._arrivals, memory, now_s)
        if line is None:
            return size
        self._serves_in(line.at(state.cap) / state.cap)
        queued = self._backlog.n
        if plan.dynamic and queued > size:
            head = self._backlog.head()
            if head is not None:
                size = window.drain(size, state.cap, queued, head.deadline_s - now_s, line)
        return size

    def _patience_s(self, tier: TierPlan) -> float:
        batch_s = self._latency.overall.high(self._window.window)
        return tier.deadline_s + 2.0 * (batch_s or tier.deadline_s)

    def _coefficients(self) -> dict[str, float]:
        line = self._latency.overall.line
        return {} if line is None else {"c": line.c, "a": line.a}
