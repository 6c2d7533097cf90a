"""`reconcile(key)`: makes the cluster be what one policy says, from whatever state it is in.

Level-triggered: it looks at what is there, not at what happened, so it may run at any time, as often as anybody likes,
and after any crash. It writes only what differs; at rest it writes nothing. One key never runs twice at the same time
(the queue sees to that), different keys run side by side."""

import datetime
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tailkeeper.api.enums import ConditionStatus, ConditionType, MoveOutcome, RolloutStrategy
from tailkeeper.api.names import (
    ANNOTATION_PAUSE_PREFIX,
    ANNOTATION_SET_PREFIX,
    ANNOTATION_SETTINGS_GENERATION,
    MANAGER,
    child,
    settings_config_map,
)
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.api.resolve import InvalidPolicy, initial_settings, resolve
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import InstanceStatus, MoveRecord, PolicyStatus
from tailkeeper.reconcile import objects
from tailkeeper.reconcile.announce import NORMAL, WARNING, Announcement, EventLimit, announcements, event_manifest
from tailkeeper.reconcile.apply import Applier, Conflict, Terminating
from tailkeeper.reconcile.diagnosis import Health, Reason, diagnose
from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, OWNED, POD, POLICY, Manifest
from tailkeeper.reconcile.kube import ApiError, Kube
from tailkeeper.reconcile.limits import TokenBuckets
from tailkeeper.reconcile.moves import Answer, Fate, Inbox, Proposal
from tailkeeper.reconcile.parsing import Refusal, read_policy, read_record, read_status
from tailkeeper.reconcile.settings_plan import Plan, plan_settings
from tailkeeper.reconcile.status import InstanceFindings, Verdict, accepted_verdict, build_status
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.reconcile.sync import NO_WORKERS, PATIENCE_S, ReadyPod, Sync, SyncState, SyncWatch
from tailkeeper.reconcile.worker_pod import WorkerDefaults
from tailkeeper.signals.worker_settings import WorkerReport

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0
"""A conflict ends without a word to us: the object in the way carries none of our labels."""

REPAIR_BURST = 5
REPAIR_REFILL_S = 60.0
"""Two controllers that both insist on one field would otherwise write as fast as the server lets them."""


class Outcome(NamedTuple):
    """What the queue does with the key next."""

    failed: bool = False
    """Retry soon, and later each time."""
    again_s: float | None = None
    """Look again after this time, although nothing went wrong."""


class _Outdated(Exception):
    """The policy is not, or not any more, as it was read."""


@dataclass
class _Pass:
    """One run over one policy."""

    key: Key
    manifest: Manifest
    policy: BatchingPolicy
    before: dict[str, InstanceStatus]
    applier: Applier
    retry: bool = False
    again_s: float | None = None


