"""`reconcile(key)`: makes the cluster be what one policy says, from whatever state it is in.

Level-triggered: it looks at what is there, not at what happened, so it may run at any time, as often as anybody likes,
and after any crash. It writes only what differs; at rest it writes nothing. One key never runs twice at the same time
(the queue sees to that), different keys run side by side."""

import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailkeeper.api.enums import ConditionStatus
from tailkeeper.api.names import (
    ANNOTATION_SET_PREFIX,
    ANNOTATION_SETTINGS_GENERATION,
    SETTINGS_KEY,
    child,
    settings_config_map,
)
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.api.resolve import InvalidPolicy, initial_settings, resolve
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import InstanceStatus, PolicyStatus
from tailkeeper.reconcile import objects
from tailkeeper.reconcile.announce import NORMAL, WARNING, Announcement
from tailkeeper.reconcile.apply import Applier, Conflict, Terminating
from tailkeeper.reconcile.claims import Claims
from tailkeeper.reconcile.diagnosis import Health, Reason
from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, OWNED, POD, POLICY, SERVICE_ACCOUNT, Manifest
from tailkeeper.reconcile.kube import ApiError, Kube
from tailkeeper.reconcile.limits import TokenBuckets
from tailkeeper.reconcile.moves import Answer, Fate, Inbox, Proposal
from tailkeeper.reconcile.observer import Observer
from tailkeeper.reconcile.ownership import controller_uid
from tailkeeper.reconcile.parsing import Refusal, read_policy, read_record, read_status
from tailkeeper.reconcile.reporter import Reporter
from tailkeeper.reconcile.settings_plan import Plan, plan_settings
from tailkeeper.reconcile.status import InstanceFindings, Verdict, accepted_verdict, strays
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.reconcile.sync import PATIENCE_S, SyncState
from tailkeeper.reconcile.worker_pod import WorkerDefaults

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0
"""A conflict ends without a word to us: the object in the way carries none of our labels."""

