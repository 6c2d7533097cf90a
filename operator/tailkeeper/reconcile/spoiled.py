"""Fields that we do not set and that would stop an instance from serving, or from taking settings, if others set them.

Everything else that others add stays theirs. These few are taken out again: a Service that points out of the cluster or
at pods that are not ready, a Deployment that rolls nothing out, a budget that blocks node drains, settings that nobody
can change."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, SERVICE, Manifest, kind_of


class Spoiled(NamedTuple):
    """What others set."""

    what: str
    """As it is told: `spec.paused: true`."""
    patch: Mapping[str, Any] | None
    """The merge patch that takes it out; None when only a new object can be without it."""


_UNSTARTABLE = ("schedulingGates", "nodeName", "nodeSelector", "hostNetwork")
"""Of a pod: it waits for ever, or goes where the port is taken. A policy's own template may set them."""


def spoiled(live: Manifest, desired: Manifest) -> Spoiled | None:
    """What of this live object has to go; None when nothing has. What is desired may hold the same field: then it is
    the policy's own."""
    kind, spec = kind_of(desired), live.get("spec", {})
    if kind is SERVICE and spec.get("type") == "ExternalName":
        return Spoiled("spec.type: ExternalName", {"spec": {"type": "ClusterIP", "externalName": None}})
    if kind is SERVICE and spec.get("publishNotReadyAddresses"):
        return Spoiled("spec.publishNotReadyAddresses: true", {"spec": {"publishNotReadyAddresses": None}})
    if kind is DEPLOYMENT and spec.get("paused"):
        return Spoiled("spec.paused: true", {"spec": {"paused": None}})
    if kind is DEPLOYMENT and (added := _added_to_pods(spec, desired)):
        words = ", ".join(f"spec.template.spec.{name}" for name in added)
        return Spoiled(words, {"spec": {"template": {"spec": dict.fromkeys(added)}}})
    if kind is DISRUPTION_BUDGET and "minAvailable" in spec:
        patch = {"spec": {"minAvailable": None, "maxUnavailable": 1}}
        return Spoiled(f"spec.minAvailable: {spec['minAvailable']}", patch)
    if kind is CONFIG_MAP and live.get("immutable"):
        return Spoiled("immutable: true", None)
    return None


def _added_to_pods(spec: Mapping[str, Any], desired: Manifest) -> list[str]:
    pods, ours = spec["template"]["spec"], desired["spec"]["template"]["spec"]
    return [name for name in _UNSTARTABLE if pods.get(name) and name not in ours]
