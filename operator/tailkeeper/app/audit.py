"""What the tuner did and why it did nothing, for people: log lines, Events, metrics.

Events of moves that were written come from the reconcile that wrote them; here are those of moves that were not."""

import logging
from collections.abc import Awaitable, Callable

from tailkeeper.api.enums import ConditionStatus
from tailkeeper.app.metrics import Metrics
from tailkeeper.control.decision import Step
from tailkeeper.control.explain import moves_text, with_action
from tailkeeper.control.record import Tick
from tailkeeper.control.samples import InstanceKey
from tailkeeper.reconcile.announce import NORMAL, SAME_AGAIN_S, Announcement
from tailkeeper.reconcile.moves import Answer, Fate
from tailkeeper.reconcile.status import Verdict
from tailkeeper.reconcile.store import Key
from tailkeeper.reconcile.tuned import Tuned

logger = logging.getLogger("tailkeeper.tuner")


class Audit:
    """Tells what came of each look."""

    def __init__(self, metrics: Metrics, announce: Callable[[Key, Announcement], Awaitable[None]]) -> None:
        self._metrics = metrics
        self._announce = announce
        self._actions: dict[InstanceKey, str] = {}
        """What was moved last in the breach that lasts."""
        self._recommended: dict[InstanceKey, dict[str, float]] = {}
        """What was recommended, and when it was said."""

    def found(self, tuned: Tuned, metrics: Verdict | None) -> None:
        """An instance as it was found; `metrics`: whether its counters can be read."""
        self._metrics.settings_generation.labels(*tuned.key).set(tuned.settings.generation)
        self._metrics.ready_workers.labels(*tuned.key).set(len(tuned.pods))
        if metrics is None or metrics.status is ConditionStatus.UNKNOWN:
            self._metrics.metrics_available.remove(*tuned.key)
        else:
            self._metrics.metrics_available.labels(*tuned.key).set(metrics.status is ConditionStatus.TRUE)

    async def looked(self, key: InstanceKey, tick: Tick, missing: int, now_s: float) -> None:
        """One look and its decision. `missing`: workers that there are too few of."""
        decision = tick.decision
        if decision.still is not None:
            self._metrics.still.labels(decision.still.value).inc()
            logger.debug("%s: %s: %s %s", key, decision.still.value, decision.why, decision.numbers)
        if decision.replicas_needed is not None:
            self._metrics.replicas_needed.labels(*key).set(decision.replicas_needed)
        self._metrics.capacity_short.labels(*key).set(missing)
        if decision.ended is not None:
            ended = decision.ended
            logger.info("%s: generation %d (%s) was %s", key, ended.generation, ended.cause.value, ended.outcome.value)
            self._metrics.outcomes.labels(*key, ended.outcome.value).inc()
        if tick.next_state.reverted_in_s is not None and tick.state.breach_since_s is not None:
            action = self._actions.pop(key, "none")
            logger.info("%s: inside the SLA again: %s", key, with_action(decision.numbers, action))
        if decision.recommended is not None:
            await self._recommend(key, decision.recommended, decision.numbers, now_s)

    def proposed(self, key: InstanceKey, tick: Tick, step: Step, answer: Answer) -> None:
        """What became of a step."""
        if answer.fate is not Fate.WRITTEN:
            logger.info("%s: %s was not written: %s %s", key, moves_text(step.moves), answer.fate.value, answer.message)
            return
        logger.info("%s: generation %d, %s: %s", key, answer.generation, step.cause.value, tick.decision.numbers)
        self._metrics.moves.labels(*key, step.cause.value).inc()
        self._actions[key] = moves_text(step.moves)

    def forget(self, key: InstanceKey) -> None:
        """The instance is gone."""
        self._actions.pop(key, None)
        self._recommended.pop(key, None)
        metrics = self._metrics
        for gauge in (
            metrics.capacity_short,
            metrics.replicas_needed,
            metrics.settings_generation,
            metrics.ready_workers,
            metrics.metrics_available,
        ):
            gauge.remove(*key)

    async def _recommend(self, key: InstanceKey, step: Step, numbers: str, now_s: float) -> None:
        """The same advice once in ten minutes; it is decided anew with every look, on other numbers."""
        advice = f"{step.cause.value}: {moves_text(step.moves)}"
        said = {what: at_s for what, at_s in self._recommended.get(key, {}).items() if now_s - at_s < SAME_AGAIN_S}
        self._recommended[key] = said
        if advice in said:
            return
        said[advice] = now_s
        self._metrics.recommendations.labels(*key, step.cause.value).inc()
        message = f"{key.instance}: {advice} ({numbers})"
        await self._announce(Key(key.namespace, key.policy), Announcement(NORMAL, "MoveRecommended", message))
