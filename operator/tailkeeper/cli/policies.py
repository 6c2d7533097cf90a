"""Policies of a cluster as plain JSON, found by what is written on the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tailkeeper.api.names import API_VERSION, POLICY_KIND, POLICY_PLURAL
from tailkeeper.cli.errors import UserError
from tailkeeper.cli.kube_client import KubeClient, Manifest, NotThere


@dataclass(frozen=True)
class Target:
    """`POLICY` or `POLICY/INSTANCE`."""

    policy: str
    instance: str | None = None

    def __str__(self) -> str:
        return self.policy if self.instance is None else f"{self.policy}/{self.instance}"

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Raises UserError."""
        policy, slash, instance = text.partition("/")
        if not policy or (slash and not instance) or "/" in instance:
            raise UserError(f"{text!r}: write POLICY/INSTANCE")
        return cls(policy, instance if slash else None)


def path_of(namespace: str | None, policy: str | None = None) -> str:
    """Of one policy, of a namespace's, or of all."""
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
    return f"/apis/{API_VERSION}{inside}/{POLICY_PLURAL}" + (f"/{quote(policy, safe='')}" if policy is not None else "")


def get_policy(client: KubeClient, namespace: str, policy: str) -> Manifest:
    """Raises UserError that names those there are."""
    try:
        return client.get(path_of(namespace, policy))
    except NotThere:
        names = [each["metadata"]["name"] for each in list_policies(client, namespace)]
        there = f"there are {', '.join(names)}" if names else "there is none; another namespace: -n"
        raise UserError(f"no {POLICY_KIND} {policy} in namespace {namespace}: {there}") from None


def list_policies(client: KubeClient, namespace: str | None) -> list[Manifest]:
    """Of a namespace, or of all. Raises UserError."""
    try:
        items: list[Manifest] = client.get(path_of(namespace))["items"]
    except NotThere:
        raise UserError(
            f"{client.access.server} knows no {POLICY_KIND}: install Tailkeeper's chart, or choose another --context"
        ) from None
    return items


def instances_of(policy: Manifest) -> list[str]:
    """Names of the spec's instances."""
    return [instance["name"] for instance in policy["spec"]["instances"]]


def chosen(policy: Manifest, target: Target) -> list[str]:
    """The instances that are meant: the one that is named, else all. Raises UserError."""
    names = instances_of(policy)
    if target.instance is None:
        return names
    if target.instance not in names:
        raise UserError(f"{target.policy} has no instance {target.instance}; there are {', '.join(names)}")
    return [target.instance]


def status_of(policy: Manifest, instance: str) -> Mapping[str, Any]:
    """The status of one instance; empty while there is none."""
    found = policy.get("status", {}).get("instances", [])
    return next((each for each in found if each["name"] == instance), {})


def condition(policy: Manifest, kind: str) -> Mapping[str, Any]:
    """A condition of the policy; empty while there is none."""
    found = policy.get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})
