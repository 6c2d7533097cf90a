"""The operator as the service account of the chart, told by the environment of the chart: nothing is forbidden to it,
and it uses everything that it was granted."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailkeeper.reconcile.worker_pod import labels as worker_labels
from tests.integration.control_plane import ControlPlane, free_port
from tests.integration.helm import CHART, Helm, Object, Values, pick

WITHIN_S = 60


def instance(name: str) -> Object:
    return {
        "name": name,
        "replicas": 1,
        "model": {"name": "minilm", "engine": "encoder", "path": "/models/minilm"},
        "template": {"spec": {"automountServiceAccountToken": False}},  # settings by mounted file
    }


def policy(*instances: str, window: int) -> Object:
    spec = {"batching": {"windowIdle": window, "windowBusy": 4}, "instances": [instance(name) for name in instances]}
    return {
        "apiVersion": "tailkeeper.dev/v1alpha1",
        "kind": "BatchingPolicy",
        "metadata": {"name": "search"},
        "spec": spec,
    }


class Running:
    """The operator as a process, and the administrator's view of what it does in one namespace."""

    def __init__(self, plane: ControlPlane, admin: httpx.Client, home: str, namespace: str, port: int) -> None:
        self.plane = plane
        self.admin = admin
        self.account = f"system:serviceaccount:{home}:tailkeeper"
        self.namespace = namespace
        self.port = port

    def path(self, group_version: str, plural: str) -> str:
        return f"/{group_version}/namespaces/{self.namespace}/{plural}"

    def apply(self, manifest: Object) -> None:
        self.admin.patch(
            self.path("apis/tailkeeper.dev/v1alpha1", "batchingpolicies") + "/search",
            params={"fieldManager": "test", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=json.dumps(manifest),
        ).raise_for_status()

    def names(self, group_version: str, plural: str) -> set[str]:
        items = self.admin.get(self.path(group_version, plural)).raise_for_status().json()["items"]
        return {item["metadata"]["name"] for item in items}

    def requests(self) -> list[dict[str, Any]]:
        """What the API server was asked by the operator's account, up to now."""
        lines = self.plane.audit_log.read_text().splitlines() if self.plane.audit_log.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["user"]["username"] == self.account]


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}"
        time.sleep(0.1)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
    except httpx.TransportError:
        return False


def environment(deployment: Object, plane: ControlPlane, folder: Path, account: str, template: str) -> dict[str, str]:
    """What the pod of this Deployment would have: the chart's variables, its files, and an account's token."""
    home = deployment["metadata"]["namespace"]
    (folder / "token").write_text(plane.service_account_token(home, account))
    (folder / "ca.crt").write_bytes(plane.ca.read_bytes())
    (folder / "template.yaml").write_text(template)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    url = httpx.URL(plane.url)
    return {
        "PATH": os.environ["PATH"],
        **given,
        "TAILKEEPER_WORKER_TEMPLATE": str(folder / "template.yaml"),
        "TAILKEEPER_SERVICE_ACCOUNT_DIR": str(folder),
        "KUBERNETES_SERVICE_HOST": url.host,
        "KUBERNETES_SERVICE_PORT": str(url.port),
    }


@pytest.fixture(params=["whole cluster", "one namespace"])
def running(request: pytest.FixtureRequest, crds: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Running]:
    """The operator, installed by the chart and run by hand (no kubelet here)."""
    home = f"chart-operator-{secrets.token_hex(3)}"
    values: Values = {
        "crds": {"enabled": False},
        "watchNamespaces": [namespace] if request.param == "one namespace" else [],
        "workers": {"template": {"spec": {"priorityClassName": "system-node-critical"}}},
        "logging": {"format": "json"},
    }
    helm = Helm(tmp_path, crds.kubeconfig)
    helm("install", "tailkeeper", CHART, "-n", home, "--create-namespace", values=values)
    objects = helm.render(values, namespace=home)
    template = pick(objects, "ConfigMap")["data"]["template.yaml"]
    port = free_port()
    environ = environment(pick(objects, "Deployment"), crds, tmp_path, "tailkeeper", template)
    log = tmp_path / "operator.log"
    with log.open("w") as output, crds.client() as admin:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailkeeper.app", f"--http-port={port}"],
            cwd=CHART.parents[1] / "operator",
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, "ready")
            assert process.poll() is None, log.read_text()
            yield Running(crds, admin, home, namespace, port)
        finally:
            process.terminate()
            process.wait(30)
            helm("uninstall", "tailkeeper", "-n", home)
            admin.delete(f"/api/v1/namespaces/{home}").raise_for_status()
    said = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert said
    assert not [line for line in said if "forbidden" in line.lower() or "permission" in line.lower()]


