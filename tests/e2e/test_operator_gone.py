"""The operator dies, is upgraded, or is uninstalled: serving goes on, and it finds everything as it was."""

import json
import time

import httpx

from tests.e2e import cluster

OPERATOR = ("-n", cluster.OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=tailkeeper")


def _versions(namespace: str) -> dict[str, str]:
    """resourceVersion of everything that belongs to policies of a namespace, the policies included."""
    kinds = "batchingpolicies,deployments,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
    items = cluster.get(kinds, namespace)["items"]
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in items
        if item["kind"] == "BatchingPolicy" or "tailkeeper.dev/policy" in item["metadata"].get("labels", {})
    }


def _quiet(namespace: str) -> dict[str, str]:
    """The versions once they stay the same for 20 seconds: what is measured is said when it has lasted a while."""
    last: dict[str, str] = {}

    def look() -> dict[str, str] | None:
        nonlocal last
        before, last = last, _versions(namespace)
        return last if before == last else None

    return cluster.wait("nothing is written", look, timeout_s=180, every_s=20)


def test_a_killed_operator_adopts_what_is_there_without_a_write(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("adopted"))
    cluster.wait_condition("adopted", namespace, "Ready", "True", timeout_s=180)
    before = _quiet(namespace)
    said = cluster.get("batchingpolicy", namespace, "adopted")["status"]
    cluster.kubectl("delete", "pods", *OPERATOR, "--grace-period=0", "--force")
    cluster.kubectl("rollout", "status", "deployment", *OPERATOR, "--timeout=90s")
    time.sleep(10)
    assert cluster.get("batchingpolicy", namespace, "adopted")["status"] == said
    assert _versions(namespace) == before
    # It is alive, not only quiet: drift is repaired.
    cluster.kubectl("delete", "service", "adopted-minilm", "-n", namespace)
    cluster.wait("the Service is back", lambda: cluster.get("service", namespace, "adopted-minilm"), timeout_s=10)


def test_requests_are_served_while_no_operator_runs(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("alone"))
    cluster.wait_condition("alone", namespace, "Ready", "True", timeout_s=180)
    url = cluster.address("alone-minilm", namespace)
    cluster.kubectl("delete", "pods", *OPERATOR, "--grace-period=0", "--force")
    assert httpx.post(f"{url}/v1/embeddings", json={"model": "minilm", "input": "x"}, timeout=30).status_code == 200
    cluster.kubectl("rollout", "status", "deployment", *OPERATOR, "--timeout=90s")


def test_an_upgrade_of_the_operator_restarts_no_worker(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("kept"))
    cluster.wait_condition("kept", namespace, "Ready", "True", timeout_s=180)
    (before,) = cluster.pods(namespace, "kept")
    helm = ("helm", "upgrade", "tailkeeper", "charts/tailkeeper", "--namespace", cluster.OPERATOR_NAMESPACE)
    values = ("--values", "hack/local-cluster/values.yaml", "--wait", "--timeout", "120s")
    cluster.run(*helm, *values, "--set", "logging.level=debug,podAnnotations.release=next", timeout_s=180)
    time.sleep(10)
    (after,) = cluster.pods(namespace, "kept")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    cluster.run(*helm, *values, timeout_s=180)


def test_policies_are_deleted_while_no_operator_runs(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("orphan", instances=[cluster.instance("minilm", replicas=0)]))
    cluster.wait("the Deployment is there", lambda: cluster.get("deployment", namespace, "orphan-minilm"), timeout_s=30)
    (deployment,) = cluster.get("deployments", cluster.OPERATOR_NAMESPACE)["items"]
    name = deployment["metadata"]["name"]
    cluster.kubectl("scale", "deployment", name, "-n", cluster.OPERATOR_NAMESPACE, "--replicas=0")
    try:
        cluster.kubectl("wait", "--for=delete", "pods", *OPERATOR, "--timeout=60s")
        cluster.kubectl("delete", "batchingpolicy", "orphan", "-n", namespace, "--timeout=20s")
        cluster.wait(
            "what belonged to it is collected",
            lambda: not _versions(namespace),
            timeout_s=60,
        )
    finally:
        cluster.kubectl("scale", "deployment", name, "-n", cluster.OPERATOR_NAMESPACE, "--replicas=1")
        cluster.kubectl("rollout", "status", "deployment", name, "-n", cluster.OPERATOR_NAMESPACE, "--timeout=90s")


def test_the_operator_is_forbidden_nothing_that_it_asks_for() -> None:
    """Runs last in this file: the log of all that it did holds no refusal and no traceback."""
    lines = cluster.kubectl("logs", *OPERATOR, "--tail=-1").splitlines()
    bad = [line for line in lines if "forbidden" in line.lower() or "Traceback" in line]
    assert bad == []
    assert json.loads(lines[0])
