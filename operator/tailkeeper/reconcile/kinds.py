"""The kinds of objects that the operator reads and writes, and where the API serves them."""

from dataclasses import dataclass
from typing import Any

from tailkeeper.api.names import API_VERSION, LABEL_MANAGED_BY, MANAGED_BY, POLICY_KIND, POLICY_PLURAL

Manifest = dict[str, Any]
"""A Kubernetes object as plain JSON: typed decoding of large lists blocks the event loop for a third of a second."""


@dataclass(frozen=True)
class Kind:
    """One kind and its path on the API server."""

    api_version: str
    name: str
    plural: str
    label_selector: str = ""
    """What is watched and listed of it; everything when empty."""

    @property
    def group(self) -> str:
        """API group; empty for the core one."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Version inside the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of one object, of a namespace's list, or of the list over all namespaces."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


_OURS = f"{LABEL_MANAGED_BY}={MANAGED_BY}"

POLICY = Kind(API_VERSION, POLICY_KIND, POLICY_PLURAL)
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts", _OURS)
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles", _OURS)
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", _OURS)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps", _OURS)
SERVICE = Kind("v1", "Service", "services", _OURS)
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", _OURS)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments", _OURS)
POD = Kind("v1", "Pod", "pods", _OURS)
EVENT = Kind("v1", "Event", "events")

OWNED = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, SERVICE, DISRUPTION_BUDGET, DEPLOYMENT)
"""What an instance consists of, in the order in which it is applied: pods come last and find everything there."""

WATCHED = (POLICY, *OWNED, POD)

_BY_KIND = {(kind.api_version, kind.name): kind for kind in (*WATCHED, EVENT)}


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a whole object. KeyError for one that the operator knows nothing of."""
    return _BY_KIND[manifest["apiVersion"], manifest["kind"]]
