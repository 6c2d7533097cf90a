"""The tuner's loop on a stage: a store as an API server would fill it, batch servers in virtual time as workers, and
what reaches the rest of the operator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.resolve import initial_settings, resolve
from tailkeeper.api.settings import Settings
from tailkeeper.app.metrics import Metrics
from tailkeeper.app.tuner import Ports, TunerLoop
from tailkeeper.control.samples import InstanceKey, PodSample, Reading, Unknown
from tailkeeper.reconcile.announce import Announcement
from tailkeeper.reconcile.kinds import CONFIG_MAP, POD, POLICY, Manifest
from tailkeeper.reconcile.moves import Answer, Fate, Proposal
from tailkeeper.reconcile.objects import settings_document, settings_map
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.signals.direct import Target
from tailkeeper.signals.histograms import Latencies
from tailkeeper.signals.worker_settings import WorkerReport
from tests.unit.control.plant import Plant, step

KEY = Key("team", "chat")
STEP_S = 90.0
SPEC = {
    "batching": {"tailLatencySlaMs": 800, "windowIdle": 64},
    "tiers": [{"name": "interactive", "timeoutMs": 1600}, {"name": "batch", "deadlineMs": 12_000}],
}


@dataclass
class Stage:
    """One policy with instances that each have one worker. Times are virtual."""

    names: tuple[str, ...] = ("small",)
    retune: dict[str, Any] = field(default_factory=dict)
    factor: float = 4.0
    """The load grows to so many times 25 requests a second at `STEP_S`."""
    now_s: float = 0.0
    reading: Unknown | None = None
    """What the source says instead of the workers' numbers."""
    fate: Fate = Fate.WRITTEN
    proposals: list[tuple[str, Proposal]] = field(default_factory=list)
    announced: list[Announcement] = field(default_factory=list)
    woken: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics, self.store = Metrics(), Store()
        self.reports: dict[str, WorkerReport | None] = {}
        self.plants: dict[str, Plant] = {}
        self._version = 0
        self.annotations: dict[str, str] = {}
        self.put_policy()
        self.specs: dict[str, Settings] = {}
        for instance in self.policy.spec.instances:
            effective = resolve(self.policy.spec, instance)
            spec = initial_settings(
                effective, policy_namespace=KEY.namespace, policy=KEY.name, model_instance=instance.name, generation=1
            )
            self.specs[instance.name] = spec
            self.plants[instance.name] = Plant({"interactive": step(25, self.factor, STEP_S)}, spec, a=0.002, c=0.024)
            self.put_pod(instance.name)
            self.write(instance.name, spec)
        self.restart()

    def restart(self) -> None:
        """An operator that knows nothing yet."""
        ports = Ports(self._propose, self._announce, self.woken.append)
        self.loop = TunerLoop(self.store, self.reports, self, ports, self.metrics, lambda: self.now_s)

    def put_policy(self, generation: int = 1, status: Manifest | None = None) -> None:
        model = {"name": "minilm", "engine": "encoder", "path": "/models/minilm"}
        spec = {**SPEC, "retune": self.retune, "instances": [{"name": name, "model": model} for name in self.names]}
        metadata = {"name": KEY.name, "namespace": KEY.namespace, "uid": "u", "annotations": self.annotations}
        manifest: Manifest = {
            "apiVersion": "tailkeeper.dev/v1alpha1",
            "kind": "BatchingPolicy",
            "metadata": {**metadata, "generation": generation, "resourceVersion": self._next_version()},
            "spec": spec,
        }
        self.policy = BatchingPolicy.model_validate(manifest)
        self.store.put(POLICY, {**manifest, "status": status} if status else manifest)

    def put_pod(self, instance: str, template: str = "t1", name: str = "") -> None:
        name = name or f"chat-{instance}-0"
        labels = {
            "tailkeeper.dev/policy": KEY.name,
            "tailkeeper.dev/model-instance": instance,
            "pod-template-hash": template,
        }
        metadata = {"name": name, "namespace": KEY.namespace, "uid": f"uid-{name}", "labels": labels}
        self.store.put(
            POD,
            {
                "metadata": {**metadata, "resourceVersion": self._next_version()},
                "spec": {"containers": []},
                "status": {
                    "phase": "Running",
                    "podIP": "10.0.0.1",
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    def write(self, instance: str, settings: Settings, intact: bool = True, applied: bool = True) -> None:
        """New settings in the ConfigMap, and at the worker."""
        (of,) = [each for each in self.policy.spec.instances if each.name == instance]
        manifest = settings_map(self.policy, of, settings_document(settings), None, None)
        owned = {"f:data": {"f:settings.json": {}}}
        entry = {"manager": "tailkeeper" if intact else "else", "operation": "Apply", "fieldsV1": owned}
        stamp = {"uid": f"cm-{instance}", "resourceVersion": self._next_version(), "managedFields": [entry]}
        self.store.put(CONFIG_MAP, {**manifest, "metadata": {**manifest["metadata"], **stamp}})
        if applied:
            self.plants[instance].apply(settings)
            self.reports[f"uid-chat-{instance}-0"] = WorkerReport(settings.generation, True, "")

    def settings(self, instance: str = "small") -> Settings:
        return self.plants[instance].settings

    async def run(self, for_s: float, every_s: float = 1.0) -> None:
        """Looks as the loop does, at what is due."""
        until_s = self.now_s + for_s
        while self.now_s < until_s - 1e-9:
            self.now_s += every_s
            for plant in self.plants.values():
                plant.run(self.now_s)
            await self.loop.look(self.loop.due(self.now_s))
            await self.loop.written()

    @property
    def moves(self) -> list[tuple[str, str]]:
        return [(instance, proposal.cause.value) for instance, proposal in self.proposals]

    def metric(self, line: str) -> bool:
        return line in self.metrics.exposition().decode()

    async def read(self, targets: Sequence[Target], now_s: float) -> Reading | Unknown:
        if self.reading is not None:
            return self.reading
        samples: dict[InstanceKey, tuple[PodSample, ...]] = {}
        for target in targets:
            sample = self.plants[target.key.instance].sample(target.pod)
            samples[target.key] = (*samples.get(target.key, ()), sample)
        return Reading(samples)

    async def latencies(self, targets: Sequence[Target], over_s: float, now_s: float) -> Latencies | Unknown:
        return {}

    async def close(self) -> None:
        pass

    async def _propose(self, key: Key, instance: str, proposal: Proposal, within_s: float) -> Answer:
        self.proposals.append((instance, proposal))
        generation = proposal.based_on + 1
        if self.fate is Fate.WRITTEN:
            self.write(instance, proposal.settings.but(generation=generation))
        return Answer(self.fate, generation if self.fate is Fate.WRITTEN else proposal.based_on)

    async def _announce(self, key: Key, announcement: Announcement) -> None:
        self.announced.append(announcement)

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)


def at(instance: str = "small") -> InstanceKey:
    return InstanceKey(KEY.namespace, KEY.name, instance)
