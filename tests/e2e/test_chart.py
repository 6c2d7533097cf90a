"""The life of a release beside workers that serve: upgrade, rollback, uninstall and a new installation restart none."""

import httpx

from tests.e2e import cluster

RELEASE = ("tailkeeper", "--namespace", cluster.OPERATOR_NAMESPACE)
CHART = ("charts/tailkeeper", "--values", "hack/local-cluster/values.yaml", "--wait", "--timeout", "120s")


def helm(*arguments: str) -> str:
    return cluster.run("helm", *arguments, timeout_s=180)


def identity(namespace: str) -> list[tuple[str, int]]:
    """UID and restarts of each worker."""
    return [
        (pod["metadata"]["uid"], sum(status["restartCount"] for status in pod["status"]["containerStatuses"]))
        for pod in cluster.pods(namespace, "kept")
    ]


def serves(namespace: str) -> bool:
    url = f"{cluster.address('kept-minilm', namespace)}/v1/embeddings"
    return httpx.post(url, json={"model": "minilm", "input": "x"}, timeout=10).is_success


def test_helm_test_passes() -> None:
    said = helm("test", *RELEASE, "--logs")
    assert "Phase:          Succeeded" in said
    assert "/readyz 200" in said


def test_no_worker_is_restarted_in_the_life_of_a_release(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("kept"))
    cluster.wait_condition("kept", namespace, "Ready", "True", timeout_s=180)
    before = identity(namespace)
    revision = helm("history", *RELEASE, "--max", "1").splitlines()[-1].split()[0]

    helm("upgrade", *RELEASE, *CHART, "--set", "podAnnotations.release=next,workers.image.tag=next")
    assert identity(namespace) == before
    helm("rollback", *RELEASE, revision, "--wait", "--timeout", "120s")
    assert identity(namespace) == before

    helm("uninstall", *RELEASE, "--wait", "--timeout", "120s")
    assert identity(namespace) == before
    assert serves(namespace), "no operator is needed to serve"

    helm("install", *RELEASE, *CHART)
    window = {"batching": {"windowBusy": 7}}
    cluster.apply(namespace, cluster.policy("kept", **window))
    cluster.wait_condition("kept", namespace, "SettingsApplied", "True", timeout_s=60)
    assert identity(namespace) == before, "the new operator takes over what is there"


def test_people_with_the_clusters_own_roles_may_use_policies(namespace: str) -> None:
    """The control plane puts the chart's roles into view and edit; it needs a moment."""

    def may(user: str, verb: str) -> bool:
        answer = cluster.kubectl(
            *("auth", "can-i", verb, "batchingpolicies.tailkeeper.dev", "-n", namespace, "--as", user), ok=False
        )
        return answer.strip() == "yes"

    for role in ("view", "edit"):
        cluster.kubectl(
            "create", "rolebinding", role, "-n", namespace, f"--clusterrole={role}", f"--user=one-who-may-{role}"
        )
    cluster.wait("an editor may write policies", lambda: may("one-who-may-edit", "create"), timeout_s=20)
    cluster.wait("a viewer may read policies", lambda: may("one-who-may-view", "list"), timeout_s=20)
    assert not may("one-who-may-view", "create")
    assert not may("somebody", "list")
