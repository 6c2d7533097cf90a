"""All workers and instances of a policy: once a second everything is asked, what is due is looked at."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp

from tailkeeper.api.enums import ConditionType, RetuneMode
from tailkeeper.api.names import ANNOTATION_PAUSE_PREFIX
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.control.freeze import Situation
from tailkeeper.control.samples import InstanceKey, Reading
from tailkeeper.local.edits import needing_restart, unheeded
from tailkeeper.local.events import Event, Happening, Tell
from tailkeeper.local.greeting import greeting
from tailkeeper.local.launch import NAMESPACE, Wishes, chosen, settings_file
from tailkeeper.local.tuning import TunedInstance
from tailkeeper.local.worker import LIVENESS_S, Worker
from tailkeeper.reconcile.measured import Conditions
from tailkeeper.reconcile.status import Verdict, strays
from tailkeeper.reconcile.store import Key
from tailkeeper.signals.direct import DirectSource, Target
from tailkeeper.signals.histograms import Growth, Latencies
from tailkeeper.signals.worker_settings import ask_all, open_session

STATUS_S: Final = 10.0
LATENCIES_S: Final = 5.0
LATENCIES_OVER_S: Final = 60.0
PROBE_TIMEOUT_S: Final = 5.0
KEYS: Final = "TAILKEEPER_API_KEYS_DIR"
"""The worker's own flag."""


