"""Names that other systems hold on to: API group, labels, annotations, object names, ports."""

from typing import Final

GROUP: Final = "tailkeeper.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "tailkeeper.dev/v1alpha1"

POLICY_KIND: Final = "BatchingPolicy"
POLICY_PLURAL = "batchingpolicies"
PROFILE_KIND: Final = "BatchingProfile"
PROFILE_PLURAL = "batchingprofiles"

MANAGER = "tailkeeper"
"""Field manager of every server-side apply."""

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_POLICY = f"{GROUP}/policy"
LABEL_INSTANCE = f"{GROUP}/model-instance"
MANAGED_BY = "tailkeeper"
WORKER_NAME = "tailkeeper-worker"

ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
"""Hash of what users set on a pod template. An operator upgrade that only renders differently keeps it."""
ANNOTATION_SETTINGS_GENERATION = f"{GROUP}/settings-generation"
"""Touched on pods so that the kubelet refreshes a mounted settings file at once."""
ANNOTATION_SET_PREFIX = f"{GROUP}/set."
"""`tailkeeper.dev/set.INSTANCE: ceiling=4` is a move of cause Manual."""
ANNOTATION_PAUSE_PREFIX = f"{GROUP}/pause."
"""`tailkeeper.dev/pause.INSTANCE: "true"` keeps the tuner's hands off one instance."""

SETTINGS_KEY = "settings.json"
"""Key of the settings document in its ConfigMap, and the name of the file where it is mounted."""

PORT_HTTP = 8000
PORT_METRICS = 9000
PORT_NAME_HTTP = "http"
PORT_NAME_METRICS = "metrics"

NAME_BUDGET = 53
"""Longest `POLICY-INSTANCE`: a DNS label (63) less the longest suffix (`-settings`) and one to spare."""


def child(policy: str, instance: str) -> str:
    """Name of an instance's Deployment, Service, ServiceAccount, Role and PodDisruptionBudget."""
    return f"{policy}-{instance}"


def settings_config_map(policy: str, instance: str) -> str:
    """Name of the ConfigMap that carries an instance's settings document."""
    return f"{child(policy, instance)}-settings"