@dataclass
class Reconciler:
    """Everything that a reconcile needs. `reports`, the newest answer of each pod by UID, is kept by the caller."""

    kube: Kube
    store: Store
    defaults: WorkerDefaults
    reports: Mapping[str, WorkerReport | None]
    settings_written: Callable[[Key], None] = lambda key: None
    """Told after each new generation: workers are about to change."""
    signals: Callable[[Key], Mapping[ConditionType, Verdict]] = lambda key: {}
    """Conditions that are measured elsewhere."""
    outcome: Callable[[Key, str, int], MoveOutcome | None] = lambda key, instance, generation: None
    """What became of the move that made a generation, once that is known."""
    monotonic_s: Callable[[], float] = time.monotonic
    inbox: Inbox = field(default_factory=Inbox)
    sync_watch: SyncWatch = field(default_factory=SyncWatch)
    _limit: EventLimit = field(default_factory=EventLimit)
    _repairs: dict[Key, TokenBuckets[str]] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> Outcome:
        """Brings the policy's objects and its status up to date. Raises ApiError when the status cannot be written."""
        manifest = self.store.policy(key)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            self._limit.forget(key)
            self._repairs.pop(key, None)
            self.inbox.drop(key, "the policy is gone")
            return Outcome()
        before = read_status(manifest)
        try:
            policy = read_policy(manifest)
        except Refusal as refusal:
            self.inbox.drop(key, str(refusal))
            verdict = Verdict(ConditionStatus.FALSE, Reason.INVALID, str(refusal))
            await self._report(key, manifest, before, verdict, self._left_alone(key, before))
            return Outcome()
        try:
            return await self._act(key, manifest, policy, before)
        except _Outdated:
            return Outcome(again_s=0.0)
        except ApiError as error:
            if error.namespace_ends:  # the policy goes next; making its objects anew would only be refused
                return Outcome()
            raise

    async def _act(self, key: Key, manifest: Manifest, policy: BatchingPolicy, before: PolicyStatus | None) -> Outcome:
        repairs = self._repairs.setdefault(key, TokenBuckets(REPAIR_BURST, REPAIR_REFILL_S))
        applier = Applier(
            self.kube,
            self.store,
            manifest,
            confirm=lambda: self._confirm(key, manifest),
            may_repair=lambda what: repairs.take(what, self.monotonic_s()),
        )
        known = {instance.name: instance for instance in before.instances} if before else {}
        this = _Pass(key, manifest, policy, known, applier)
        findings = [await self._instance(this, instance) for instance in policy.spec.instances]
        await self._remove_others(this)
        if any(found.sync.state is SyncState.PENDING for found in findings):
            this.again_s = PATIENCE_S + 1.0  # a worker that stays as it is sends no news
        await self._report(key, manifest, before, accepted_verdict(findings), findings)
        for message in applier.repaired:
            await self._announce(key, manifest, Announcement(NORMAL, "Repaired", message))
        for message in applier.left_changed:
            this.again_s = LOOK_AGAIN_S
            await self._announce(key, manifest, Announcement(WARNING, "ChangedByOthers", message))
        return Outcome(this.retry, this.again_s)

    async def _confirm(self, key: Key, manifest: Manifest) -> None:
        """Asks the server itself: what the store holds may be the ghost of a policy deleted while no watch was up."""
        present = await self.kube.get(POLICY, key.namespace, key.name)
        if present is None or present["metadata"]["uid"] != manifest["metadata"]["uid"]:
            self.store.remove(POLICY, manifest)
        if present is not None:
            self.store.put(POLICY, present)
        if present is None or present["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise _Outdated

    async def _instance(self, this: _Pass, instance: Instance) -> InstanceFindings:
        """One instance; its trouble is its own. A proposal that waits for it is answered in any case."""
        before = this.before.get(instance.name)
        proposal = self.inbox.peek(this.key, instance.name)
        try:
            plan = await self._settings(this, instance, before, proposal)
            await self._rest(this, instance, before)
            return self._findings(this, instance, plan)
        except InvalidPolicy as error:
            trouble = (Reason.INVALID, str(error))
        except Conflict as error:
            trouble = (Reason.CONFLICT, str(error))
            this.again_s = LOOK_AGAIN_S
        except Terminating as error:
            trouble = (Reason.STARTING, str(error))
            this.again_s = LOOK_AGAIN_S
        except ApiError as error:
            if error.namespace_ends:
                raise
            this.retry = True
            logger.warning("%s: instance %s: %s", this.key, instance.name, error)
            if not error.refused:  # a hiccup of the server is no news about the instance
                return self._findings_of_old(this.key, instance.name, before, this.policy.spec.rollout_strategy)
            trouble = (Reason.REFUSED, error.message)
        finally:
            if proposal is not None:
                failed = Answer(Fate.FAILED, before.settings_generation if before else 0, "not written")
                self.inbox.answer(this.key, instance.name, proposal, failed)
        found = self._findings_of_old(this.key, instance.name, before, this.policy.spec.rollout_strategy)
        health = Health(False, *trouble, found.health.desired, found.health.ready_replicas)
        return InstanceFindings(instance.name, health, found.settings, found.sync, found.last_move, found.paused)

    async def _settings(
        self, this: _Pass, instance: Instance, before: InstanceStatus | None, proposal: Proposal | None
    ) -> Plan:
        """The instance's identity, and its settings ConfigMap with a new generation when one is due."""
        policy, key = this.policy, this.key
        effective = resolve(policy.spec, instance)
        for desired in (
            objects.service_account(policy, instance),
            objects.role(policy, instance),
            objects.role_binding(policy, instance),
        ):
            await this.applier.ensure(desired, expected=before is not None)
        live = self.store.get(CONFIG_MAP, key.namespace, settings_config_map(key.name, instance.name))
        record = read_record(live)
        reports = (self.reports.get(pod["metadata"]["uid"]) for pod in self._pods(key, instance.name))
        plan = plan_settings(
            spec=initial_settings(
                effective,
                policy_namespace=key.namespace,
                policy=key.name,
                model_instance=instance.name,
                generation=1,
            ),
            record=record,
            status_settings=before.effective if before else None,
            highest_reported=max((report.generation for report in reports if report), default=0),
            manual=policy.metadata.annotations.get(ANNOTATION_SET_PREFIX + instance.name),
            proposal=proposal,
            now=_now(),
        )
        document = objects.settings_document(plan.settings) if plan.rewrite or live is None else _document(live)
        desired = objects.settings_map(policy, instance, document, plan.move, plan.manual)
        await this.applier.ensure(desired, expected=before is not None, fenced=True)
        if proposal is not None:
            fate = Fate.STALE if plan.took is None else Fate.WRITTEN if plan.rewrite else Fate.UNCHANGED
            self.inbox.answer(key, instance.name, proposal, Answer(fate, plan.settings.generation))
        if plan.rewrite:
            logger.info("%s: instance %s: settings generation %d", key, instance.name, plan.settings.generation)
            self.settings_written(key)
        await self._refresh_mounts(this, instance, plan.settings)
        return plan

    async def _rest(self, this: _Pass, instance: Instance, before: InstanceStatus | None) -> None:
        policy = this.policy
        name = child(policy.metadata.name, instance.name)
        live = self.store.get(DEPLOYMENT, this.key.namespace, name)
        for desired in (
            objects.service(policy, instance),
            objects.disruption_budget(policy, instance),
            objects.deployment(policy, instance, self.defaults, live),
        ):
            await this.applier.ensure(desired, expected=before is not None)

    async def _refresh_mounts(self, this: _Pass, instance: Instance, settings: Settings) -> None:
        """The kubelet refreshes mounted files at once when the pod changes, else after up to 90 s. Workers that watch
        the ConfigMap do not need it, and it would be a write for each pod and move."""
        mark = {ANNOTATION_SETTINGS_GENERATION: str(settings.generation)}
        for pod in self._pods(this.key, instance.name):
            has_token = pod["spec"].get("automountServiceAccountToken") is not False
            marked = mark.items() <= pod["metadata"].get("annotations", {}).items()
            if has_token or marked or pod["metadata"].get("deletionTimestamp"):
                continue
            await this.applier.before_write()
            try:
                self.store.put(POD, await self.kube.annotate(POD, pod, mark))
            except ApiError as error:
                if error.status not in (404, 409):  # gone meanwhile
                    raise

    async def _remove_others(self, this: _Pass) -> None:
        """Objects of instances that are not in the spec any more."""
        names = set()
        for instance in this.policy.spec.instances:
            names |= {child(this.key.name, instance.name), settings_config_map(this.key.name, instance.name)}
        for kind in reversed(OWNED):
            for live in self.store.of_policy(kind, this.key):
                if live["metadata"]["name"] not in names:
                    try:
                        await this.applier.remove(kind, live)
                    except ApiError as error:
                        logger.warning("%s: %s", this.key, error)
                        this.retry = True

    def _findings(self, this: _Pass, instance: Instance, plan: Plan) -> InstanceFindings:
        before = this.before.get(instance.name)
        annotations = this.policy.metadata.annotations
        complaint = f"{ANNOTATION_SET_PREFIX}{instance.name}: {plan.complaint}" if plan.complaint else ""
        return InstanceFindings(
            name=instance.name,
            health=self._health(this.key, instance.name, this.policy.spec.rollout_strategy),
            settings=plan.settings,
            sync=self._sync(this.key, instance.name, plan.settings, before),
            last_move=self._judged(this.key, instance.name, plan.move, before),
            paused=annotations.get(ANNOTATION_PAUSE_PREFIX + instance.name) == "true",
            complaint=complaint,
        )

    def _judged(self, key: Key, name: str, move: MoveRecord | None, before: InstanceStatus | None) -> MoveRecord | None:
        """The move with its outcome, which the status remembers for a restarted operator."""
        if move is None:
            return None
        known = before.last_move if before else None
        outcome = self.outcome(key, name, move.generation)
        if outcome is None and known is not None and known.generation == move.generation:
            outcome = known.outcome
        return move if outcome is None else move.model_copy(update={"outcome": outcome})

    def _left_alone(self, key: Key, before: PolicyStatus | None) -> list[InstanceFindings]:
        """Instances of a policy that makes no sense now: their workers run on as they are."""
        known = before.instances if before else []
        return [self._findings_of_old(key, old.name, old, RolloutStrategy.SURGE_FIRST) for old in known]

    def _findings_of_old(
        self, key: Key, name: str, before: InstanceStatus | None, strategy: RolloutStrategy
    ) -> InstanceFindings:
        settings: Settings | None = before.effective if before else None
        move: MoveRecord | None = before.last_move if before else None
        sync = self._sync(key, name, settings, before) if settings else NO_WORKERS
        paused = bool(before and before.paused)
        return InstanceFindings(name, self._health(key, name, strategy), settings, sync, move, paused)

    def _health(self, key: Key, name: str, strategy: RolloutStrategy) -> Health:
        deployment = self.store.get(DEPLOYMENT, key.namespace, child(key.name, name))
        pods = self._pods(key, name)
        says = {}
        for pod in pods:
            report = self.reports.get(pod["metadata"]["uid"])
            if report and not report.ready and report.reason:
                says[pod["metadata"]["name"]] = report.reason
        return diagnose(deployment, pods, strategy, says)

    def _sync(self, key: Key, name: str, settings: Settings, before: InstanceStatus | None) -> Sync:
        ready = [
            ReadyPod(pod["metadata"]["uid"], pod["metadata"]["name"])
            for pod in self._pods(key, name)
            if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
        ]
        applied_before = before.applied_generation if before else 0
        return self.sync_watch.judge(settings, ready, self.reports, applied_before, self.monotonic_s())

    def _pods(self, key: Key, name: str) -> list[Manifest]:
        return self.store.of_policy(POD, key, name)

    async def _report(
        self,
        key: Key,
        manifest: Manifest,
        before: PolicyStatus | None,
        accepted: Verdict,
        findings: list[InstanceFindings],
    ) -> None:
        """Writes the status when its meaning changed, and says in Events what changed."""
        generation = manifest["metadata"]["generation"]
        after = build_status(before, generation, accepted, findings, self.signals(key), _now())
        if after == before:
            return
        metadata = {name: manifest["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {
            "apiVersion": manifest["apiVersion"],
            "kind": manifest["kind"],
            "metadata": metadata,
            "status": after.to_json(),
        }
        try:
            self.store.put(POLICY, await self.kube.apply(body, subresource="status"))
        except ApiError as error:
            if error.status in (404, 409):  # deleted, or deleted and made anew, since it was read
                return
            raise
        for announcement in announcements(before, after):
            await self._announce(key, manifest, announcement)

    async def announce(self, key: Key, announcement: Announcement) -> None:
        """Posts an Event about a policy, as far as the limit allows; none when it is gone."""
        if (manifest := self.store.policy(key)) is not None:
            await self._announce(key, manifest, announcement)

    async def _announce(self, key: Key, manifest: Manifest, announcement: Announcement) -> None:
        logger.info("%s: %s: %s", key, announcement.reason, announcement.message)
        if not self._limit.allows(key, announcement, self.monotonic_s()):
            return
        event = event_manifest(manifest, key, announcement, _now(), secrets.token_hex(8), MANAGER)
        try:
            await self.kube.create_event(event)
        except ApiError as error:  # an Event is a courtesy
            logger.warning("%s: Event %s not posted: %s", key, announcement.reason, error)


def is_ready(pod: Manifest) -> bool:
    """Whether the pod gets requests."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _document(config_map: Manifest) -> str:
    return str(next(iter(config_map["data"].values())))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
