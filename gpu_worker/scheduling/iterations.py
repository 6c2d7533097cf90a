"""Iteration by iteration: the scheduler of an engine whose step forwards one token of every sequence.

A request joins at an iteration's boundary and leaves at one. The window is how many sequences hold a slot; which of
them work in an iteration, and how much prompt is prefilled beside them, follows from their pace (`pace`)."""

import math
from bisect import insort

from gpu_worker.scheduling import pause
from gpu_worker.scheduling.core import TIMER_S, Core
from gpu_worker.scheduling.entries import State, StreamEntry
from gpu_worker.scheduling.interface import Answer, Decision, Outcome, Request, Step, StepReport, Waits, Work
from gpu_worker.scheduling.pace import Bounds, Share, compose, order
from gpu_worker.scheduling.plan import EngineLimits, TierPlan, prior_cost
from gpu_worker.scheduling.window import Pressing, settle_iterations
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import Settings
from tailkeeper.model.arrivals import SLOW_TAU_S, Rate
from tailkeeper.model.iterations import Cost, IterationLatency, saturation
from tailkeeper.model.lengths import OutputLengths

QUEUED, RUNNING, GONE = State.QUEUED, State.RUNNING, State.GONE

IMMUNE_AFTER = 3
"""Preemptions (k) after which a request keeps its slot."""
ENOUGH_ENDED = 20
"""Requests that must have ended before a tier's own lengths are believed."""
USUAL_STEP = 0.002
"""By which the estimate of the median iteration moves up or down with each."""
RATE_DEADLINES = 2.0
"""A tier's rate remembers this many deadlines: over less, a few requests that take long would move the window."""


