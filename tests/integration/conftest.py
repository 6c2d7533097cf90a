"""Fixtures with real parts. A program that is missing is a failure with the command that makes it."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.control_plane import ControlPlane

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
    apiserver.kubectl("apply", "--server-side", "-f", str(CRDS))
    apiserver.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    return apiserver


@pytest.fixture
def namespace(apiserver: ControlPlane) -> Iterator[str]:
    """A new namespace, deleted after the test (it stays Terminating when no controllers run)."""
    name = f"test-{secrets.token_hex(4)}"
    with apiserver.client() as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
        yield name
        client.delete(f"/api/v1/namespaces/{name}").raise_for_status()
