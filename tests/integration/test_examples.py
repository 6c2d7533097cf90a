"""The examples become Deployments that any cluster takes, also one that enforces `restricted` Pod Security."""

from pathlib import Path

import pytest
import yaml

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.reconcile.worker_pod import WorkerDefaults, pod_template, selector
from tests.integration.control_plane import ControlPlane

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture
def restricted(apiserver: ControlPlane, namespace: str) -> str:
    """A namespace in which the server warns of whatever is not restricted."""
    apiserver.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted")
    return namespace


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_becomes_restricted_pods_without_a_warning(apiserver: ControlPlane, restricted: str, path: Path) -> None:
    policy = BatchingPolicy.model_validate(yaml.safe_load(path.read_text()), by_name=False)
    for instance in policy.spec.instances:
        name = policy.metadata.name
        template = pod_template(policy, instance, restricted, WorkerDefaults(image="worker:test"))
        labels = selector(name, instance.name)
        spec = {"selector": {"matchLabels": labels}, "template": template}
        deployment = {"metadata": {"name": f"{name}-{instance.name}"}, "spec": spec}
        with apiserver.client() as client:
            answer = client.post(
                f"/apis/apps/v1/namespaces/{restricted}/deployments",
                json=deployment,
                params={"dryRun": "All", "fieldValidation": "Strict"},
            )
        assert answer.is_success, answer.text
        assert answer.headers.get("warning") is None


def test_a_warning_would_be_seen(apiserver: ControlPlane, restricted: str) -> None:
    labels = {"app": "loose"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "worker", "image": "worker:test"}]}}
    deployment = {"metadata": {"name": "loose"}, "spec": {"selector": {"matchLabels": labels}, "template": pod}}
    with apiserver.client() as client:
        answer = client.post(f"/apis/apps/v1/namespaces/{restricted}/deployments?dryRun=All", json=deployment)
    assert "restricted" in answer.headers["warning"]
