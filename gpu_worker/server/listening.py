"""Sockets and HTTP servers. uvicorn would take the signals for itself and end at the first one; here the worker decides
when a server ends."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; of both families when no host is given and the machine has both."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return _bind(family, host, port)
    if not socket.has_dualstack_ipv6():
        return _bind(socket.AF_INET, "", port)
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


class HttpServer(uvicorn.Server):
    """One port."""

    def __init__(self, app: Starlette, sock: socket.socket, keep_alive_s: int) -> None:
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,
        )
        super().__init__(config)
        self._socket = sock
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals alone."""
        yield

    async def open(self) -> None:
        """Accepts connections from now on."""
        self._task = asyncio.create_task(self.serve(sockets=[self._socket]))
        while not self.started:
            await asyncio.sleep(0.005)
            if self._task.done():
                await self._task

    async def close(self, within_s: float) -> None:
        """Stops accepting, closes idle connections, and returns when the answers under way are sent; those that are not
        sent in time are cancelled."""
        self.config.timeout_graceful_shutdown = max(1, round(within_s))
        self.should_exit = True
        if self._task is not None:
            await self._task

    @property
    def connections(self) -> int:
        """Connections that are open, idle ones too."""
        return len(self.server_state.connections)

    @property
    def calls(self) -> int:
        """Calls that are not answered yet."""
        return len(self.server_state.tasks)
