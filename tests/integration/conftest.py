"""Fixtures with real parts. A program that is missing is a failure with the command that makes it."""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.control_plane import ControlPlane
from tests.integration.definitions import install_definitions
from tests.integration.operators import Field, OperatorProcess, grant_chart_role, running

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="session")
def apiserver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server with its etcd, this session's own; no controllers. Its logs stay when a test failed."""
    folder = tmp_path_factory.mktemp("control-plane")
    plane = ControlPlane(folder)
    yield plane
    plane.stop()
    if request.session.testsfailed:
        shutil.rmtree(folder / "etcd")
        print(f"\nlogs of the API server: {folder}")
    else:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def controllers(apiserver: ControlPlane) -> Iterator[ControlPlane]:
    """The API server with kube-controller-manager: Deployments get pods (which nothing runs), garbage is collected."""
    program = apiserver.start_controllers()
    yield apiserver
    program.stop()


@pytest.fixture(scope="session")
def crds(apiserver: ControlPlane) -> ControlPlane:
    """The API server with Tailkeeper's resources installed and served."""
    install_definitions(apiserver, CRDS)
    return apiserver


@pytest.fixture
def namespace(apiserver: ControlPlane) -> Iterator[str]:
    """A new namespace, deleted after the test (it stays Terminating when no controllers run)."""
    name = f"test-{secrets.token_hex(4)}"
    with apiserver.client() as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
        yield name
        client.delete(f"/api/v1/namespaces/{name}").raise_for_status()


@pytest.fixture(scope="session")
def operator_role(crds: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """The API server with our resources, and the service account that the chart gives the operator."""
    grant_chart_role(crds, tmp_path_factory.mktemp("chart"))
    return crds


@pytest.fixture
def field(operator_role: ControlPlane, controllers: ControlPlane, namespace: str) -> Iterator[Field]:
    """A namespace of its own to work in, on an API server with controllers."""
    field = Field(operator_role, namespace)
    yield field
    field.client.close()


@pytest.fixture(scope="module")
def operator(
    operator_role: ControlPlane, controllers: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all namespaces and all tests of a file."""
    with running(OperatorProcess(operator_role, tmp_path_factory.mktemp("operator"))) as operator:
        yield operator


@pytest.fixture
def operate(field: Field, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators for the test's namespace (more flags may follow) and ends them with the test."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(
            running(OperatorProcess(field.plane, tmp_path, f"--namespaces={field.namespace}", *flags))
        )
