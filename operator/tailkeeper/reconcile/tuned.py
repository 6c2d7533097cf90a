"""What the tuner has to know of an instance beside its counters, from the objects in the store. Nothing is written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailkeeper.api.names import ANNOTATION_PAUSE_PREFIX, settings_config_map
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.resolve import initial_settings, resolve
from tailkeeper.api.settings import Settings
from tailkeeper.control.freeze import Situation
from tailkeeper.control.move import Bounds
from tailkeeper.control.samples import InstanceKey
from tailkeeper.reconcile.diagnosis import Reason
from tailkeeper.reconcile.kinds import CONFIG_MAP, POD, Manifest
from tailkeeper.reconcile.observer import is_ready
from tailkeeper.reconcile.parsing import Refusal, read_policy, read_record
from tailkeeper.reconcile.settings_plan import Record
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.signals.direct import Target
from tailkeeper.signals.worker_settings import WorkerReport, address_of

_TEMPLATE_HASH = "pod-template-hash"
"""Label that a Deployment gives the pods of one template."""


@dataclass(frozen=True)
class Tuned:
    """One instance as the tuner finds it."""

    key: InstanceKey
    settings: Settings
    """The newest that were written."""
    bounds: Bounds
    situation: Situation
    pods: tuple[str, ...]
    """Names of the ready workers."""
    targets: tuple[Target, ...]
    """Where these are scraped."""


@dataclass(frozen=True)
class _Parsed:
    """A policy's spec, read once per change of it."""

    version: tuple[str, int]
    policy: BatchingPolicy | None
    bounds: Mapping[str, Bounds]


@dataclass
class Registry:
    """Reads instances off the store. `reports`: the newest answer of each pod by UID."""

    store: Store
    reports: Mapping[str, WorkerReport | None]
    _policies: dict[Key, _Parsed] = field(default_factory=dict)
    _records: dict[InstanceKey, tuple[str, Record]] = field(default_factory=dict)

    def interval_s(self, key: Key) -> float | None:
        """How often this policy's instances are looked at; None when it makes no sense or is going."""
        parsed = self._parsed(key)
        return float(parsed.policy.spec.retune.interval_seconds) if parsed and parsed.policy else None

    def names(self, key: Key) -> list[InstanceKey]:
        """The instances of a policy's spec."""
        parsed = self._parsed(key)
        return [InstanceKey(key.namespace, key.name, name) for name in parsed.bounds] if parsed else []

    def instances(self, key: Key) -> list[Tuned]:
        """The instances that have settings."""
        parsed, manifest = self._parsed(key), self.store.policy(key)
        if parsed is None or parsed.policy is None or manifest is None:
            return []
        annotations = manifest["metadata"].get("annotations", {})
        conflicts = {
            instance["name"]
            for instance in manifest.get("status", {}).get("instances", [])
            if instance.get("reason") == Reason.CONFLICT
        }
        found = []
        for name, bounds in parsed.bounds.items():
            at = InstanceKey(key.namespace, key.name, name)
            record = self._record(at)
            if record.settings is None:
                continue
            pods = self.store.of_policy(POD, key, name)
            ready = [pod for pod in pods if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]
            found.append(
                Tuned(
                    key=at,
                    settings=record.settings,
                    bounds=bounds,
                    situation=Situation(
                        mode=parsed.policy.spec.retune.mode,
                        paused=annotations.get(ANNOTATION_PAUSE_PREFIX + name) == "true",
                        conflict=name in conflicts or not record.intact,
                        rollout_in_progress=len(_templates(ready)) > 1,
                        applied=tuple(self._applied(pod) for pod in ready),
                    ),
                    pods=tuple(pod["metadata"]["name"] for pod in ready),
                    targets=tuple(
                        Target(at, pod["metadata"]["name"], address.host, address.port)
                        for pod in ready
                        if (address := address_of(pod)) is not None
                    ),
                )
            )
        return found

    def forget_all_but(self, keys: set[Key]) -> None:
        """Policies that no longer exist do not count."""
        for key in self._policies.keys() - keys:
            del self._policies[key]
        for at in [at for at in self._records if Key(at.namespace, at.policy) not in keys]:
            del self._records[at]

    def _applied(self, pod: Manifest) -> int | None:
        report = self.reports.get(pod["metadata"]["uid"])
        return report.generation if report else None

    def _parsed(self, key: Key) -> _Parsed | None:
        manifest = self.store.policy(key)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            return None
        version = (manifest["metadata"]["uid"], manifest["metadata"]["generation"])
        known = self._policies.get(key)
        if known is None or known.version != version:
            known = self._policies[key] = _parse(key, manifest, version)
        return known

    def _record(self, at: InstanceKey) -> Record:
        live = self.store.get(CONFIG_MAP, at.namespace, settings_config_map(at.policy, at.instance))
        if live is None:
            return Record()
        version = live["metadata"]["uid"] + "/" + live["metadata"]["resourceVersion"]
        known = self._records.get(at)
        if known is None or known[0] != version:
            known = self._records[at] = (version, read_record(live))
        return known[1]


def _parse(key: Key, manifest: Manifest, version: tuple[str, int]) -> _Parsed:
    try:
        policy = read_policy(manifest)
    except Refusal:
        return _Parsed(version, None, {})
    bounds = {}
    for instance in policy.spec.instances:
        spec = initial_settings(
            resolve(policy.spec, instance),
            policy_namespace=key.namespace,
            policy=key.name,
            model_instance=instance.name,
            generation=1,
        )
        bounds[instance.name] = Bounds(spec, tuple(policy.spec.retune.pin))
    return _Parsed(version, policy, bounds)


def _templates(ready: Iterable[Manifest]) -> set[str]:
    """Workers of two templates serve side by side only while one replaces the other; a new one that cannot start is
    no reason to leave the old ones untuned."""
    return {pod["metadata"].get("labels", {}).get(_TEMPLATE_HASH, "") for pod in ready}