def granted(plane: ControlPlane, kind: str, namespace: str) -> set[tuple[str, str, str]]:
    place = f"namespaces/{namespace}/roles" if kind == "Role" else "clusterroles"
    with plane.client() as admin:
        role = admin.get(f"/apis/rbac.authorization.k8s.io/v1/{place}/tailkeeper").raise_for_status().json()
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(requests: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    found = set()
    for entry in requests:
        target = entry.get("objectRef")
        if target is None or "resource" not in target:
            continue  # discovery
        resource = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
        found.add((target.get("apiGroup", ""), resource, entry["verb"]))
        if entry["verb"] == "patch" and entry["responseStatus"]["code"] == 201:
            found.add((target.get("apiGroup", ""), resource, "create"))  # an apply that made the object
    return found


def test_it_may_do_all_that_it_does_and_does_all_that_it_may(running: Running, request: pytest.FixtureRequest) -> None:
    apps, core = "apis/apps/v1", "api/v1"
    running.apply(policy("minilm", "second", window=32))
    wait_until(lambda: running.names(apps, "deployments") == {"search-minilm", "search-second"}, "both instances")

    deployment = running.admin.get(f"{running.path(apps, 'deployments')}/search-minilm").json()
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "system-node-critical", "the chart's overlay"

    # A worker that reads its settings from a mounted file, as a kubelet would run it.
    pod = {
        "metadata": {"name": "worker", "labels": worker_labels("search", "minilm")},
        "spec": {
            "serviceAccountName": "search-minilm",
            "automountServiceAccountToken": False,
            "containers": [{"name": "worker", "image": "example.com/worker"}],
        },
    }
    running.admin.post(running.path(core, "pods"), json=pod).raise_for_status()

    # Every kind is changed, so that every kind is put back; one is deleted, and one instance goes.
    children = {
        "deployments": apps,
        "services": core,
        "serviceaccounts": core,
        "configmaps": core,
        "roles": "apis/rbac.authorization.k8s.io/v1",
        "rolebindings": "apis/rbac.authorization.k8s.io/v1",
        "poddisruptionbudgets": "apis/policy/v1",
    }
    for plural, group_version in children.items():
        for name in running.names(group_version, plural):
            if name.startswith("search-minilm"):
                running.admin.patch(
                    f"{running.path(group_version, plural)}/{name}",
                    headers={"Content-Type": "application/merge-patch+json"},
                    content=json.dumps({"metadata": {"labels": {"tailkeeper.dev/policy": "drifted"}}}),
                ).raise_for_status()
    running.apply(policy("minilm", window=16))
    for plural, group_version in children.items():
        wait_until(
            lambda plural=plural, group_version=group_version: (
                not any(name.startswith("search-second") for name in running.names(group_version, plural))
            ),
            f"{plural} of an instance that is gone",
        )

    kind = "Role" if "one namespace" in request.node.name else "ClusterRole"
    may = granted(running.plane, kind, running.namespace)
    wait_until(lambda: may <= used(running.requests()), f"use of {may - used(running.requests())}")
    refused = [entry for entry in running.requests() if entry["responseStatus"]["code"] in (401, 403)]
    assert refused == []
    assert used(running.requests()) == may