class IterationScheduler(Core[StreamEntry]):
    """Implements `Scheduler` in the modes `continuous`, `request` (nobody joins a batch under way) and `fixed`."""

    _make = StreamEntry

    def __init__(self, settings: Settings, now_s: float, limits: EngineLimits) -> None:
        super().__init__(settings, now_s, limits)
        self._latency = IterationLatency(prior_cost(self._plan.prior))
        self._lengths = OutputLengths()
        self._tier_lengths: dict[str, OutputLengths] = {}
        self._kept: dict[str, StreamEntry] = {}
        """Whose tokens are in the engine's KV memory, the preempted among them."""
        self._kv_tokens = 0
        """KV memory that they may come to need."""
        self._evicted: list[StreamEntry] = []
        self._shares: list[Share] = []
        self._rates: dict[str, Rate] = {}
        """Arrivals of each tier."""
        self._usual_s = 0.0
        """The median iteration in which somebody decodes; 0 before the first. One that only takes in a prompt is no
        pace: a first long prompt would otherwise be taken for it, and everybody refused."""
        self._settle(now_s)

    # -- the policy

    def next(self, now_s: float) -> Decision:
        """The next iteration, if one should run now."""
        answers = self._expire(now_s)
        if any(entry.state is not RUNNING for entry in self._running):
            self._running = [entry for entry in self._running if entry.state is RUNNING]
        self._judge_load(now_s)
        slots = self._settle(now_s)
        if not self._running and not self._backlog.n:
            return Decision(None, tuple(answers))
        start_at_s = self._start_at_s(slots, now_s)
        if start_at_s > now_s + TIMER_S:
            self._company.hold(self._backlog.n + len(self._running), now_s)
            for entry in self._running:
                if entry.started:
                    entry.hold(now_s)
            return Decision(None, tuple(answers), min(start_at_s, self._wake_at_s() or math.inf))
        self._company.start(self._backlog.n + len(self._running), self._arrivals.mean_gap_s, now_s)
        preempted: list[StreamEntry] = []
        if not self._running or self._plan.mode is Mode.CONTINUOUS:
            self._admit(slots, now_s, answers)
            self._cut_in(slots, preempted)
        step = self._iterate(preempted, now_s) if self._running else None
        return Decision(step, tuple(answers), self._wake_at_s())

    def _start_at_s(self, slots: int, now_s: float) -> float:
        """When the engine goes on."""
        plan, running, cost = self._plan, self._running, self._latency.cost
        if plan.mode is Mode.FIXED:
            return self._backlog.hold_end_s() if not running and self._backlog.n < slots else now_s
        if not plan.dynamic or cost is None or (running and plan.mode is not Mode.CONTINUOUS):
            return now_s
        count = self._backlog.n + len(running)
        if count >= self._fill(slots) or self._company.never_comes(count):
            return now_s
        pressing = self._pressing(now_s)
        if pressing is not None and pressing.load(slots, cost) >= pause.NO_TIME_TO_LOSE:
            return now_s
        return pause.until_s(
            pause.Paused(self._backlog, running, self._remaining, self._clock.rest_s(now_s)),
            plan,
            self._arrivals,
            cost,
            self._lengths,
            slots,
            now_s,
        )

    def _admit(self, size: int, now_s: float, answers: list[Answer]) -> None:
        """Free places go to the first in order, as far as their memory reaches."""
        backlog, cost = self._backlog, self._latency.cost
        finish_s = due_by_s = -math.inf
        prompt_s = beta_s = 0.0
        may_refuse = True
        if cost is not None and self._lengths.seen and self._plan.mode is not Mode.FIXED:
            lengths, step_s = self._waiting_lengths(), max(self._usual_s, cost.at(0, size, 0))
            beta_s = cost.beta
            prompt_s = beta_s * lengths.mean_prompt
            typical_s = prompt_s + lengths.remaining(0, 0.5) * step_s
            longest_s = prompt_s + lengths.longest * step_s + self._plan.margin_s
            # while all that come cannot be served, those with the time that even a long one takes are
            finish_s = now_s + (longest_s if self._overloaded[0] else typical_s)
            due_by_s = finish_s + 2.0 * typical_s + self._plan.margin_s
            may_refuse = self._may_refuse(cost.at(self._lengths.mean_prompt, 1, 0), now_s)
        if may_refuse:
            self._shed_late(now_s, answers)
        while (free := size - len(self._running)) > 0 and backlog.n:
            batch = backlog.take(free, finish_s, due_by_s, self._claim)
            for entry in batch:
                own_s = prompt_s - beta_s * entry.target  # how much sooner than the usual prompt its own is taken in
                if may_refuse and finish_s - own_s > self._limit_s(entry) and not entry.started:
                    answers.append(self._end(entry, Outcome.SHED, now_s))
                else:
                    self._join(entry)
            if not batch:
                break

    def _cut_in(self, size: int, preempted: list[StreamEntry]) -> None:
        """A tier that preempts runs up to the window, whoever runs below it: these are left out of the iteration, and
        where no slot is free one loses its own: of the lowest tier the newest, never one that lost it k times or that
        has it from its reserve."""
        if not self._plan.priority:
            return
        for queue in self._backlog.queues:
            if not queue.plan.preempts or not queue.n:
                continue
            index = queue.plan.index
            room = size - sum([entry.tier.index <= index for entry in self._running])
            while room > 0 and (entry := queue.head() or queue.late_head()) is not None:
                if len(self._running) >= self._window.cap or not self._claim(entry):
                    victim = self._victim(index)
                    if victim is None:
                        return
                    self._pause(victim, preempted)
                    if not self._claim(entry):
                        self._evict(victim)
                        continue
                self._backlog.remove(entry, RUNNING)
                self._join(entry)
                room -= 1

    def _victim(self, tier_index: int) -> StreamEntry | None:
        lower = [
            entry
            for entry in self._running
            if entry.tier.index > tier_index and entry.preemptions < IMMUNE_AFTER and not entry.reserved
        ]
        return max(lower, key=lambda entry: (entry.tier.index, entry.seq), default=None)

    def _iterate(self, preempted: list[StreamEntry], now_s: float) -> Step:
        """Says who works, and books everybody's time."""
        plan, cost = self._plan, self._latency.cost
        if not plan.dynamic or plan.mode is Mode.FIXED or cost is None or not self._lengths.seen:
            shares = self._everybody()
        else:
            shares = compose(self._running, now_s, cost, self._remaining, self._bounds(cost, now_s))
        self._shares = shares
        self._clock.start(now_s)
        self._steps += 1
        working = {share.entry.seq for share in shares}
        work = []
        for share in shares:
            entry = share.entry
            if not entry.started:
                self._clock.leave((entry,), now_s)
                entry.start(now_s)
            work.append(Work(entry.request, share.prefill, not share.prefill))
        for entry in self._running:
            if entry.started:
                entry.work(entry.seq in working, now_s)
        for entry in preempted:
            if entry.started:
                entry.work(False, now_s)
        self._running_hard_s = min([entry.hard_s for entry in self._running])
        evicted, self._evicted = self._evicted, []
        return Step(
            self._steps,
            tuple(work),
            tuple(entry.request for entry in preempted if entry.state is QUEUED),
            self._window.window,
            tuple(entry.request for entry in evicted),
        )

    def _everybody(self) -> list[Share]:
        """Without a policy: all decode, and all prompts are prefilled, as far as the token budget reaches."""
        tokens: float = math.inf if self._plan.token_budget is None else self._plan.token_budget
        shares = []
        for entry in self._running:
            wanted = entry.target - entry.prefilled
            chunk = int(min(wanted, max(tokens, 1.0))) if wanted > 0 else 0
            if tokens < 1.0:
                break
            shares.append(Share(entry, chunk))
            tokens -= chunk or 1
        return shares

    # -- what the policy asks for

    def _bounds(self, cost: Cost, now_s: float) -> Bounds:
        plan = self._plan
        tier = self._running[0].tier
        rate = self._rates.get(tier.name)
        rate_per_s = rate.per_s(now_s) if rate is not None else 0.0
        inter_token_s = math.inf
        if plan.inter_token_sla_s is not None:
            inter_token_s = plan.inter_token_sla_s * (1.0 - plan.margin)
        return Bounds(
            window=self._window.window,
            margin_s=plan.margin_s,
            usual_s=self._usual_s or cost.at(0, 1, 0),
            inter_token_s=inter_token_s,
            whole_s=cost.beta * self._lengths.mean_prompt if plan.inter_token_sla_s is None else 0.0,
            prefill_share=1.2 * rate_per_s * cost.beta * self._lengths_of(tier).mean_prompt,
            tokens=math.inf if plan.token_budget is None else plan.token_budget,
        )

    def _remaining(self, entry: StreamEntry) -> float:
        """Tokens that it may still produce: to the 99th percentile of all, and past that as many as are usual."""
        generated = entry.generated
        left = self._lengths_of(entry.tier).longest - generated
        if left < 1.0:
            left = self._lengths_of(entry.tier).remaining(generated, 0.5)
        return max(1.0, min(left, entry.most - generated))

    def _lengths_of(self, tier: TierPlan) -> OutputLengths:
        lengths = self._tier_lengths.get(tier.name)
        return self._lengths if lengths is None or lengths.seen < ENOUGH_ENDED else lengths

    def _waiting_lengths(self) -> OutputLengths:
        """Of the highest tier that waits."""
        for queue in self._backlog.queues:
            if queue.n:
                return self._lengths_of(queue.plan)
        return self._lengths

    def _fill(self, slots: int) -> int:
        """W_sat: enough company."""
        cost, lengths = self._latency.cost, self._lengths
        return 1 if cost is None else saturation(cost, lengths.mean_prompt, lengths.mean_output, slots)

    def _settle(self, now_s: float) -> int:
        cost, lengths = self._latency.cost, self._lengths
        if cost is not None and lengths.seen and self._plan.mode is not Mode.FIXED:
            self._serves_in(cost.per_request(self._window.cap, lengths.mean_prompt, lengths.mean_output))
        pressing = self._pressing(now_s) if lengths.seen else None
        return settle_iterations(self._window, self._plan, cost, pressing, self._limits.max_batch)

    def _pressing(self, now_s: float) -> Pressing | None:
        """The highest tier that runs or waits."""
        highest = self._running[0].tier.index if self._running else len(self._plan.tiers)
        for queue in self._backlog.queues[:highest]:
            if queue.n:
                highest = queue.plan.index
                break
        if highest == len(self._plan.tiers):
            return None
        tier = self._plan.tiers[highest]
        rate, lengths = self._rates.get(tier.name), self._lengths_of(tier)
        return Pressing(
            tier.deadline_s,
            rate.per_s(now_s) if rate is not None else 0.0,
            lengths.mean_prompt,
            lengths.mean_output,
            lengths.longest,
            self._backlog.queues[highest].n,
            lengths.remaining(0, 0.9),
        )

    def submit(self, request: Request, now_s: float) -> tuple[Answer, ...]:
        """As in `Core`; and counts the tier's own rate. What the memory can never hold has failed."""
        kv_tokens = self._limits.kv_tokens
        if kv_tokens is not None and request.prompt_tokens + request.max_output_tokens > kv_tokens:
            return (Answer(request, Outcome.ERROR, Waits(), now_s),)
        answers = super().submit(request, now_s)
        rate = self._rates.get(request.tier)
        if rate is None:
            tau_s = max(SLOW_TAU_S, RATE_DEADLINES * self._tiers[request.tier].deadline_s)
            rate = self._rates[request.tier] = Rate(tau_s)
        rate.arrive(now_s)
        return answers

    def _patience_s(self, tier: TierPlan) -> float:
        cost = self._latency.cost
        if cost is None:
            return 3.0 * tier.deadline_s
        lengths = self._lengths
        whole_s = cost.beta * lengths.mean_prompt + lengths.mean_output * cost.at(0, self._window.window, 0)
        return tier.deadline_s + 2.0 * whole_s

    def _coefficients(self) -> dict[str, float]:
        cost = self._latency.cost
        if cost is None:
            return {}
        known = {"alpha": cost.alpha, "beta": cost.beta, "gamma": cost.gamma, "delta": cost.delta}
        if self._lengths.seen:
            known |= {"prompt_tokens": self._lengths.mean_prompt, "output_tokens": self._lengths.mean_output}
        return known

    # -- slots and memory

    @property
    def kept_tokens(self) -> int:
        """KV memory that is spoken for, in tokens."""
        return self._kv_tokens

    def _join(self, entry: StreamEntry) -> None:
        insort(self._running, entry, key=order)

    def _pause(self, victim: StreamEntry, preempted: list[StreamEntry]) -> None:
        self._running.remove(victim)
        victim.preemptions += 1
        preempted.append(victim)
        self._backlog.put_back(victim)

    def _claim(self, entry: StreamEntry) -> bool:
        """Takes the memory that it may come to need, if need be from preempted ones that stand behind it."""
        if not entry.kept:
            if not self._has_room(entry) and not self._make_room(entry):
                return False
            entry.kept = True
            self._kept[entry.id] = entry
            self._kv_tokens += entry.tokens
        return True

    def _make_room(self, entry: StreamEntry) -> bool:
        behind = [e for e in self._kept.values() if e.state is QUEUED and self._stands_behind(e, entry)]
        behind.sort(key=lambda other: (other.tier.index, other.key), reverse=True)
        for other in behind:
            self._evict(other)
            if self._has_room(entry):
                return True
        return False

    def _stands_behind(self, other: StreamEntry, entry: StreamEntry) -> bool:
        return not self._running or other.tier.index > entry.tier.index or other.key > entry.key

    def _has_room(self, entry: StreamEntry) -> bool:
        limits = self._limits
        if limits.max_batch is not None and len(self._kept) >= limits.max_batch:
            return False
        return limits.kv_tokens is None or self._kv_tokens + entry.tokens <= limits.kv_tokens

    def _evict(self, entry: StreamEntry) -> None:
        """Takes a preempted request's memory: what it has is prefilled again when it goes on."""
        self._release(entry)
        entry.target = entry.request.prompt_tokens + entry.generated
        entry.prefilled = 0
        self._evicted.append(entry)

    def _release(self, entry: StreamEntry) -> None:
        if entry.kept:
            entry.kept = False
            del self._kept[entry.id]
            self._kv_tokens -= entry.tokens

    def _end(self, entry: StreamEntry, outcome: Outcome, ended_s: float) -> Answer:
        self._release(entry)
        return super()._end(entry, outcome, ended_s)

    # -- the engine's report

    def finished(self, report: StepReport, now_s: float) -> tuple[Answer, ...]:
        """Takes in what an iteration did. A step that this scheduler did not start only teaches the latency model."""
        seconds = report.ended_s - report.started_s
        own = self._clock.running and report.step.number == self._steps
        prefill = decoding = kv = 0
        for work in report.step.work:
            prefill += work.prefill_tokens
            decoding += work.decode
        if own:
            kv = sum([share.entry.prefilled + share.prefill + share.entry.generated for share in self._shares])
        else:
            kv = prefill
        if not report.failed:
            self._latency.learn(prefill, decoding, kv, seconds)
        if not own:
            return ()
        self._clock.end(report.ended_s)
        if not self._usual_s:
            self._usual_s = seconds if decoding and not prefill else 0.0
        elif decoding:
            self._usual_s *= 1.0 + USUAL_STEP if seconds > self._usual_s else 1.0 - USUAL_STEP
        self._count_iteration(prefill, decoding, kv, seconds, now_s)
        return tuple(self._advance(report))

    def _advance(self, report: StepReport) -> list[Answer]:
        answers = []
        ended_s, completed, failed = report.ended_s, report.completed, report.failed
        for share in self._shares:
            entry = share.entry
            if entry.state is not RUNNING:
                continue
            if entry.id in failed:
                answers.append(self._end(entry, Outcome.ERROR, ended_s))
                continue
            entry.prefilled += share.prefill
            if entry.prefilled >= entry.target:
                entry.generated += 1
            if entry.id in completed:
                self._learn_length(entry)
                outcome = Outcome.OK if ended_s <= entry.deadline_s else Outcome.LATE
                answers.append(self._end(entry, outcome, ended_s))
        self._shares = []
        return answers

    def _learn_length(self, entry: StreamEntry) -> None:
        prompt, output = entry.request.prompt_tokens, max(1, entry.generated)
        self._lengths.learn(prompt, output)
        own = self._tier_lengths.get(entry.tier.name)
        if own is None:
            own = self._tier_lengths[entry.tier.name] = OutputLengths()
        own.learn(prompt, output)

    def _count_iteration(self, prefill: int, decoding: int, kv: int, seconds: float, now_s: float) -> None:
        cost = self._latency.cost
        if cost is None:
            return
        saturated = self._fill(self._plan.idle)
        ideal_s = cost.beta * prefill + (cost.gamma + cost.alpha / saturated) * decoding + cost.delta * kv
        self._count_work(ideal_s, seconds, now_s)
