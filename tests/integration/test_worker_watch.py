"""A worker follows its ConfigMap through a real API server: within a second, whatever happens to the connection, with a
Role that names this one object."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
from aiohttp import web

from gpu_worker.config import Identity
from gpu_worker.settings.keeper import SettingsKeeper
from gpu_worker.settings.service_account import ServiceAccount, in_cluster
from gpu_worker.settings.watch import SettingsWatch
from tailkeeper.api.enums import Mode
from tailkeeper.api.names import SETTINGS_KEY
from tests.integration.control_plane import ControlPlane, free_port
from tests.integration.worker_in_process import eventually, running_worker
from tests.unit.worker.doubles import document

NAME = "chat-minilm-settings"
WITHIN_S = 1.0


class ConfigMap:
    """The ConfigMap, written as the operator would."""

    def __init__(self, client: httpx.Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def write(self, text: str) -> None:
        """Creates or changes it."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": {SETTINGS_KEY: text},
        }
        answer = self._client.patch(
            f"{self._path}/{NAME}?fieldManager=test&force=true",
            content=json.dumps(body),
            headers={"content-type": "application/apply-patch+yaml"},
        )
        answer.raise_for_status()

    def delete(self) -> None:
        """Deletes it."""
        self._client.delete(f"{self._path}/{NAME}").raise_for_status()

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/configmaps"


class Pod:
    """What a pod sees: an identity, a token and a CA in files."""

    def __init__(self, apiserver: ControlPlane, namespace: str, folder: Path, token: str) -> None:
        self.token_file = folder / "token"
        self.token_file.write_text(token)
        (folder / "ca.crt").write_bytes(apiserver.ca.read_bytes())
        address = urlsplit(apiserver.url)
        environment = {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}
        self.folder, self.environment = folder, environment
        account = in_cluster(folder, environment)
        assert account is not None
        self.account = account
        self.namespace = namespace

    def keeper(self) -> SettingsKeeper:
        """A keeper that applies whatever it takes."""
        identity = Identity("default", "chat", "minilm")
        return SettingsKeeper(identity, frozenset({Mode.REQUEST}), lambda settings: None)


