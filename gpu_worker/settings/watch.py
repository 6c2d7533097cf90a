"""Watches one ConfigMap through the Kubernetes API: list, then watch from that version; 410 lists anew. Only what is
needed of the protocol, over aiohttp: the official client costs .6 s to import and would type-decode what we read as
JSON."""

import asyncio
import json
import logging
import random
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from gpu_worker.settings.keeper import SettingsKeeper, Source
from gpu_worker.settings.service_account import ServiceAccount
from tailkeeper.api.names import SETTINGS_KEY

log = logging.getLogger(__name__)

WATCH_S = 240
"""The server ends a watch after this; a new one goes on from the same version."""
SILENCE_S = 90
"""Bookmarks come about once a minute; a connection that is silent for longer is dead."""
REQUEST_S = 10
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 30.0
LONGEST_EVENT_BYTES = 4 << 20
"""An object may have 1.5 MiB in etcd, and JSON escapes make it longer."""


class _Gone(aiohttp.ClientError):
    """410: the version to go on from is forgotten."""


class SettingsWatch:
    """Offers the document of one ConfigMap whenever it changes."""

    def __init__(self, account: ServiceAccount, namespace: str, name: str, keeper: SettingsKeeper) -> None:
        self._account = account
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._name = name
        self._keeper = keeper
        self._trouble: str | None = None

    async def run(self) -> None:
        """Never returns. Whatever goes wrong is logged once and tried again."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                async with self._session() as session:
                    async for _ in self._follow(session):
                        backoff_s = FIRST_BACKOFF_S
                        self._trouble = None
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
                self._report(error)
            await asyncio.sleep(random.uniform(0.5, 1) * backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _follow(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Yields after every sign of life: the list, and each event. Ends when it must be begun anew."""
        version = await self._list(session)
        yield
        while True:
            try:
                async for newest in self._watch(session, version):
                    version = newest
                    yield
            except _Gone:
                log.info("settings: the watch has fallen behind; listing anew")
                version = await self._list(session)
                yield

    async def _list(self, session: aiohttp.ClientSession) -> str:
        async with self._get(session, timeout_s=REQUEST_S) as response:
            body = await response.json()
        for item in body["items"]:
            self._offer(item)
        if not body["items"]:
            log.warning("settings: ConfigMap %s does not exist", self._name)
        return str(body["metadata"]["resourceVersion"])

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> AsyncIterator[str]:
        """Yields the newest version with each event."""
        begun_s = asyncio.get_running_loop().time()
        more = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        async with self._get(session, more=more, timeout_s=None) as response:
            async for line in response.content:
                event = json.loads(line)
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    if item.get("code") == 410:
                        raise _Gone
                    raise aiohttp.ClientError(f"watch: {item.get('message', item)}")
                if kind in ("ADDED", "MODIFIED"):
                    self._offer(item)
                elif kind == "DELETED":
                    log.warning("settings: ConfigMap %s was deleted; the last good settings stay", self._name)
                yield str(item["metadata"]["resourceVersion"])
        if asyncio.get_running_loop().time() - begun_s < 1:
            raise aiohttp.ClientError("the server ends each watch at once")

    def _offer(self, item: Mapping[str, Any]) -> None:
        if item["metadata"]["name"] == self._name:
            self._keeper.offer((item.get("data") or {}).get(SETTINGS_KEY, ""), Source.CONFIG_MAP)

    def _get(
        self, session: aiohttp.ClientSession, timeout_s: float | None, more: Mapping[str, str] | None = None
    ) -> "_Checked":
        # The field selector is what lets a Role that names this one object also list and watch it.
        query = {"fieldSelector": f"metadata.name={self._name}", **(more or {})}
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=REQUEST_S, sock_read=SILENCE_S)
        token = {"Authorization": f"Bearer {self._account.token()}"}
        return _Checked(session.get(self._account.url + self._path, params=query, headers=token, timeout=timeout))

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._account.tls(), limit=2, socket_factory=_socket)
        return aiohttp.ClientSession(connector=connector, read_bufsize=LONGEST_EVENT_BYTES)

    def _report(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._trouble:
            log.warning("settings watch: %s; trying again", text)
        self._trouble = text


class _Checked:
    """A response whose status has been looked at."""

    def __init__(self, request: Any) -> None:
        self._request = request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._request.__aenter__()
        if response.status == 410:
            response.close()
            raise _Gone
        if response.status != 200:
            text = (await response.text())[:300]
            response.close()
            raise aiohttp.ClientError(f"HTTP {response.status}: {text}")
        return response

    async def __aexit__(self, *error: Any) -> None:
        await self._request.__aexit__(*error)


def _socket(address: Any) -> socket.socket:
    """A connection whose other end vanished without a word is noticed after 25 s, not after an hour."""
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return sock