class Fleet:
    """`beat` once a second inside one event loop; `close` at the end."""

    def __init__(
        self,
        policy: BatchingPolicy,
        workers: Sequence[Worker],
        wishes: Wishes,
        mode: RetuneMode | None,
        tell: Tell,
        status: bool,
    ) -> None:
        self._policy = self._started_with = policy
        self._key = Key(policy.metadata.namespace or NAMESPACE, policy.metadata.name)
        self._workers = workers
        self._mode = mode
        self._tell = tell
        self._status = status
        self._instances: list[TunedInstance] = []
        for instance in chosen(policy, wishes.instances):
            if any(worker.launch.instance == instance.name for worker in workers):
                file = settings_file(wishes.folder, instance.name)
                file.parent.mkdir(parents=True, exist_ok=True)
                self._instances.append(TunedInstance(policy, instance, file.parent, file, tell))
        self._session: aiohttp.ClientSession | None = None
        self._direct = DirectSource()
        self._growth = Growth()
        self._latencies: Latencies = {}
        self._conditions = Conditions()
        self._told: Mapping[ConditionType, Verdict] = {}
        self._turns: dict[str, int] = {}
        self._applied: dict[str, int] = {}
        self._greeted: set[str] = set()
        self._complaints: list[Event] = []
        self._complain(policy)

    def follow(self, policy: BatchingPolicy) -> None:
        """Goes by this policy from now on, as far as that is possible without new processes."""
        found = {instance.name: instance for instance in policy.spec.instances}
        self._complain(policy)
        if policy.metadata.name != self._key.name or (policy.metadata.namespace or NAMESPACE) != self._key.namespace:
            return
        mode = self._mode or policy.spec.retune.mode
        self._tell(Event(Happening.POLICY, f"policy read again; retune {mode.value}", facts={"mode": mode.value}))
        self._policy = policy
        for tuned in self._instances:
            if tuned.name in found:
                tuned.follow(policy, found[tuned.name])

    async def beat(self, now_s: float) -> None:
        """Asks all workers, reads their counters, and looks at each instance whose turn it is."""
        await self._ask()
        if self._due("probe", LIVENESS_S, now_s):
            await self._probe()
        targets = [target for tuned in self._instances for target in self._targets(tuned.name)]
        reading = await self._direct.read(targets)
        if self._due("latencies", LATENCIES_S, now_s):
            read = await self._direct.read_histograms(targets)
            if read:  # growth counts from the first read that has something, not from one before there was a worker
                self._latencies = self._growth.add(read, now_s, LATENCIES_OVER_S)
        look = self._due("look", self._policy.spec.retune.interval_seconds, now_s)
        for tuned in self._instances:
            try:
                self._one(tuned, reading, look, now_s)
            except OSError as error:  # a full disk must not end what is served
                self._tell(Event(Happening.REFUSED, f"not written: {error}", tuned.name))
        if self._status and self._due("status", STATUS_S, now_s):
            for tuned in self._instances:
                ready = self._ready(tuned.name)
                of_it = sum(worker.launch.instance == tuned.name for worker in self._workers)
                tuned.narration.status(tuned.tick, len(ready), of_it, tuned.generation)

    async def close(self) -> None:
        """Ends the connections."""
        await self._direct.close()
        if self._session is not None:
            await self._session.close()

    def _one(self, tuned: TunedInstance, reading: Reading, look: bool, now_s: float) -> None:
        key, ready = self._instance_key(tuned.name), self._ready(tuned.name)
        pods = [worker.launch.name for worker in ready]
        self._greet(tuned, ready)
        self._tell_applied(tuned, ready)
        if not look:
            tuned.see(reading.of(key), pods, now_s)
            return
        situation = Situation(
            mode=self._mode or self._policy.spec.retune.mode,
            paused=self._policy.metadata.annotations.get(ANNOTATION_PAUSE_PREFIX + tuned.name) == "true",
            applied=tuple(worker.report.generation for worker in ready if worker.report is not None),
        )
        tick = tuned.look(reading.of(key), pods, self._latencies.get(key, ()), situation, now_s)
        if tuned.name in self._greeted and self._conditions.see(key, tick, len(pods), now_s):
            self._tell_conditions()

    async def _ask(self) -> None:
        running = [(worker, worker.starts) for worker in self._workers if worker.running]
        reports = await ask_all(self._open(), [worker.address for worker, _ in running])
        for worker, starts in running:
            if worker.running and worker.starts == starts:  # an answer of the process before is no answer
                worker.hear(reports[worker.launch.name])

    async def _probe(self) -> None:
        ready = [worker for worker in self._workers if worker.running]
        for worker, live in zip(ready, await asyncio.gather(*map(self._live, ready)), strict=True):
            worker.probed(live)

    async def _live(self, worker: Worker) -> bool:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        try:
            async with self._open().get(f"{worker.launch.url}/healthz", timeout=timeout) as response:
                return response.status == 200
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    def _greet(self, tuned: TunedInstance, ready: Sequence[Worker]) -> None:
        """Once all workers of an instance are ready for the first time."""
        mine = [worker for worker in self._workers if worker.launch.instance == tuned.name]
        if tuned.name not in self._greeted and len(ready) == len(mine):
            self._greeted.add(tuned.name)
            self._tell(greeting(self._policy, tuned.name, [worker.launch for worker in mine]))

    def _tell_applied(self, tuned: TunedInstance, ready: Sequence[Worker]) -> None:
        generation = tuned.generation
        applied = [worker.report.generation for worker in ready if worker.report is not None]
        if applied and min(applied) == generation and self._applied.get(tuned.name) != generation:
            self._applied[tuned.name] = generation
            text = f"generation {generation} is applied"
            self._tell(Event(Happening.APPLIED, text, tuned.name, facts={"generation": generation}))

    def _tell_conditions(self) -> None:
        now = self._conditions.of(self._key, None)
        for kind, verdict in now.items():
            if self._told.get(kind) != verdict:
                text = f"{kind.value}={verdict.status.value} {verdict.reason}"
                text += f": {verdict.message}" if verdict.message else ""
                facts = {"condition": kind.value, "status": verdict.status.value, "reason": verdict.reason}
                self._tell(Event(Happening.CONDITION, text, facts=facts))
        self._told = now

    def _complain(self, policy: BatchingPolicy) -> None:
        """Says what cannot be done about this policy, unless it was said of the one before."""
        names = [tuned.name for tuned in self._instances]
        edits = needing_restart(self._started_with, policy, names)
        now = [Event(Happening.NEEDS_RESTART, text) for text in edits]
        now += [Event(Happening.REFUSED, text) for text in strays(policy)]
        now += [Event(Happening.UNHEEDED, text) for text in unheeded(policy, KEYS in os.environ)]
        for event in now:
            if event not in self._complaints:
                self._tell(event)
        self._complaints = now

    def _ready(self, instance: str) -> list[Worker]:
        return [worker for worker in self._workers if worker.launch.instance == instance and worker.ready]

    def _targets(self, instance: str) -> list[Target]:
        key = self._instance_key(instance)
        return [
            Target(key, worker.launch.name, worker.launch.host, worker.launch.metrics_port)
            for worker in self._ready(instance)
        ]

    def _instance_key(self, instance: str) -> InstanceKey:
        return InstanceKey(self._key.namespace, self._key.name, instance)

    def _due(self, what: str, every_s: float, now_s: float) -> bool:
        turn = int(now_s // every_s)
        due, self._turns[what] = self._turns.get(what) != turn, turn
        return due

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session()
        return self._session
