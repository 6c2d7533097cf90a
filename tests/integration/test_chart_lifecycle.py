"""Install, upgrade, rollback, uninstall on a real API server: no policy is lost, and nothing stays that should go."""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.control_plane import ControlPlane
from tests.integration.definitions import await_definitions
from tests.integration.helm import CHART, Helm, HelmError, Object

POLICIES = "/apis/tailkeeper.dev/v1alpha1/namespaces/default/batchingpolicies"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/batchingpolicies.tailkeeper.dev"
POLICY: Object = {
    "apiVersion": "tailkeeper.dev/v1alpha1",
    "kind": "BatchingPolicy",
    "metadata": {"name": "search"},
    "spec": {"instances": [{"name": "minilm", "model": {"name": "minilm", "engine": "encoder", "path": "/models/m"}}]},
}
KINDS = (
    "clusterrole,clusterrolebinding,role,rolebinding,deployment,service,serviceaccount,configmap,secret,pdb,netpol,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of its own: these tests delete the definitions that the other tests work with."""
    folder = tmp_path_factory.mktemp("chart-control-plane")
    plane = ControlPlane(folder)
    yield plane
    plane.stop()
    shutil.rmtree(folder)


@pytest.fixture
def helm(plane: ControlPlane, tmp_path: Path) -> Iterator[Helm]:
    """Helm on an API server without any release or definition, before and after."""
    helm = Helm(tmp_path, plane.kubeconfig)
    yield helm
    for release in json.loads(helm("list", "--all-namespaces", "--output", "json")):
        helm("uninstall", release["name"], "--namespace", release["namespace"])
    plane.kubectl("delete", "crd", "--all", "--timeout=50s")


@pytest.fixture
def home(plane: ControlPlane) -> str:
    """A namespace for a release."""
    name = f"tailkeeper-{secrets.token_hex(3)}"
    with plane.client() as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    return name


@pytest.fixture
def chart_before(tmp_path: Path) -> Path:
    """The chart as a release before this one may have been: its policies knew no review."""
    chart = tmp_path / "tailkeeper"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9", "appVersion": "0.0.9"}))
    for path in (chart / "files" / "crds").glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        if crd["spec"]["names"]["kind"] == "BatchingPolicy":
            del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["review"]
            path.write_text(yaml.safe_dump(crd))
    return chart


def create_policy(plane: ControlPlane) -> str:
    """Makes the policy and returns its uid."""
    await_definitions(plane)
    with plane.client() as client:
        answer = client.post(POLICIES, json=POLICY)
        assert answer.is_success, answer.text
        uid: str = answer.json()["metadata"]["uid"]
        return uid


def uid_of_policy(plane: ControlPlane) -> str:
    with plane.client() as client:
        uid: str = client.get(f"{POLICIES}/search").raise_for_status().json()["metadata"]["uid"]
        return uid


def knows_review(plane: ControlPlane) -> bool:
    with plane.client() as client:
        crd = client.get(CRD).raise_for_status().json()
    return "review" in crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def is_served(plane: ControlPlane) -> bool:
    with plane.client() as client:
        return client.get(CRD).is_success


def objects_of_the_release(plane: ControlPlane) -> set[str]:
    selector = "app.kubernetes.io/part-of=tailkeeper"
    return set(plane.kubectl("get", KINDS, "-A", "-l", selector, "-o", "name").stdout.split())


def test_no_policy_is_lost_from_install_to_uninstall(
    plane: ControlPlane, helm: Helm, home: str, chart_before: Path
) -> None:
    helm("install", "tailkeeper", chart_before, "-n", home, values={})
    policy = create_policy(plane)
    assert not knows_review(plane)

    helm("upgrade", "tailkeeper", CHART, "-n", home, values={"networkPolicy": {"enabled": True}})
    assert knows_review(plane), "an upgrade brings the new definitions"
    assert "networkpolicy.networking.k8s.io/tailkeeper" in objects_of_the_release(plane)

    helm("rollback", "tailkeeper", "1", "-n", home)
    assert not knows_review(plane), "a rollback brings the old ones back"
    assert "networkpolicy.networking.k8s.io/tailkeeper" not in objects_of_the_release(plane)
    assert uid_of_policy(plane) == policy

    helm("uninstall", "tailkeeper", "-n", home)
    assert objects_of_the_release(plane) == set()
    assert uid_of_policy(plane) == policy

    helm("install", "tailkeeper", CHART, "-n", home, values={})
    assert knows_review(plane), "the definitions that stayed are the new release's again"
    assert uid_of_policy(plane) == policy


def test_an_upgrade_to_the_same_changes_no_pod(plane: ControlPlane, helm: Helm, home: str) -> None:
    def generation() -> str:
        get = ("get", "deployment/tailkeeper", "-n", home, "-o", "jsonpath={.metadata.generation}")
        return plane.kubectl(*get).stdout

    helm("install", "tailkeeper", CHART, "-n", home, values={})
    before = generation()
    helm("upgrade", "tailkeeper", CHART, "-n", home, values={})
    assert generation() == before


def test_definitions_that_leave_the_chart_stay_when_kept(plane: ControlPlane, helm: Helm, home: str) -> None:
    helm("install", "tailkeeper", CHART, "-n", home, values={})
    policy = create_policy(plane)
    helm("upgrade", "tailkeeper", CHART, "-n", home, values={"crds": {"enabled": False}})
    assert uid_of_policy(plane) == policy


def test_definitions_and_policies_go_with_the_release_when_not_kept(plane: ControlPlane, helm: Helm, home: str) -> None:
    helm("install", "tailkeeper", CHART, "-n", home, values={"crds": {"keep": False}})
    create_policy(plane)
    helm("uninstall", "tailkeeper", "-n", home)
    plane.kubectl("wait", "--for=delete", "--timeout=30s", "crd/batchingpolicies.tailkeeper.dev")
    assert not is_served(plane)


def test_kept_definitions_pass_to_another_release_only_when_told(plane: ControlPlane, helm: Helm, home: str) -> None:
    helm("install", "first", CHART, "-n", home, values={})
    policy = create_policy(plane)
    helm("uninstall", "first", "-n", home)
    with pytest.raises(HelmError, match="invalid ownership metadata"):
        helm("install", "second", CHART, "-n", home, values={})
    helm("install", "second", CHART, "-n", home, "--take-ownership", values={})
    assert uid_of_policy(plane) == policy


def test_two_releases_for_different_namespaces(plane: ControlPlane, helm: Helm, home: str) -> None:
    helm("install", "a", CHART, "-n", home, values={"watchNamespaces": ["default"]})
    second = {"watchNamespaces": [home], "crds": {"enabled": False}}
    helm("install", "b", CHART, "-n", home, values=second)
    deployments = {name for name in objects_of_the_release(plane) if name.startswith("deployment")}
    assert deployments == {"deployment.apps/a-tailkeeper", "deployment.apps/b-tailkeeper"}


def test_fewer_namespaces_mean_fewer_roles(plane: ControlPlane, helm: Helm, home: str) -> None:
    def roles() -> set[str]:
        return {name for name in objects_of_the_release(plane) if "role" in name}

    helm("install", "tailkeeper", CHART, "-n", home, values={"rbac": {"aggregate": False}})
    assert roles() == {
        "clusterrole.rbac.authorization.k8s.io/tailkeeper",
        "clusterrolebinding.rbac.authorization.k8s.io/tailkeeper",
    }
    listed = {"rbac": {"aggregate": False}, "watchNamespaces": ["default"]}
    helm("upgrade", "tailkeeper", CHART, "-n", home, values=listed)
    assert roles() == {
        "role.rbac.authorization.k8s.io/tailkeeper",
        "rolebinding.rbac.authorization.k8s.io/tailkeeper",
    }
    helm("uninstall", "tailkeeper", "-n", home)
    assert objects_of_the_release(plane) == set()
