"""A real API server takes every object that the chart renders, without a warning, where Pod Security is restricted."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.control_plane import ControlPlane
from tests.integration.definitions import install_definitions
from tests.integration.helm import CHART, VALUE_SETS, Helm, Object, Values, pick

OPERATOR = "v0.85.0"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def prometheus_operator(apiserver: ControlPlane) -> None:
    """The definitions of PodMonitor and PrometheusRule, from the Prometheus Operator's own module."""
    download = ("go", "mod", "download", "-json", f"github.com/prometheus-operator/prometheus-operator@{OPERATOR}")
    module = json.loads(subprocess.run(download, check=True, capture_output=True, text=True, cwd="/").stdout)["Dir"]
    folder = Path(module) / "example" / "prometheus-operator-crd"
    for kind in ("podmonitors", "prometheusrules"):
        install_definitions(apiserver, folder / f"monitoring.coreos.com_{kind}.yaml")


@pytest.fixture(scope="module")
def platform(apiserver: ControlPlane, prometheus_operator: None) -> Iterator[str]:
    """A namespace where only restricted pods may run, and the ones that value sets watch."""
    namespaces = ("platform", "team-a", "team-b")
    with apiserver.client() as client:
        for name in namespaces:
            body = {"metadata": {"name": name, "labels": RESTRICTED}}
            client.post("/api/v1/namespaces", json=body).raise_for_status()
        # A pod needs its account to be there, and a dry run makes none. Controllers, when they run, make `default`.
        for account in ("default", "tailkeeper", "tailkeeper-latency", "somebody"):
            body = {"metadata": {"name": account}}
            made = client.post("/api/v1/namespaces/platform/serviceaccounts", json=body)
            assert made.is_success or made.status_code == 409, made.text
        yield "platform"
        for name in namespaces:
            client.delete(f"/api/v1/namespaces/{name}").raise_for_status()


def dry_run(apiserver: ControlPlane, objects: list[Object]) -> str:
    """Applies without keeping. Raises CalledProcessError on a refusal, an unknown field, and a warning."""
    options = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--warnings-as-errors")
    items = {"apiVersion": "v1", "kind": "List", "items": objects}
    return apiserver.kubectl("apply", *options, "-f", "-", stdin=json.dumps(items)).stdout


def operators_pod(objects: list[Object]) -> Object:
    template = pick(objects, "Deployment")["spec"]["template"]
    metadata = {**template["metadata"], "name": "operator", "namespace": "platform"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_the_api_server_takes_every_object(apiserver: ControlPlane, helm: Helm, platform: str, values: Values) -> None:
    objects = helm.render(values, namespace=platform)
    said = dry_run(apiserver, [*objects, operators_pod(objects)])
    assert said.count("serverside-applied") == len(objects) + 1


@pytest.mark.parametrize(
    "loosened",
    [
        {"podSecurityContext": {"runAsNonRoot": False}},
        {"podSecurityContext": {"seccompProfile": None}},
        {"securityContext": {"allowPrivilegeEscalation": True}},
        {"securityContext": {"capabilities": {"drop": []}}},
    ],
    ids=str,
)
def test_what_the_check_would_catch(apiserver: ControlPlane, helm: Helm, platform: str, loosened: Values) -> None:
    """A check that cannot fail shows nothing: one loosened setting is enough."""
    deployment = pick(helm.render(loosened, namespace=platform), "Deployment")
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        dry_run(apiserver, [deployment])
    assert "PodSecurity" in str(refusal.value.__notes__)


def test_the_file_system_of_the_operator_is_read_only(helm: Helm) -> None:
    """Pod Security does not ask for it."""
    for pod in (operators_pod(helm.render({})), pick(helm.render({}), "Pod")):
        assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["spec"]["containers"])


def test_the_policy_in_the_notes_is_a_good_one(crds: ControlPlane, helm: Helm, namespace: str) -> None:
    notes = helm("install", "tailkeeper", CHART, "--namespace", namespace, "--dry-run=client").partition("NOTES:")[2]
    policy = yaml.safe_load(notes.partition("<<'END'\n")[2].partition("  END\n")[0])
    assert policy["kind"] == "BatchingPolicy"
    dry_run(crds, [{**policy, "metadata": {**policy["metadata"], "namespace": namespace}}])


def test_the_examples_for_artifact_hub_are_good_ones(crds: ControlPlane, namespace: str) -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    for example in yaml.safe_load(annotations["artifacthub.io/crdsExamples"]):
        dry_run(crds, [{**example, "metadata": {**example["metadata"], "namespace": namespace}}])


def test_notes_name_what_was_chosen(helm: Helm) -> None:
    def notes(values: Values) -> str:
        return helm("install", "tailkeeper", CHART, "--dry-run=client", "-n", "platform", values=values)

    assert "all namespaces" in notes({})
    assert "policies of team-a, team-b." in notes({"watchNamespaces": ["team-a", "team-b"]})
    assert "--namespace team-a apply" in notes({"watchNamespaces": ["team-a", "team-b"]})
    assert "crds.enabled is false" in notes({"crds": {"enabled": False}})
    assert "rollout status deployment/tailkeeper" in notes({})
    assert "prometheusRule.enabled=true" in notes({})
    watched = {"prometheusRule": {"enabled": True}, "grafanaDashboard": {"enabled": True}}
    assert "a value away" not in notes(watched)
