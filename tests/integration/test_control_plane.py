"""The fixtures themselves: what other tests stand on."""

import time
from collections.abc import Callable

from tests.integration.control_plane import ControlPlane


def test_api_server_serves_its_administrator_only(apiserver: ControlPlane) -> None:
    with apiserver.client() as client:
        assert client.get("/version").json()["major"] == "1"
        assert client.get("/api/v1/namespaces").is_success
    with apiserver.client(token="not-a-token") as client:
        assert client.get("/api/v1/namespaces").status_code == 401


def test_service_account_token_has_the_rights_of_its_account(apiserver: ControlPlane, namespace: str) -> None:
    with apiserver.client() as client:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        client.post(path, json={"metadata": {"name": "nobody"}}).raise_for_status()
    token = apiserver.service_account_token(namespace, "nobody")
    with apiserver.client(token) as client:
        assert client.get(f"/api/v1/namespaces/{namespace}/pods").status_code == 403


def test_controllers_make_pods_of_a_deployment_and_collect_them(controllers: ControlPlane, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with controllers.client() as client:
        deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        labels = {"app": "sleeper"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        deployment = {
            "metadata": {"name": "sleeper"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        client.post(deployments, json=deployment).raise_for_status()
        _eventually(lambda: len(client.get(pods).json()["items"]) == 1)
        client.delete(f"{deployments}/sleeper").raise_for_status()
        _eventually(lambda: not client.get(pods).json()["items"])


def _eventually(holds: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
