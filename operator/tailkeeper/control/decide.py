"""The tuner: one pure function from what is known of an instance to a step, or to the name of the reason for none.

`decide` does no I/O and has no clock. It is given the settings in force and finds out by itself what became of the
step it decided last, and whether someone else moved a lever meanwhile; so nothing breaks when a write failed, when a
tick was skipped, or when the operator was killed between the write and the next tick."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tailkeeper.api.enums import MoveCause, MoveOutcome, RetuneMode, StillReason
from tailkeeper.api.levers import Move, values_of
from tailkeeper.api.settings import Settings
from tailkeeper.control import explain
from tailkeeper.control.attribute import attribute
from tailkeeper.control.capacity import Capacity, capacity
from tailkeeper.control.catch_up import catch_up
from tailkeeper.control.check import harmed, measure, proven, undone
from tailkeeper.control.decision import Decision, Ended, Step
from tailkeeper.control.freeze import Situation, Still, freeze, noticed
from tailkeeper.control.judge import Finding, Verdict, judge
from tailkeeper.control.move import Bounds, mend, toward_efficiency, toward_lower_tiers
from tailkeeper.control.observation import Observation, Value
from tailkeeper.control.restraint import calmed, exhausted, may_mend, may_recover, permitted, reverses
from tailkeeper.control.state import State, Trial, Try

MOST: Final = 0.5
WAITING: Final = 1.0
"""Lower tiers want engine time back when so many of their requests wait."""


def decide(
    state: State, observation: Observation, settings: Settings, bounds: Bounds, situation: Situation, now_s: float
) -> tuple[State, Decision]:
    """One tick of one instance. `settings` are those in force, the newest written; `now_s` never goes back."""
    landed = state.generation not in (0, settings.generation)
    state, ended = catch_up(calmed(state, now_s), settings, now_s)
    # Settings travel in under a second: in sync at the first look means since they were written.
    since_s = state.trial.at_s if landed and state.trial is not None else now_s
    state = noticed(state, observation, settings, situation, since_s)
    frozen = freeze(state, observation, settings, situation, now_s)
    if not isinstance(observation, Value):
        assert frozen is not None, "freeze() lets only a Value pass"
        return state, Decision(still=frozen.reason, why=frozen.why, ended=ended)
    tick = _Tick(observation, settings, bounds, judge(observation, settings), capacity(observation, settings), now_s)
    if frozen is not None:
        return replace(state, queued=tick.queued), tick.decision(frozen, ended, state)
    state = tick.timed(state)
    if state.trial is not None and proven(state.in_sync_since_s or now_s, tick.findings, now_s):
        ended = tick.end(state.trial, MoveOutcome.KEPT)
        state = replace(state, trial=None)
    step = tick.step(state)
    after = replace(state, before=measure(tick.findings, observation), queued=tick.queued)
    if isinstance(step, Still):
        return after, tick.decision(step, ended, state)
    if situation.mode is RetuneMode.RECOMMEND:
        return after, tick.decision(step, ended, state, recommend=True)
    if step.cause is MoveCause.ROLLBACK and state.trial is not None:
        ended = tick.end(state.trial, MoveOutcome.ROLLED_BACK)
    return replace(after, proposed=tick.trial(step)), tick.decision(step, ended, state)


@dataclass(frozen=True, slots=True)
class _Tick:
    """One tick's numbers, and what follows from them."""

    value: Value
    settings: Settings
    bounds: Bounds
    findings: tuple[Finding, ...]
    capacity: Capacity | None
    now_s: float

    def step(self, state: State) -> Step | Still:
        """The policy: take back what harmed; else mend what is broken; else recover, if there is room."""
        if state.trial is not None and harmed(state.trial, self.findings, self.value) is not None:
            back = undone(state.trial, self.settings, self.bounds, self.capacity)
            if back:
                return self._to(MoveCause.ROLLBACK, back)
        broken = [finding for finding in self.findings if finding.broken]
        return self._mend(broken, state) if broken else self._recover(state)

    def _mend(self, broken: list[Finding], state: State) -> Step | Still:
        tight = barred = waiting = False
        for finding in broken:
            diagnosis = attribute(finding, self.value, self.settings, self.capacity)
            if diagnosis.short:
                return Still(StillReason.CAPACITY_SHORT, self._how_short())
            for cause in diagnosis.causes:
                if exhausted(cause, finding, self.value.short.rate_per_s, state, self.now_s):
                    barred = True
                    continue
                wanted = mend(cause, finding, diagnosis, self.value, self.settings, self.capacity)
                allowed = permitted(wanted, self.bounds, state, self.now_s)
                turns = reverses(allowed, values_of(self.settings), state, self.now_s)
                if allowed and may_mend(turns, self.value.short.rate_per_s, state, self.now_s):
                    return self._to(cause, allowed, finding)
                barred = barred or self._unpinned(wanted)
            tight = tight or diagnosis.tight
            waiting = waiting or diagnosis.shares.waiting >= MOST
        if tight:
            return Still(StillReason.CAPACITY_SHORT, self._how_short())
        if barred:
            return Still(StillReason.COOLDOWN, "what could help was tried within the last hour and did not")
        if waiting:
            return Still(StillReason.CAPACITY_SHORT, "no lever is left, and what is late waits for the engine")
        return Still(StillReason.AT_BOUND, f"no lever left for the {broken[0].objective.value} of {broken[0].tier}")

    def _recover(self, state: State) -> Step | Still:
        if all(finding.verdict is Verdict.FEW for finding in self.findings):
            return Still(StillReason.FEW_SAMPLES, "too few requests for a verdict, as far back as 15 minutes")
        if state.trial is not None or not self._clean_for_two_look_backs(state) or self.value.short.requests == 0:
            return Still(StillReason.WITHIN_SLA)
        held = False
        for wanted in self._wanted():
            allowed = permitted(wanted, self.bounds, state, self.now_s)
            turns = reverses(allowed, values_of(self.settings), state, self.now_s)
            if allowed and may_recover(turns, state, self.now_s):
                return self._to(MoveCause.RECOVERY, allowed)
            held = held or self._unpinned(wanted)
        return Still(StillReason.COOLDOWN, "recovery was reversed lately") if held else Still(StillReason.WITHIN_SLA)

    def _wanted(self) -> Iterator[tuple[Move, ...]]:
        efficiency = self.value.gauges.efficiency
        if efficiency is not None and efficiency * 100 < self.settings.min_efficiency_percent:
            yield from toward_efficiency(self.value, self.settings, self.bounds.spec, self.capacity)
        highest = self.settings.tiers[0].name
        if sum(waiting for tier, waiting in self.value.gauges.queue.items() if tier != highest) >= WAITING:
            yield from toward_lower_tiers(self.settings, self.bounds.spec)

    def _clean_for_two_look_backs(self, state: State) -> bool:
        """Clean now, and as long ago as the look-back that says so is long."""
        spans = [finding.span_s for finding in self.findings if finding.verdict is Verdict.CLEAN]
        return state.clean_since_s is not None and self.now_s - state.clean_since_s >= max(spans, default=0.0)

    def timed(self, state: State) -> State:
        """Since when it has been clean, or in breach, and how long the last breach took."""
        clean_since_s = state.clean_since_s if state.clean_since_s is not None else self.now_s
        state = replace(state, clean_since_s=clean_since_s if self._clean() else None)
        if self.sla_met is False and state.breach_since_s is None:
            return replace(state, breach_since_s=self.now_s, reverted_in_s=None)
        if self.sla_met is True and state.breach_since_s is not None:
            return replace(state, breach_since_s=None, reverted_in_s=self.now_s - state.breach_since_s)
        return state

    def _clean(self) -> bool:
        """Every tier that has enough requests is; those that have few had none late."""
        verdicts = {finding.verdict for finding in self.findings if finding.verdict is not Verdict.FEW}
        few_late = any(finding.verdict is Verdict.FEW and finding.late.k > 0 for finding in self.findings)
        return verdicts == {Verdict.CLEAN} and not few_late

    @property
    def sla_met(self) -> bool | None:
        """None while every objective has too few requests."""
        if any(finding.broken for finding in self.findings):
            return False
        return True if any(finding.verdict is not Verdict.FEW for finding in self.findings) else None

    @property
    def queued(self) -> float:
        """Requests waiting, of all tiers."""
        return sum(self.value.gauges.queue.values())

    def trial(self, step: Step) -> Trial:
        """That step, on trial from now on."""
        before, broken = measure(self.findings, self.value), step.finding
        attempt = Try(step.cause, broken.tier, broken.excess, self.now_s, before.rate_per_s) if broken else None
        return Trial(
            self.settings.generation + 1, step.cause, step.left, step.moves, self.now_s, before, self.queued, attempt
        )

    def end(self, trial: Trial, outcome: MoveOutcome) -> Ended:
        """What became of a trial."""
        return Ended(
            generation=trial.generation,
            cause=trial.cause,
            outcome=outcome,
            after_s=self.now_s - trial.at_s,
            efficiency_before=trial.before.efficiency,
            efficiency_after=self.value.gauges.efficiency,
        )

    def decision(self, outcome: Step | Still, ended: Ended | None, state: State, recommend: bool = False) -> Decision:
        """The outcome with the numbers that caused it."""
        step = outcome if isinstance(outcome, Step) else None
        still = outcome if isinstance(outcome, Still) else None
        action = explain.moves_text(step.moves) if step else f"none({still.reason if still else ''})"
        back = step is not None and step.cause is MoveCause.ROLLBACK and ended is not None
        reverted_in_s = ended.after_s if back and ended is not None else state.reverted_in_s
        short = still is not None and still.reason is StillReason.CAPACITY_SHORT
        return Decision(
            step=None if recommend else step,
            recommended=step if recommend else None,
            still=still.reason if still else None,
            why=still.why if still else step.cause.value if step else "",
            numbers=explain.line(self.value, self.settings, self.findings, action, reverted_in_s),
            sla_met=self.sla_met,
            capacity_short=short,
            replicas_needed=self._replicas_needed(short),
            ended=ended,
        )

    def _to(self, cause: MoveCause, moves: tuple[Move, ...], finding: Finding | None = None) -> Step:
        now = values_of(self.settings)
        return Step(cause, tuple(Move(move.key, now[move.key]) for move in moves), moves, finding)

    def _unpinned(self, moves: tuple[Move, ...]) -> bool:
        return any(move.key.lever not in self.bounds.pinned for move in moves)

    def _replicas_needed(self, short: bool) -> int | None:
        """At least one more than there are, when there are too few."""
        needed = self.capacity.replicas_needed if self.capacity is not None else None
        return max(needed or 0, self.value.pods + 1) if short else needed

    def _how_short(self) -> str:
        speed = self.capacity
        if speed is None:
            return ""
        return (
            f"{speed.rate_per_s * speed.pods:.3g} requests a second arrive, {speed.pods} workers at their widest "
            f"useful window ({speed.widest}) serve {speed.line.rate(speed.widest) * speed.pods:.3g}: "
            f"{self._replicas_needed(True)} workers would do"
        )
