"""What the service account of the operator may do: what it needs, where it needs it, and no more. A real API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tailkeeper.reconcile.kinds import EVENT, OWNED, POD, POLICY
from tests.integration.control_plane import ControlPlane
from tests.integration.helm import CHART, Helm, Values

READ = frozenset({"get", "list", "watch"})
Permissions = set[tuple[str, str, str]]
"""API group, resource, verb."""

HOME, SERVED, OTHER = "chart-rbac", "chart-rbac-team-a", "chart-rbac-team-b"


def grants(group: str, resource: str, *verbs: str) -> Permissions:
    return {(group, resource, verb) for verb in verbs}


def needed() -> Permissions:
    """From the kinds that the operator works with."""
    everything: Permissions = set()
    for kind in OWNED:
        everything |= grants(kind.group, kind.plural, *READ, "create", "patch", "delete")
    everything |= grants(POLICY.group, POLICY.plural, *READ)
    everything |= grants(POLICY.group, f"{POLICY.plural}/status", "patch")
    everything |= grants(POD.group, POD.plural, "list", "watch", "patch")
    everything |= grants(EVENT.group, EVENT.plural, "create")
    return everything


class Granted(NamedTuple):
    """The account's permissions, by where it asked."""

    served: Permissions
    other: Permissions
    home: Permissions


@pytest.fixture(scope="module")
def namespaces(crds: ControlPlane) -> Iterator[ControlPlane]:
    """The API server with a namespace for the release and two for policies, and somebody without any role."""
    with crds.client() as client:
        for name in (HOME, SERVED, OTHER):
            client.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
        account = {"metadata": {"name": "nobody"}}
        client.post(f"/api/v1/namespaces/{HOME}/serviceaccounts", json=account).raise_for_status()
        yield crds
        for name in (HOME, SERVED, OTHER):
            client.delete(f"/api/v1/namespaces/{name}").raise_for_status()


@pytest.fixture
def installed(namespaces: ControlPlane, tmp_path: Path) -> Iterator["Install"]:
    """A way to install the chart with values; it goes with the test."""
    helm = Helm(tmp_path, namespaces.kubeconfig)
    install = Install(namespaces, helm)
    yield install
    helm("uninstall", "tailkeeper", "-n", HOME)


class Install:
    """Installs the chart and speaks as its service account."""

    def __init__(self, plane: ControlPlane, helm: Helm) -> None:
        self._plane = plane
        self._helm = helm

    def __call__(self, values: Values) -> httpx.Client:
        """Installs with these values; a client that is the operator."""
        self._helm("install", "tailkeeper", CHART, "-n", HOME, values={**values, "crds": {"enabled": False}})
        return self.client("tailkeeper")

    def client(self, account: str) -> httpx.Client:
        """A client that is this account of the release's namespace."""
        return self._plane.client(self._plane.service_account_token(HOME, account))


def permissions(client: httpx.Client, namespace: str) -> Permissions:
    """What the API server says that the client's user may do there; each combination on its own."""
    review = {"spec": {"namespace": namespace}}
    answer = client.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=review).raise_for_status()
    status = answer.json()["status"]
    assert not status["incomplete"]
    assert not [rule for rule in status["resourceRules"] if rule.get("resourceNames")]
    return {
        (group, resource, verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def granted(install: Install, values: Values) -> Granted:
    """What the installation adds to what any authenticated user may do."""
    operator, nobody = install(values), install.client("nobody")
    places = (SERVED, OTHER, HOME)
    return Granted(*(permissions(operator, place) - permissions(nobody, place) for place in places))


def test_cluster_wide_it_may_do_what_it_needs_and_no_more(installed: Install) -> None:
    found = granted(installed, {})
    assert found.served == found.other == found.home == needed()


def test_in_listed_namespaces_it_may_do_the_same_and_nothing_elsewhere(installed: Install) -> None:
    found = granted(installed, {"watchNamespaces": [SERVED]})
    assert found == Granted(served=needed(), other=set(), home=set())


def test_without_roles_it_may_do_nothing(installed: Install) -> None:
    assert granted(installed, {"rbac": {"create": False}}) == Granted(set(), set(), set())


def role(name: str, rule: dict[str, list[str]]) -> str:
    metadata = {"name": name, "namespace": SERVED}
    return json.dumps(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    )


def binding(name: str, kind: str, role_name: str) -> str:
    return json.dumps(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": SERVED},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": "tailkeeper", "namespace": HOME}],
        }
    )


def apply(client: httpx.Client, plural: str, name: str, body: str) -> httpx.Response:
    return client.patch(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SERVED}/{plural}/{name}",
        params={"fieldManager": "tailkeeper", "force": "true"},
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=body,
    )


def test_it_can_give_a_worker_its_own_settings_and_nothing_that_it_has_not(installed: Install) -> None:
    operator = installed({"watchNamespaces": [SERVED]})
    settings = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a-b-settings"]}
    assert apply(operator, "roles", "a-b", role("a-b", {**settings, "verbs": [*READ]})).status_code == 201
    assert apply(operator, "rolebindings", "a-b", binding("a-b", "Role", "a-b")).status_code == 201

    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    assert apply(operator, "roles", "more", role("more", secrets)).status_code == 403
    replacing = {**settings, "verbs": ["update"]}
    assert apply(operator, "roles", "more", role("more", replacing)).status_code == 403
    assert apply(operator, "rolebindings", "more", binding("more", "ClusterRole", "cluster-admin")).status_code == 403


@pytest.mark.parametrize(
    ("role_name", "verbs"),
    [
        ("tailkeeper-view", READ),
        ("tailkeeper-edit", {"create", "update", "patch", "delete", "deletecollection"}),
    ],
)
def test_people_get_policies_and_profiles_by_the_clusters_own_roles(
    namespaces: ControlPlane, installed: Install, role_name: str, verbs: set[str]
) -> None:
    installed({})
    with namespaces.client() as client:
        found = client.get(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role_name}").raise_for_status().json()
    kind = role_name.removeprefix("tailkeeper-")
    assert found["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{kind}"] == "true"
    [rule] = found["rules"]
    assert set(rule["verbs"]) == set(verbs)
    assert not [resource for resource in rule["resources"] if "status" in resource]
