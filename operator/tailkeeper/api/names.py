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
ANNOTATION_RENDERED_TEMPLATE = f"{GROUP}/rendered-template"
"""Pod template as it was rendered when the hash last changed; kept until it changes again."""
ANNOTATION_APPLIED = f"{GROUP}/applied"
"""Hash of the whole object as the operator last applied it."""
ANNOTATION_ROLL = f"{GROUP}/roll"
"""On a policy, any new value renders all of its pods anew (`tailkeeper.dev/roll.INSTANCE`: those of one instance), with
the operator's present worker image and defaults."""
ANNOTATION_ROLL_PREFIX = f"{ANNOTATION_ROLL}."
ANNOTATION_MANUAL = f"{GROUP}/manual"
"""On a settings ConfigMap: the `tailkeeper.dev/set.INSTANCE` text that was acted on last, so that it acts once."""
ANNOTATION_LAST_MOVE = f"{GROUP}/last-move"
"""On a settings ConfigMap: the move that made this generation, as JSON."""
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

LONGEST_POLICY_NAME = NAME_BUDGET - len("-x")
LONGEST_OBJECT_NAME = 253


def child(policy: str, instance: str) -> str:
    """Name of an instance's Deployment, Service, ServiceAccount, Role and PodDisruptionBudget."""
    return f"{policy}-{instance}"


def settings_config_map(policy: str, instance: str) -> str:
    """Name of the ConfigMap that carries an instance's settings document."""
    return f"{child(policy, instance)}-settings"


HEADER_TIER: Final = "x-tailkeeper-tier"
"""Request header: the tier to be served in."""
HEADER_DEADLINE_MS: Final = "x-tailkeeper-deadline-ms"
"""Request header: the caller's own deadline, milliseconds from arrival."""
HEADER_TENANT: Final = "x-tailkeeper-tenant"
"""Request header: whom to share fairly with inside a tier."""
