"""An instance's desired objects: pure functions from the policy to plain manifests.

Nothing here looks at time, at the server, or at what is there, with one exception that the caller passes in: the
Deployment keeps the pod template it was last rendered with while users change nothing that reaches it."""

import json

from tailkeeper.api.enums import RolloutStrategy
from tailkeeper.api.names import (
    ANNOTATION_LAST_MOVE,
    ANNOTATION_MANUAL,
    ANNOTATION_RENDERED_TEMPLATE,
    ANNOTATION_TEMPLATE_HASH,
    API_VERSION,
    POLICY_KIND,
    PORT_HTTP,
    PORT_NAME_HTTP,
    SETTINGS_KEY,
    child,
    settings_config_map,
)
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import MoveRecord
from tailkeeper.reconcile.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
)
from tailkeeper.reconcile.worker_pod import (
    MODEL_LOAD_S,
    WorkerDefaults,
    labels,
    pod_template,
    selector,
    user_input_hash,
)


def service_account(policy: BatchingPolicy, instance: Instance) -> Manifest:
    """The workers' identity. Pods say themselves whether they mount its token."""
    return {**_object(SERVICE_ACCOUNT, policy, instance), "automountServiceAccountToken": False}


def role(policy: BatchingPolicy, instance: Instance) -> Manifest:
    """Leave to read one ConfigMap: the instance's own settings."""
    name = settings_config_map(policy.metadata.name, instance.name)
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "list", "watch"]}
    return {**_object(ROLE, policy, instance), "rules": [rule]}


def role_binding(policy: BatchingPolicy, instance: Instance) -> Manifest:
    """Gives that leave to the workers."""
    name = child(policy.metadata.name, instance.name)
    return {
        **_object(ROLE_BINDING, policy, instance),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": policy.metadata.namespace}],
    }


def settings_map(
    policy: BatchingPolicy, instance: Instance, document: str, move: MoveRecord | None, manual: str | None
) -> Manifest:
    """The settings document, with the move that made it and the manual value that was acted on last."""
    manifest = _object(CONFIG_MAP, policy, instance, settings_config_map(policy.metadata.name, instance.name))
    annotations = {}
    if move is not None:
        annotations[ANNOTATION_LAST_MOVE] = move.model_dump_json(exclude_none=True)
    if manual is not None:
        annotations[ANNOTATION_MANUAL] = manual
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    return {**manifest, "data": {SETTINGS_KEY: document}}


def settings_document(settings: Settings) -> str:
    """A settings document as text, one field per line so that `kubectl get` and `diff` show it well."""
    return settings.model_dump_json(exclude_none=True, indent=2)


def service(policy: BatchingPolicy, instance: Instance) -> Manifest:
    """Where clients send requests."""
    port = {"name": PORT_NAME_HTTP, "port": PORT_HTTP, "targetPort": PORT_NAME_HTTP, "protocol": "TCP"}
    return {
        **_object(SERVICE, policy, instance),
        "spec": {"selector": selector(policy.metadata.name, instance.name), "ports": [port]},
    }


def disruption_budget(policy: BatchingPolicy, instance: Instance) -> Manifest:
    """One worker at a time may be evicted. A budget by `minAvailable` would block node drains of single workers."""
    return {
        **_object(DISRUPTION_BUDGET, policy, instance),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(policy.metadata.name, instance.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def deployment(policy: BatchingPolicy, instance: Instance, defaults: WorkerDefaults, live: Manifest | None) -> Manifest:
    """The workers. `live` is the present Deployment: its rendered template is kept while the users' input is the same.

    Raises InvalidPolicy when the instance's template overlay does not fit."""
    namespace = policy.metadata.namespace or ""
    hash_now = user_input_hash(policy, instance)
    template = _kept_template(live, hash_now) or pod_template(policy, instance, namespace, defaults)
    surge_first = policy.spec.rollout_strategy is RolloutStrategy.SURGE_FIRST
    manifest = _object(DEPLOYMENT, policy, instance)
    manifest["metadata"]["annotations"] = {
        ANNOTATION_TEMPLATE_HASH: hash_now,
        ANNOTATION_RENDERED_TEMPLATE: json.dumps(template, sort_keys=True, separators=(",", ":")),
    }
    spec: Manifest = {
        "selector": {"matchLabels": selector(policy.metadata.name, instance.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": int(surge_first), "maxUnavailable": int(not surge_first)},
        },
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": MODEL_LOAD_S + 600,
        "template": template,
    }
    if instance.replicas is not None:
        spec["replicas"] = instance.replicas
    return {**manifest, "spec": spec}


def _kept_template(live: Manifest | None, hash_now: str) -> Manifest | None:
    annotations = live["metadata"].get("annotations", {}) if live else {}
    if annotations.get(ANNOTATION_TEMPLATE_HASH) != hash_now:
        return None
    try:
        template = json.loads(annotations.get(ANNOTATION_RENDERED_TEMPLATE, ""))
    except ValueError:
        return None
    return template if isinstance(template, dict) else None


def _object(kind: Kind, policy: BatchingPolicy, instance: Instance, name: str | None = None) -> Manifest:
    owner = {
        "apiVersion": API_VERSION,
        "kind": POLICY_KIND,
        "name": policy.metadata.name,
        "uid": policy.metadata.uid,
        "controller": True,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": name or child(policy.metadata.name, instance.name),
            "namespace": policy.metadata.namespace,
            "labels": labels(policy.metadata.name, instance.name),
            "ownerReferences": [owner],
        },
    }
