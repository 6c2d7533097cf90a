"""What the tuner of one instance did, as events: moves when they are made, what became of them, the way back inside."""

import math
from typing import Final

from tailkeeper.control.explain import moves_text, with_action
from tailkeeper.control.observation import Observation, Value
from tailkeeper.control.record import Tick
from tailkeeper.control.samples import Unknown
from tailkeeper.local.events import Event, Happening, Tell
from tailkeeper.reconcile.announce import SAME_AGAIN_S, describe_move
from tailkeeper.reconcile.settings_plan import Plan

_BY_PEOPLE: Final = frozenset({"Spec", "Manual"})


class Narration:
    """Of one instance."""

    def __init__(self, instance: str, tell: Tell) -> None:
        self._instance = instance
        self._tell = tell
        self._action = "none"
        """What was moved last in the breach that lasts."""
        self._advised: dict[str, float] = {}
        """What was recommended, and when it was said."""
        self._complaint = ""

    def written(self, plan: Plan) -> None:
        """Settings as they were planned; says what is new about them."""
        if plan.complaint and plan.complaint != self._complaint:
            self._say(Happening.REFUSED, f"manual value refused: {plan.complaint}")
        self._complaint = plan.complaint
        if not plan.rewrite:
            return
        generation, move = plan.settings.generation, plan.move
        if move is None or move.generation != generation:
            self._say(
                Happening.SETTINGS, f"generation {generation}, first settings", generation=generation, cause="Spec"
            )
            return
        cause = move.cause.value
        what = describe_move(move) if cause in _BY_PEOPLE else f"{cause}: {move.numbers}"
        self._say(
            Happening.SETTINGS,
            f"generation {generation}, {what}",
            generation=generation,
            cause=cause,
            changes=[change.to_json() for change in move.changes],
            numbers=move.numbers,
        )

    def looked(self, tick: Tick, now_s: float) -> None:
        """One look and its decision, but for the step, which is told once it is written."""
        decision = tick.decision
        if decision.ended is not None:
            ended = decision.ended
            word = "kept" if ended.outcome.value == "Kept" else "rolled back"
            self._say(
                Happening.ENDED,
                f"generation {ended.generation} ({ended.cause.value}) was {word} after {ended.after_s:.0f} s",
                generation=ended.generation,
                cause=ended.cause.value,
                outcome=ended.outcome.value,
            )
        if tick.next_state.reverted_in_s is not None and tick.state.breach_since_s is not None:
            numbers, self._action = with_action(decision.numbers, self._action), "none"
            self._say(
                Happening.RECOVERED,
                f"inside the SLA again: {numbers}",
                numbers=numbers,
                revertedInSeconds=round(tick.next_state.reverted_in_s, 1),
            )
        if decision.step is not None:
            self._action = moves_text(decision.step.moves)
        if decision.recommended is not None:
            self._advise(f"{decision.recommended.cause.value}: {moves_text(decision.recommended.moves)}", tick, now_s)

    def status(self, tick: Tick | None, ready: int, workers: int, generation: int) -> None:
        """How it stands."""
        words = [f"{ready}/{workers} ready", *(_numbers(tick) if tick and ready else [])]
        words.append(f"generation={generation}")
        self._say(Happening.STATUS, " ".join(words), ready=ready, workers=workers, generation=generation)

    def _advise(self, advice: str, tick: Tick, now_s: float) -> None:
        """The same advice once in ten minutes; it is decided anew with every look, on other numbers."""
        if now_s - self._advised.get(advice, -math.inf) < SAME_AGAIN_S:
            return
        self._advised[advice] = now_s
        numbers = tick.decision.numbers
        self._say(Happening.RECOMMENDED, f"would move {advice} ({numbers})", advice=advice, numbers=numbers)

    def _say(self, what: Happening, text: str, **facts: object) -> None:
        self._tell(Event(what, text, self._instance, facts=facts))


def _numbers(tick: Tick) -> list[str]:
    return [*_observed(tick.observation, tick.settings.ceiling), *_judged(tick)]


def _observed(observation: Observation, ceiling: int) -> list[str]:
    if isinstance(observation, Unknown):
        return [f"unreadable ({observation.text})"]
    if not isinstance(observation, Value):
        return ["idle"]
    words = [f"rate={observation.short.rate_per_s:.3g}/s"]
    words += [
        f"{each.tier}: avg={each.mean_s * 1000:.0f}ms p95={each.p95.text()} p99={each.p99.text()}"
        for each in observation.latencies
    ]
    if observation.gauges.window is not None:
        words.append(f"window={observation.gauges.window:.0f}/{ceiling}")
    return words


def _judged(tick: Tick) -> list[str]:
    met, still = tick.decision.sla_met, tick.decision.still
    words = [] if met is None else [f"sla_breached={str(not met).lower()}"]
    return [*words, *([f"still={still.value}"] if still else [])]
