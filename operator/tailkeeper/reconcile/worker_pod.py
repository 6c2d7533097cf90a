"""The pod template of an instance's workers.

Written for the `restricted` Pod Security level. What users set on it is hashed by `user_input_hash`; what only we
render is not, so that an operator upgrade restarts no worker (a Deployment keeps the template it was rendered with)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailkeeper.api.names import (
    ANNOTATION_ROLL,
    ANNOTATION_ROLL_PREFIX,
    LABEL_COMPONENT,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_POLICY,
    MANAGED_BY,
    PORT_HTTP,
    PORT_METRICS,
    PORT_NAME_HTTP,
    PORT_NAME_METRICS,
    SETTINGS_KEY,
    WORKER_NAME,
    child,
    settings_config_map,
)
from tailkeeper.api.policy import BatchingPolicy, Instance, Model
from tailkeeper.api.resolve import InvalidPolicy
from tailkeeper.reconcile.kinds import Manifest
from tailkeeper.reconcile.overlay import InvalidOverlay, merge_pod_template
from tailkeeper.reconcile.ownership import fingerprint

CONTAINER = "worker"
USER_ID = 65532
"""The usual number of "nonroot" in images without a shell."""

PRE_STOP_S = 5
"""A stopping pod still gets requests until every node has heard of it (kube-proxy: about a second; be generous)."""
EXIT_S = 10
"""After the drain: closing the engine and the process."""
MODEL_LOAD_S = 3_600
"""How long loading weights may take before the kubelet tries anew: a cold download of a large model."""

SETTINGS_DIR = "/etc/tailkeeper/settings"
API_KEYS_DIR = "/etc/tailkeeper/api-keys"
MODEL_DIR = "/var/lib/tailkeeper/model"
CACHE_DIR = "/var/cache/tailkeeper"


@dataclass(frozen=True)
class WorkerDefaults:
    """What the operator's installation says about workers."""

    image: str
    overlay: Mapping[str, Any] = field(default_factory=dict)
    """Pod template overlay of the installation, merged below the user's."""


def labels(policy: str, instance: str) -> dict[str, str]:
    """Labels of everything that belongs to an instance."""
    return {
        LABEL_NAME: WORKER_NAME,
        LABEL_COMPONENT: CONTAINER,
        LABEL_MANAGED_BY: MANAGED_BY,
        **selector(policy, instance),
    }


def selector(policy: str, instance: str) -> dict[str, str]:
    """Labels that tell an instance's pods from all others."""
    return {LABEL_POLICY: policy, LABEL_INSTANCE: instance}


def user_input_hash(policy: BatchingPolicy, instance: Instance) -> str:
    """Hash of everything users set that reaches the pod template. Defaults, images and rendering stay out of it."""
    annotations = policy.metadata.annotations
    return fingerprint(
        {
            "model": instance.model.model_dump(mode="json", exclude_none=True),
            "template": instance.template or {},
            "apiKeys": policy.spec.api_keys.model_dump(mode="json") if policy.spec.api_keys else None,
            "drainSeconds": policy.spec.drain_seconds,
            "roll": [annotations.get(ANNOTATION_ROLL), annotations.get(ANNOTATION_ROLL_PREFIX + instance.name)],
        }
    )


