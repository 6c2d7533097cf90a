"""Servers whose latencies and manners are known, each on a thread and loop of its own."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.Request, int], Awaitable[web.StreamResponse]]
Rude = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

EMBEDDING = {"object": "list", "data": [{"index": 0, "embedding": [0.1, 0.2]}], "model": "mini"}


@dataclass
class Seen:
    """One request as the server got it."""

    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """A running server."""

    port: int
    seen: list[Seen] = field(default_factory=list)
    """POSTs, in order of arrival; the first of each tier is the generator's probe."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def polite(handler: Handler, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A real aiohttp server; the handler gets the request and its number, from 0."""
    server = Server(0)

    async def post(request: web.Request) -> web.StreamResponse:
        number = len(server.seen)
        server.seen.append(Seen({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        return await handler(request, number)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mini"}]})

    async def metadata(_: web.Request) -> web.Response:
        inputs = [{"name": "mask", "datatype": "INT64"}, {"name": "words", "datatype": "BYTES", "shape": [-1]}]
        return web.json_response({"name": "mini", "inputs": inputs})

    async def start() -> tuple[Callable[[], Awaitable[None]], int]:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_get("/v2/models/mini", metadata)
        app.router.add_post("/{path:.*}", post)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024, ssl_context=tls)
        await site.start()
        return runner.cleanup, runner.addresses[0][1]

    with _on_a_thread(start) as server.port:
        yield server


@contextmanager
def rude(behave: Rude) -> Iterator[Server]:
    """A bare TCP server that does with each connection what it likes."""

    async def start() -> tuple[Callable[[], Awaitable[None]], int]:
        server = await asyncio.start_server(behave, "127.0.0.1", 0)

        async def stop() -> None:
            server.close()

        return stop, server.sockets[0].getsockname()[1]

    with _on_a_thread(start) as port:
        yield Server(port)


@contextmanager
def _on_a_thread(start: Callable[[], Awaitable[tuple[Callable[[], Awaitable[None]], int]]]) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def started() -> tuple[Callable[[], Awaitable[None]], int]:
        return await start()

    async def stopped(stop: Callable[[], Awaitable[None]]) -> None:
        await stop()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    stop, port = asyncio.run_coroutine_threadsafe(started(), loop).result(10)
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(stopped(stop), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """Read one whole request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return head + await reader.readexactly(length)


async def sse(request: web.Request, events: AsyncIterator[str]) -> web.StreamResponse:
    """Answer with server-sent events."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    async for event in events:
        await response.write(event.encode())
    await response.write_eof()
    return response
