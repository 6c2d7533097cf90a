"""HTTP calls and replies over ASGI. Starlette finds the endpoint; from there on there is no framework in the path of a
request: at 1500 requests/s its layers would cost more than the scheduling."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from gpu_worker.server.errors import ApiError, Code, Headers
from gpu_worker.server.keys import ApiKeys, Caller

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = logging.getLogger(__name__)

JSON = b"application/json"
BODY_TIMEOUT_S = 30.0
"""A body that takes longer to arrive is given up: it would hold a connection for ever."""


class ClientGone(Exception):
    """The client went away before it was answered."""


@dataclass(slots=True)
class Call:
    """One HTTP request, its body not read yet."""

    method: str
    headers: Mapping[bytes, bytes]
    path: Mapping[str, str]
    """Parameters of the path."""
    caller: Caller | None
    """None where no API keys are asked for."""
    receive: Receive

    async def body(self, most: int) -> bytes:
        """The whole body. Raises ApiError (413, 408) and ClientGone."""
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                message = await self.receive()
                chunks: bytes = message.get("body", b"")
                while message.get("more_body"):
                    message = await self.receive()
                    chunks += message.get("body", b"")
                    if len(chunks) > most:
                        raise _too_large(most)
        except TimeoutError:
            raise ApiError(408, Code.BODY_TIMEOUT, f"the body took longer than {BODY_TIMEOUT_S:.0f} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return chunks

    async def gone(self) -> None:
        """Returns when the client has gone away; the body must have been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@dataclass(slots=True)
class Reply:
    """One whole response."""

    body: bytes
    status: int = 200
    kind: bytes = JSON
    headers: Headers = field(default_factory=list)


@dataclass(slots=True)
class EventStream:
    """A response of server-sent events, each sent as soon as it is there."""

    events: AsyncGenerator[bytes, None]
    headers: Headers = field(default_factory=list)


Handler = Callable[[Call], Awaitable[Reply | EventStream]]
Shape = Callable[[ApiError], bytes]


class Door:
    """What all endpoints of one port share: who may come in, and whether clients are asked to leave."""

    def __init__(self, keys: ApiKeys | None = None) -> None:
        self.keys = keys
        self.draining = False

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Raises ApiError 401 when keys are asked for and this call has no good one."""
        if self.keys is None:
            return None
        caller = self.keys.caller(headers.get(b"authorization"))
        if caller is None:
            raise ApiError(401, Code.INVALID_API_KEY, "missing or unknown API key; send `Authorization: Bearer KEY`")
        return caller


class Endpoint:
    """Runs one handler as an ASGI application; what it raises becomes an answer in the shape of its API."""

    def __init__(self, door: Door, handler: Handler, shape: Shape, open_to_all: bool = False) -> None:
        self._door = door
        self._handler = handler
        self._shape = shape
        self._open = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = dict(scope["headers"])
        try:
            caller = None if self._open else self._door.caller(headers)
            path = scope.get("path_params") or {}
            reply: Reply | EventStream = await self._handler(Call(scope["method"], headers, path, caller, receive))
        except ApiError as error:
            reply = Reply(self._shape(error), error.status, headers=error.headers())
        except ClientGone:
            return
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"])
            fault = ApiError(500, Code.ENGINE_ERROR, "internal error")
            reply = Reply(self._shape(fault), fault.status, headers=fault.headers())
        if isinstance(reply, EventStream):
            await send_events(reply, send, close=self._door.draining)
        else:
            await send_reply(reply, send, close=self._door.draining)


async def send_reply(reply: Reply, send: Send, close: bool) -> None:
    """Sends it; `close` asks the client to take another connection, so that it never sees a reset while we drain."""
    head: Headers = [
        (b"content-type", reply.kind),
        (b"content-length", str(len(reply.body)).encode()),
        *reply.headers,
    ]
    if close:
        head.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": reply.body})


async def send_events(stream: EventStream, send: Send, close: bool) -> None:
    """Sends them one by one; no proxy on the way may keep them back."""
    head: Headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        *stream.headers,
    ]
    if close:
        head.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": head})
    try:
        async for event in stream.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    except Exception:  # the status is sent: a client sees a stream that ends without its end
        log.exception("a stream broke off")
        raise
    finally:
        await stream.events.aclose()
    await send({"type": "http.response.body", "body": b""})


def _too_large(most: int) -> ApiError:
    return ApiError(413, Code.TOO_LARGE, f"the body is larger than {most} bytes")