def pod_template(policy: BatchingPolicy, instance: Instance, namespace: str, defaults: WorkerDefaults) -> Manifest:
    """The template with both overlays. Raises InvalidPolicy when the user's does not fit."""
    where = f"spec.instances[{instance.name}].template"
    try:
        rendered = merge_pod_template(_base(policy, instance, namespace, defaults.image), defaults.overlay)
        merged = merge_pod_template(rendered, instance.template or {})
    except InvalidOverlay as error:
        raise InvalidPolicy(where, str(error)) from error
    if not any(container["name"] == CONTAINER for container in merged.get("spec", {}).get("containers", [])):
        raise InvalidPolicy(where, f"spec.containers: the container {CONTAINER} must stay")
    metadata = merged.get("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **labels(policy.metadata.name, instance.name)}
    return {**merged, "metadata": metadata}


def reads_settings_by_file(template: Manifest) -> bool:
    """Whether the workers hold no token to watch their ConfigMap with, and so wait for the kubelet's mount."""
    return template["spec"].get("automountServiceAccountToken") is False


def _base(policy: BatchingPolicy, instance: Instance, namespace: str, image: str) -> Manifest:
    name = policy.metadata.name
    source = _model_source(instance.model)
    volumes = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": settings_config_map(name, instance.name)}},
        *source.volumes,
    ]
    mounts = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
        {"name": "settings", "mountPath": SETTINGS_DIR, "readOnly": True},
        *source.mounts,
    ]
    arguments = [
        f"--engine={instance.model.engine.value}",
        f"--model-name={instance.model.name}",
        *source.arguments,
        f"--policy={namespace}/{name}",
        f"--model-instance={instance.name}",
        f"--settings-config-map={namespace}/{settings_config_map(name, instance.name)}",
        f"--settings-file={SETTINGS_DIR}/{SETTINGS_KEY}",
        f"--drain-seconds={policy.spec.drain_seconds}",
        "--endpoint-delay-seconds=0",  # preStop already waited for that
    ]
    if policy.spec.api_keys:
        volumes.append({"name": "api-keys", "secret": {"secretName": policy.spec.api_keys.secret_name}})
        mounts.append({"name": "api-keys", "mountPath": API_KEYS_DIR, "readOnly": True})
        arguments.append(f"--api-keys-dir={API_KEYS_DIR}")
    container = {
        "name": CONTAINER,
        "image": image,
        "args": arguments,
        "env": [*_downward("POD_NAME", "POD_NAMESPACE", "POD_UID"), *source.env],
        "ports": [
            {"name": PORT_NAME_HTTP, "containerPort": PORT_HTTP, "protocol": "TCP"},
            {"name": PORT_NAME_METRICS, "containerPort": PORT_METRICS, "protocol": "TCP"},
        ],
        "volumeMounts": mounts,
        "startupProbe": _probe("/readyz", periodSeconds=1, timeoutSeconds=1, failureThreshold=MODEL_LOAD_S),
        "readinessProbe": _probe("/readyz", periodSeconds=2, timeoutSeconds=2, failureThreshold=2),
        "livenessProbe": _probe("/healthz", periodSeconds=10, timeoutSeconds=5, failureThreshold=3),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "metadata": {
            "labels": labels(name, instance.name),
            "annotations": {"kubectl.kubernetes.io/default-container": CONTAINER},  # an overlay's come before it
        },
        "spec": {
            "serviceAccountName": child(name, instance.name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,  # a Service called tailkeeper would set TAILKEEPER_… variables
            "terminationGracePeriodSeconds": PRE_STOP_S + policy.spec.drain_seconds + EXIT_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "maxSkew": 1,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": selector(name, instance.name)},
                }
            ],
            "containers": [container],
            "volumes": volumes,
        },
    }


@dataclass(frozen=True)
class _ModelSource:
    arguments: tuple[str, ...] = ()
    env: tuple[Manifest, ...] = ()
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()


def _model_source(model: Model) -> _ModelSource:
    """Where the weights come from. A torch module has a factory beside them; triton and upstream only have a URL."""
    arguments: list[str] = []
    env: list[Manifest] = []
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    if model.path is not None:
        arguments.append(f"--model-path={model.path}")
    if model.persistent_volume_claim is not None:
        claim = model.persistent_volume_claim
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}})
        mounts.append({"name": "model", "mountPath": MODEL_DIR, "readOnly": True})
        arguments.append(f"--model-path={MODEL_DIR}/{claim.path}" if claim.path else f"--model-path={MODEL_DIR}")
    if model.hugging_face is not None:
        hub = model.hugging_face
        volumes.append({"name": "model-cache", "emptyDir": {}})
        mounts.append({"name": "model-cache", "mountPath": CACHE_DIR})
        env.append({"name": "HF_HOME", "value": CACHE_DIR})
        arguments.append(f"--hugging-face-id={hub.id}")
        if hub.revision is not None:
            arguments.append(f"--hugging-face-revision={hub.revision}")
        if hub.token_secret is not None:
            secret = {"name": hub.token_secret.name, "key": hub.token_secret.key}
            env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    if model.factory is not None:
        arguments.append(f"--model-factory={model.factory}")
    if model.url is not None:
        arguments.append(f"--model-url={model.url}")
    return _ModelSource(tuple(arguments), tuple(env), tuple(volumes), tuple(mounts))


def _downward(*names: str) -> list[Manifest]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_UID": "metadata.uid"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": fields[name]}}} for name in names]


def _probe(path: str, **timing: int) -> Manifest:
    return {"httpGet": {"path": path, "port": PORT_NAME_HTTP}, **timing}