REPAIR_BURST = 5
REPAIR_REFILL_S = 60.0
"""Two controllers that both insist on one field would otherwise write as fast as the server lets them. Only what was
put back counts: a repair that the server refuses is no fight with anybody."""


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
    """Everything that a reconcile needs. `settings_written` is told after each new generation: workers will change."""

    kube: Kube
    store: Store
    defaults: WorkerDefaults
    observer: Observer
    reporter: Reporter
    settings_written: Callable[[Key], None] = lambda key: None
    inbox: Inbox = field(default_factory=Inbox)
    monotonic_s: Callable[[], float] = time.monotonic
    _repairs: dict[Key, TokenBuckets[str]] = field(default_factory=dict)
    _claims: Claims = field(init=False)

    def __post_init__(self) -> None:
        self._claims = Claims(self.store)

    async def reconcile(self, key: Key) -> Outcome:
        """Brings the policy's objects and its status up to date. Raises ApiError when the status cannot be written."""
        manifest = self.store.policy(key)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            self.reporter.forget(key)
            self._repairs.pop(key, None)
            self._claims.forget(key)
            self.inbox.drop(key, "the policy is gone")
            return Outcome()
        before = read_status(manifest)
        try:
            policy = read_policy(manifest)
        except Refusal as refusal:
            self.inbox.drop(key, str(refusal))
            verdict = Verdict(ConditionStatus.FALSE, Reason.INVALID, str(refusal))
            known = before.instances if before else []
            findings = [self.observer.left_alone(key, old.name, old) for old in known]
            await self.reporter.report(key, manifest, before, verdict, findings)
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
            may_repair=lambda what: repairs.has(what, self.monotonic_s()),
            count_repair=lambda what: repairs.take(what, self.monotonic_s()),
        )
        known = {instance.name: instance for instance in before.instances} if before else {}
        this = _Pass(key, manifest, policy, known, applier)
        findings = [await self._instance(this, instance) for instance in policy.spec.instances]
        await self._remove_others(this)
        if any(found.sync.state is SyncState.PENDING for found in findings):
            this.again_s = PATIENCE_S + 1.0  # a worker that stays as it is sends no news
        await self.reporter.report(key, manifest, before, accepted_verdict(findings, strays(policy)), findings)
        for message in applier.repaired:
            await self.reporter.announce(key, Announcement(NORMAL, "Repaired", message))
        for message in applier.left_changed:
            this.again_s = LOOK_AGAIN_S
            await self.reporter.announce(key, Announcement(WARNING, "ChangedByOthers", message))
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
        plan: Plan | None = None
        try:
            self._claims.take(this.key, this.manifest["metadata"]["uid"], instance.name)
            plan = await self._settings(this, instance, before, proposal)
            await self._rest(this, instance, before)
            return self.observer.accepted(this.key, instance.name, this.policy, plan, before)
        except InvalidPolicy as error:
            trouble = (Reason.INVALID, str(error))
        except Conflict as error:
            trouble = (Reason.CONFLICT, str(error))
            this.again_s = LOOK_AGAIN_S
            await self._give_back(this, instance)
        except Terminating as error:
            trouble = (Reason.STARTING, str(error))
            this.again_s = LOOK_AGAIN_S
        except ApiError as error:
            if error.namespace_ends:
                raise
            this.retry = True
            logger.warning("%s: instance %s: %s", this.key, instance.name, error)
            if not error.refused:  # a hiccup of the server is no news about the instance
                return self._as_far(this, instance, before, plan)
            trouble = (Reason.REFUSED, error.message)
        finally:
            if proposal is not None:
                failed = Answer(Fate.FAILED, before.settings_generation if before else 0, "not written")
                self.inbox.answer(this.key, instance.name, proposal, failed)
        found = self._as_far(this, instance, before, plan)
        health = Health(False, *trouble, found.health.desired, found.health.ready_replicas)
        return replace(found, health=health)

    async def _give_back(self, this: _Pass, instance: Instance) -> None:
        """Objects of a name that is another policy's. The account is applied first, so who has it has the name."""
        name = child(this.key.name, instance.name)
        uid = this.manifest["metadata"]["uid"]
        account = self.store.get(SERVICE_ACCOUNT, this.key.namespace, name)
        if account is None or controller_uid(account) in (None, uid):
            return
        for kind in reversed(OWNED):
            of_kind = settings_config_map(this.key.name, instance.name) if kind is CONFIG_MAP else name
            live = self.store.get(kind, this.key.namespace, of_kind)
            if live is not None and controller_uid(live) == uid:
                try:
                    await this.applier.remove(kind, live)
                except ApiError as error:
                    logger.warning("%s: %s", this.key, error)
                    this.retry = True

    def _as_far(
        self, this: _Pass, instance: Instance, before: InstanceStatus | None, plan: Plan | None
    ) -> InstanceFindings:
        """An instance that was not finished. Settings that were written are said, or workers that apply them would
        seem to apply wrong ones."""
        if plan is None:
            return self._left_alone(this, instance, before)
        return self.observer.accepted(this.key, instance.name, this.policy, plan, before)

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
            highest_reported=self.observer.highest_generation(key, instance.name),
            manual=policy.metadata.annotations.get(ANNOTATION_SET_PREFIX + instance.name),
            proposal=proposal,
            now=now(),
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
        for pod in self.observer.pods(this.key, instance.name):
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

    def _left_alone(self, this: _Pass, instance: Instance, before: InstanceStatus | None) -> InstanceFindings:
        return self.observer.left_alone(this.key, instance.name, before, this.policy.spec.rollout_strategy)

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


def _document(config_map: Manifest) -> str:
    return str(config_map["data"][SETTINGS_KEY])  # others may have added keys


def now() -> str:
    """The time of day in UTC, RFC 3339."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
