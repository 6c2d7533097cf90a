"""What is found out about an instance by looking: at its Deployment, its pods, and what its workers say. No writes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tailkeeper.api.enums import MoveOutcome, RolloutStrategy
from tailkeeper.api.names import ANNOTATION_PAUSE_PREFIX, ANNOTATION_SET_PREFIX, child
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import InstanceStatus, MoveRecord
from tailkeeper.reconcile.diagnosis import Health, diagnose
from tailkeeper.reconcile.kinds import DEPLOYMENT, POD, Manifest
from tailkeeper.reconcile.settings_plan import Plan
from tailkeeper.reconcile.status import InstanceFindings
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.reconcile.sync import NO_WORKERS, ReadyPod, Sync, SyncWatch
from tailkeeper.signals.worker_settings import WorkerReport


@dataclass
class Observer:
    """Looks at instances. `reports`: the newest answer of each pod by UID. `outcome`: what became of the move that made
    a generation, once that is known."""

    store: Store
    reports: Mapping[str, WorkerReport | None]
    monotonic_s: Callable[[], float]
    outcome: Callable[[Key, str, int], MoveOutcome | None] = lambda key, instance, generation: None
    sync_watch: SyncWatch = field(default_factory=SyncWatch)

    def accepted(
        self, key: Key, name: str, policy: BatchingPolicy, plan: Plan, before: InstanceStatus | None
    ) -> InstanceFindings:
        """An instance whose objects are as they should be."""
        annotations = policy.metadata.annotations
        return InstanceFindings(
            name=name,
            health=self._health(key, name, policy.spec.rollout_strategy),
            settings=plan.settings,
            sync=self._sync(key, name, plan.settings, before),
            last_move=self._judged(key, name, plan.move, before),
            paused=annotations.get(ANNOTATION_PAUSE_PREFIX + name) == "true",
            complaint=f"{ANNOTATION_SET_PREFIX}{name}: {plan.complaint}" if plan.complaint else "",
        )

    def left_alone(
        self,
        key: Key,
        name: str,
        before: InstanceStatus | None,
        strategy: RolloutStrategy = RolloutStrategy.SURGE_FIRST,
    ) -> InstanceFindings:
        """An instance that cannot be acted on now: its workers run on with what is known of it."""
        settings: Settings | None = before.effective if before else None
        move: MoveRecord | None = before.last_move if before else None
        sync = self._sync(key, name, settings, before) if settings else NO_WORKERS
        paused = bool(before and before.paused)
        return InstanceFindings(name, self._health(key, name, strategy), settings, sync, move, paused)

    def pods(self, key: Key, name: str) -> list[Manifest]:
        """An instance's pods, those that stop included."""
        return self.store.of_policy(POD, key, name)

    def highest_generation(self, key: Key, name: str) -> int:
        """The newest settings that any worker of the instance says it applies; 0 while none says."""
        reports = (self.reports.get(pod["metadata"]["uid"]) for pod in self.pods(key, name))
        return max((report.generation for report in reports if report), default=0)

    def _judged(self, key: Key, name: str, move: MoveRecord | None, before: InstanceStatus | None) -> MoveRecord | None:
        """The move with its outcome, which the status remembers for a restarted operator."""
        if move is None:
            return None
        known = before.last_move if before else None
        outcome = self.outcome(key, name, move.generation)
        if outcome is None and known is not None and known.generation == move.generation:
            outcome = known.outcome
        return move if outcome is None else move.model_copy(update={"outcome": outcome})

    def _health(self, key: Key, name: str, strategy: RolloutStrategy) -> Health:
        deployment = self.store.get(DEPLOYMENT, key.namespace, child(key.name, name))
        pods = self.pods(key, name)
        says = {}
        for pod in pods:
            report = self.reports.get(pod["metadata"]["uid"])
            if report and not report.ready and report.reason:
                says[pod["metadata"]["name"]] = report.reason
        return diagnose(deployment, pods, strategy, says)

    def _sync(self, key: Key, name: str, settings: Settings, before: InstanceStatus | None) -> Sync:
        ready = [
            ReadyPod(pod["metadata"]["uid"], pod["metadata"]["name"])
            for pod in self.pods(key, name)
            if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
        ]
        applied_before = before.applied_generation if before else 0
        return self.sync_watch.judge(settings, ready, self.reports, applied_before, self.monotonic_s())


def is_ready(pod: Manifest) -> bool:
    """Whether the pod gets requests."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
