"""The operator on the local cluster, installed by Helm as a user would, and a namespace per test."""

import secrets
from collections.abc import Iterator

import pytest

from tests.e2e import cluster


@pytest.fixture(scope="session", autouse=True)
def operator() -> Iterator[None]:
    """The chart of this tree, installed with the images of this tree; uninstalled at the end, and nothing is left."""
    cluster.run(
        *("helm", "upgrade", "--install", "tailkeeper", "charts/tailkeeper"),
        *("--namespace", cluster.OPERATOR_NAMESPACE, "--create-namespace"),
        *("--values", "hack/local-cluster/values.yaml", "--wait", "--timeout", "120s"),
        timeout_s=180,
    )
    operators = ("deployment", "-n", cluster.OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=tailkeeper")
    cluster.kubectl("rollout", "restart", *operators)  # one installed before runs an older image of the same tag
    cluster.kubectl("rollout", "status", *operators, "--timeout=90s")
    yield
    cluster.kubectl("delete", "batchingpolicies", "--all", "--all-namespaces", "--timeout=60s")
    cluster.run("helm", "uninstall", "tailkeeper", "--namespace", cluster.OPERATOR_NAMESPACE, "--wait", timeout_s=120)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace that enforces the restricted Pod Security Standard."""
    name = f"e2e-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=1", "--wait=false")
