"""The tuner's loop: reads the counters of all instances at once, has each decided on, and hands on what was decided.

No policy is in here: what to read is `signals`, what is known of an instance is `reconcile.tuned`, the decision is
`control`, the conditions are `reconcile.measured`. One instance's trouble is its own."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailkeeper.api.enums import ConditionStatus, ConditionType, MoveOutcome
from tailkeeper.api.levers import move
from tailkeeper.app.audit import Audit
from tailkeeper.app.metrics import Metrics
from tailkeeper.control.decision import Ended, Step
from tailkeeper.control.observation import TierLatency
from tailkeeper.control.record import Tick, to_line
from tailkeeper.control.samples import InstanceKey, Reading, Unknown
from tailkeeper.control.tuner import Tuner
from tailkeeper.reconcile.announce import Announcement
from tailkeeper.reconcile.measured import Conditions
from tailkeeper.reconcile.moves import Answer, Proposal
from tailkeeper.reconcile.parsing import read_status
from tailkeeper.reconcile.status import Verdict
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.reconcile.tuned import Registry, Tuned
from tailkeeper.signals.direct import Target
from tailkeeper.signals.histograms import Latencies
from tailkeeper.signals.sources import Source
from tailkeeper.signals.worker_settings import WorkerReport

BEAT_S = 1.0
"""Policies say in whole seconds how often they are looked at."""
LATENCIES_S = 15.0
"""Quantiles are for people: read at a slower pace."""
LATENCIES_OVER_S = 60.0
WRITTEN_WITHIN_S = 15.0
"""A step that is not written by then is withdrawn: it was decided on what was then."""
LONGEST_NUMBERS = 1_000

logger = logging.getLogger(__name__)
ticks = logging.getLogger("tailkeeper.ticks")
"""At level debug every look as one line of JSON, which `control.record.replay` decides anew."""


@dataclass
class Ports:
    """How the loop reaches the rest of the operator."""

    propose: Callable[[Key, str, Proposal, float], Awaitable[Answer]]
    """Has settings written within so many seconds."""
    announce: Callable[[Key, Announcement], Awaitable[None]]
    wake: Callable[[Key], None]
    """A condition of this policy may have changed."""


@dataclass
class _Instance:
    """One instance between two looks."""

    tuner: Tuner = field(default_factory=Tuner)
    writing: asyncio.Task[None] | None = None


class TunerLoop:
    """`run` it; `conditions` are what it found out."""

    def __init__(
        self,
        store: Store,
        reports: Mapping[str, WorkerReport | None],
        source: Source,
        ports: Ports,
        metrics: Metrics,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._registry = Registry(store, reports)
        self._source = source
        self._ports = ports
        self._metrics = metrics
        self._audit = Audit(metrics, ports.announce)
        self._monotonic_s = monotonic_s
        self._conditions = Conditions()
        self._instances: dict[InstanceKey, _Instance] = {}
        self._looked: dict[Key, int] = {}
        self._ended: dict[InstanceKey, Ended] = {}
        self._latencies: Latencies = {}
        self._latencies_s = -LATENCIES_S

    def conditions(self, key: Key) -> Mapping[ConditionType, Verdict]:
        """The measured conditions of a policy, as far as they are settled."""
        manifest = self._store.policy(key)
        return self._conditions.of(key, read_status(manifest) if manifest else None)

    def outcome(self, key: Key, instance: str, generation: int) -> MoveOutcome | None:
        """What became of the move that made this generation; None while that is open, or was before a restart."""
        ended = self._ended.get(InstanceKey(key.namespace, key.name, instance))
        return ended.outcome if ended is not None and ended.generation == generation else None

    async def run(self) -> None:
        """Looks for ever."""
        try:
            while True:
                began_s = self._monotonic_s()
                await self.look(self.due(began_s))
                await asyncio.sleep(max(0.0, BEAT_S - (self._monotonic_s() - began_s)))
        finally:
            for instance in self._instances.values():
                if instance.writing is not None:
                    instance.writing.cancel()
            await self._source.close()

    async def look(self, due: Iterable[Key]) -> None:
        """One look at the instances of these policies."""
        tuned = [instance for key in due for instance in self._registry.instances(key)]
        if not tuned:
            return
        now_s = self._monotonic_s()
        began_s = time.monotonic()
        targets = [target for each in tuned for target in each.targets]
        reading = await self._source.read(targets, now_s)
        await self._read_latencies(targets, now_s)
        self._metrics.signals_seconds.observe(time.monotonic() - began_s)
        for each in tuned:
            try:
                await self._look_at(each, reading, self._monotonic_s())
            except Exception:  # a bug must not end the tuning of all the others
                logger.exception("%s: no decision", each.key)
                self._metrics.still.labels("Error").inc()
            await asyncio.sleep(0)

    async def written(self) -> None:
        """Returns when no step waits to be written."""
        await asyncio.gather(*(each.writing for each in self._instances.values() if each.writing is not None))

    async def _look_at(self, tuned: Tuned, reading: Reading | Unknown, now_s: float) -> None:
        instance = self._instances.setdefault(tuned.key, _Instance())
        if instance.writing is not None:
            return  # the step before is not decided upon yet
        tick = instance.tuner.look(
            read=reading if isinstance(reading, Unknown) else reading.of(tuned.key),
            pods=tuned.pods,
            latencies=self._latencies_of(tuned.key),
            settings=tuned.settings,
            bounds=tuned.bounds,
            situation=tuned.situation,
            now_s=now_s,
        )
        if ticks.isEnabledFor(logging.DEBUG):
            ticks.debug("%s %s", tuned.key, to_line(tick))
        self._tell_conditions(tuned, tick, now_s)
        if tick.decision.ended is not None:
            self._ended[tuned.key] = tick.decision.ended
            self._ports.wake(Key(tuned.key.namespace, tuned.key.policy))
        self._audit.found(tuned, self._conditions.metrics_of(tuned.key))
        await self._audit.looked(tuned.key, tick, self._conditions.missing_workers(tuned.key), now_s)
        if tick.decision.step is not None:
            instance.writing = asyncio.create_task(self._write(instance, tuned, tick, tick.decision.step))

    async def _write(self, instance: _Instance, tuned: Tuned, tick: Tick, step: Step) -> None:
        key = Key(tuned.key.namespace, tuned.key.policy)
        try:
            settings = move(tuned.settings, step.moves, tuned.bounds.spec)
            numbers = tick.decision.numbers[:LONGEST_NUMBERS]
            proposal = Proposal(tuned.settings.generation, settings, step.cause, numbers)
            answer = await self._ports.propose(key, tuned.key.instance, proposal, WRITTEN_WITHIN_S)
            self._audit.proposed(tuned.key, tick, step, answer)
        except Exception:  # as for a look: this instance's trouble alone
            logger.exception("%s: step not written", tuned.key)
        finally:
            instance.writing = None

    def _tell_conditions(self, tuned: Tuned, tick: Tick, now_s: float) -> None:
        before = self._conditions.metrics_of(tuned.key)
        if not self._conditions.see(tuned.key, tick, len(tuned.pods), now_s):
            return
        after = self._conditions.metrics_of(tuned.key)
        if after is not None and after != before:
            bad = after.status is ConditionStatus.FALSE
            level = logging.WARNING if bad else logging.INFO
            logger.log(level, "%s: %s%s", tuned.key, after.message, "; nothing is moved" if bad else "")
        self._ports.wake(Key(tuned.key.namespace, tuned.key.policy))

    def due(self, now_s: float) -> list[Key]:
        """Policies of one interval are looked at together, so that one read serves them all."""
        keys = set(self._store.policies())
        due = []
        for key in sorted(keys):
            interval_s = self._registry.interval_s(key)
            if interval_s is not None and self._looked.get(key) != (turn := int(now_s // interval_s)):
                self._looked[key] = turn
                due.append(key)
        self._forget_all_but(keys)
        return due

    def _forget_all_but(self, keys: set[Key]) -> None:
        self._registry.forget_all_but(keys)
        self._looked = {key: turn for key, turn in self._looked.items() if key in keys}
        known = {at for key in keys for at in self._registry.names(key)}
        for at in self._instances.keys() - known:
            del self._instances[at]
            self._ended.pop(at, None)
            self._audit.forget(at)
        self._conditions.forget_all_but(known)

    async def _read_latencies(self, targets: Sequence[Target], now_s: float) -> None:
        if now_s - self._latencies_s < LATENCIES_S:
            return
        self._latencies_s = now_s
        found = await self._source.latencies(targets, LATENCIES_OVER_S, now_s)
        self._latencies = {} if isinstance(found, Unknown) else found

    def _latencies_of(self, key: InstanceKey) -> tuple[TierLatency, ...]:
        return self._latencies.get(key, ())