@asynccontextmanager
async def watching(account: ServiceAccount, namespace: str, keeper: SettingsKeeper) -> AsyncIterator[None]:
    task = asyncio.create_task(SettingsWatch(account, namespace, NAME, keeper).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def applied(keeper: SettingsKeeper, generation: int, within_s: float = WITHIN_S) -> None:
    async def at_generation() -> bool:
        return keeper.applied is not None and keeper.applied.settings.generation == generation

    await eventually(at_generation, within_s)


@pytest.fixture
def config_map(apiserver: ControlPlane, namespace: str) -> Iterator[ConfigMap]:
    with apiserver.client() as client:
        yield ConfigMap(client, namespace)


@pytest.fixture
def pod(apiserver: ControlPlane, namespace: str, tmp_path: Path) -> Pod:
    """A ServiceAccount whose Role names this one ConfigMap and nothing else."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "worker", "namespace": namespace},
        "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get", "list", "watch"]}
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "worker", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "worker"},
        "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": namespace}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker", "namespace": namespace}}
    with apiserver.client() as client:
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        client.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", json=account).raise_for_status()
        client.post(f"{rbac}/roles", json=role).raise_for_status()
        client.post(f"{rbac}/rolebindings", json=binding).raise_for_status()
    return Pod(apiserver, namespace, tmp_path, apiserver.service_account_token(namespace, "worker"))


async def test_each_change_is_applied_within_a_second(pod: Pod, config_map: ConfigMap) -> None:
    keeper = pod.keeper()
    config_map.write(document(1))
    async with watching(pod.account, pod.namespace, keeper):
        await applied(keeper, 1, within_s=5)
        for generation in range(2, 30):
            config_map.write(document(generation))
            await applied(keeper, generation)
    assert keeper.refused == 0


async def test_a_config_map_that_comes_later_is_found(pod: Pod, config_map: ConfigMap) -> None:
    keeper = pod.keeper()
    async with watching(pod.account, pod.namespace, keeper):
        await asyncio.sleep(0.5)
        assert keeper.applied is None
        config_map.write(document(1))
        await applied(keeper, 1)


async def test_bad_documents_are_refused_and_the_same_good_one_again_is_in_sync(
    pod: Pod, config_map: ConfigMap
) -> None:
    keeper = pod.keeper()
    config_map.write(document(3))

    async def refused() -> bool:
        return keeper.last_refusal is not None

    async def in_sync() -> bool:
        return keeper.last_refusal is None

    async with watching(pod.account, pod.namespace, keeper):
        await applied(keeper, 3, within_s=5)
        for bad in ("{", document(2), document(4, policy="other"), ""):
            config_map.write(bad)
            await eventually(refused, WITHIN_S)
            config_map.write(document(3))
            await eventually(in_sync, WITHIN_S)
        assert keeper.refused == 4
        config_map.write(document(4))
        await applied(keeper, 4)


async def test_a_deleted_config_map_changes_nothing_and_its_successor_must_go_on_counting(
    pod: Pod, config_map: ConfigMap
) -> None:
    keeper = pod.keeper()
    config_map.write(document(7))
    async with watching(pod.account, pod.namespace, keeper):
        await applied(keeper, 7, within_s=5)
        config_map.delete()
        await asyncio.sleep(0.3)
        assert (keeper.applied is not None, keeper.refused) == (True, 0)
        config_map.write(document(1))

        async def refused() -> bool:
            return keeper.refused == 1

        await eventually(refused, WITHIN_S)
        config_map.write(document(8))
        await applied(keeper, 8)


async def test_a_token_that_is_replaced_is_used(pod: Pod, config_map: ConfigMap, apiserver: ControlPlane) -> None:
    """A worker that starts with a bad token, or whose token has expired, goes on with the next one in the file."""
    keeper = pod.keeper()
    good = pod.token_file.read_text()
    pod.token_file.write_text("expired")
    config_map.write(document(1))
    async with watching(pod.account, pod.namespace, keeper):
        await asyncio.sleep(0.5)
        assert keeper.applied is None
        pod.token_file.write_text(good)
        await applied(keeper, 1, within_s=3)


async def test_a_role_that_comes_late_is_enough(pod: Pod, config_map: ConfigMap, apiserver: ControlPlane) -> None:
    keeper = pod.keeper()
    config_map.write(document(1))
    binding = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{pod.namespace}/rolebindings"
    with apiserver.client() as client:
        body = client.get(f"{binding}/worker").json()
        client.delete(f"{binding}/worker").raise_for_status()
        await asyncio.sleep(0.5)
        async with watching(pod.account, pod.namespace, keeper):
            await asyncio.sleep(1)
            assert keeper.applied is None
            body["metadata"] = {"name": "worker", "namespace": pod.namespace}
            client.post(binding, json=body).raise_for_status()
            await applied(keeper, 1, within_s=10)


class Relay:
    """A network between worker and API server that can be cut, and can go silent."""

    def __init__(self, target: str) -> None:
        address = urlsplit(target)
        self._target = (str(address.hostname), int(address.port or 443))
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def open(self) -> int:
        """Listens; returns the port."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Breaks every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        """Stops listening."""
        self.cut()
        self._server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer), return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def test_a_cut_connection_is_made_anew_and_nothing_is_missed(pod: Pod, config_map: ConfigMap) -> None:
    keeper = pod.keeper()
    config_map.write(document(1))
    relay = Relay(pod.account.url)
    port = await relay.open()
    account = ServiceAccount(f"https://127.0.0.1:{port}", pod.account.token_file, pod.account.ca_file)
    async with watching(account, pod.namespace, keeper):
        await applied(keeper, 1, within_s=5)
        for generation in range(2, 6):
            relay.cut()
            config_map.write(document(generation))
            await applied(keeper, generation, within_s=2)
    await relay.close()
    assert keeper.refused == 0


class Forgetful:
    """In front of the API server: its first watch is told that the version is gone, in one of the two ways in which
    an API server says so. A real one does after some minutes of changes elsewhere."""

    EXPIRED: ClassVar = {"kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410}

    def __init__(self, account: ServiceAccount, by_status: bool) -> None:
        self._account = account
        self._by_status = by_status
        self.lists = 0
        self.watches = 0

    async def open(self) -> int:
        """Listens, without TLS; returns the port."""
        self._upstream = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._account.tls()))
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        port = free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return port

    async def close(self) -> None:
        """Stops."""
        await self._upstream.close()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        watch = "watch" in request.query
        self.watches += watch
        self.lists += not watch
        if watch and self.watches == 1:
            if self._by_status:
                return web.json_response(self.EXPIRED, status=410)
            return web.Response(text=json.dumps({"type": "ERROR", "object": self.EXPIRED}) + "\n")
        headers = {"Authorization": request.headers["Authorization"]}
        async with self._upstream.get(self._account.url + request.path_qs, headers=headers) as upstream:
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            return response


@pytest.mark.parametrize("by_status", [True, False], ids=["HTTP 410", "ERROR event"])
async def test_a_version_that_is_gone_lists_anew_and_nothing_is_missed(
    pod: Pod, config_map: ConfigMap, by_status: bool
) -> None:
    keeper = pod.keeper()
    config_map.write(document(1))
    between = Forgetful(pod.account, by_status)
    port = await between.open()
    account = ServiceAccount(f"http://127.0.0.1:{port}", pod.account.token_file, pod.account.ca_file)
    async with watching(account, pod.namespace, keeper):
        await applied(keeper, 1, within_s=5)
        for generation in (2, 3):
            config_map.write(document(generation))
            await applied(keeper, generation)
    await between.close()
    assert (between.lists, keeper.refused) == (2, 0)


async def test_an_api_server_that_is_away_is_no_reason_to_spin(tmp_path: Path, pod: Pod) -> None:
    relay = Relay(pod.account.url)
    port = await relay.open()
    await relay.close()
    account = ServiceAccount(f"https://127.0.0.1:{port}", pod.account.token_file, pod.account.ca_file)
    begun = time.process_time()
    async with watching(account, pod.namespace, pod.keeper()):
        await asyncio.sleep(2)
    assert time.process_time() - begun < 0.5


async def test_a_whole_worker_takes_the_newest_of_config_map_and_file(
    pod: Pod, config_map: ConfigMap, tmp_path: Path
) -> None:
    config_map.write(document(5, ceiling=7))
    flags = ("--settings-config-map", f"{pod.namespace}/{NAME}", "--service-account-dir", str(pod.folder))
    async with running_worker(tmp_path, *flags, environment=pod.environment) as worker:
        await worker.until_settings(generation=5, source="configmap", refused=0)
        config_map.write(document(6))
        await worker.until_settings(generation=6, source="configmap")
        worker.change_settings(document(7))
        await worker.until_settings(generation=7, source="file", refused=0, lastRefusal=None)


def test_no_token_no_watch(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert in_cluster(tmp_path, environment) is None
    (tmp_path / "token").write_text("t")
    assert in_cluster(tmp_path, {}) is None
    account = in_cluster(tmp_path, environment)
    assert account is not None
    assert account.url == "https://[fd00::1]:6443"
