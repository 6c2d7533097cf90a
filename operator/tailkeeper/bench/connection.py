"""HTTP/1.1 as a load generator needs it: one request at a time on a connection, as many connections as it takes.

Written on the bare protocol, because what a request costs here decides how many can be sent in time and, on a small
machine, what is left for the server under test: a general client costs several times as much.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import httptools

from tailkeeper.bench.outcome import Outcome, of_error_code, of_status
from tailkeeper.bench.server_timing import UNKNOWN, Waits, parse_server_timing
from tailkeeper.bench.stream import StreamReader

IDLE_S: Final = 3.0
"""Connections idle for longer are not used again: servers close theirs after some seconds (uvicorn after 5)."""
CLOSED_IDLE_S: Final = 0.02
"""A used connection that is lost so soon after a request was closed for being idle, not because of the request."""
ERROR_BODY_BYTES: Final = 2_000
"""How much of a refusal's body is kept, to be shown."""


class Exchange:
    """One request and what became of it. Times are of `time.monotonic()`."""

    __slots__ = (
        "attempts",
        "body",
        "connection",
        "done_s",
        "error",
        "index",
        "intended_s",
        "keep_body_bytes",
        "kind",
        "outcome",
        "payload",
        "sent_s",
        "status",
        "stream",
        "timer",
        "waits",
    )

    def __init__(self, index: int, kind: int, payload: bytes, intended_s: float, stream: StreamReader | None) -> None:
        self.index = index
        self.kind = kind
        self.payload = payload
        self.intended_s = intended_s
        self.stream = stream
        """Reads the answer when that is a stream."""
        self.sent_s = intended_s
        self.done_s: float | None = None
        self.status = 0
        self.outcome: Outcome | None = None
        self.error = ""
        self.waits: Waits = UNKNOWN
        self.attempts = 0
        self.body = b""
        self.keep_body_bytes = 0
        """How much of a good answer's body to keep."""
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None


class Pool:
    """Connections to one server. `finished` is called once with every exchange sent."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        tls: ssl.SSLContext | None,
        server_name: str,
        finished: Callable[[Exchange], None],
    ) -> None:
        self._addresses = addresses
        self._tls = tls
        self._server_name = server_name if tls else None
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        # With the time since when; the newest is used first, so that the others grow old.
        self._idle: dict[Connection, float] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.in_flight: set[Exchange] = set()
        self.opened = 0
        """Connections made so far."""

    def send(self, exchange: Exchange, give_up_s: float) -> None:
        """Send now; the exchange ends as TIMEOUT at `give_up_s` of `time.monotonic()` at the latest."""
        self.in_flight.add(exchange)
        exchange.timer = self._loop.call_later(max(0.0, give_up_s - time.monotonic()), self._give_up, exchange)
        self._send(exchange)

    def _send(self, exchange: Exchange) -> None:
        exchange.attempts += 1
        if self._idle:
            connection, idle_since_s = self._idle.popitem()
            if time.monotonic() - idle_since_s < IDLE_S:
                connection.send(exchange)
                return
            self._close_idle()  # the newest was too old, so all are
            connection.abort()
        self._connect(exchange)

    def _connect(self, exchange: Exchange) -> None:
        task = self._loop.create_task(self._send_on_new(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _send_on_new(self, exchange: Exchange) -> None:
        host, port = self._addresses[self.opened % len(self._addresses)]
        self.opened += 1
        try:
            _, connection = await self._loop.create_connection(
                lambda: Connection(self), host, port, ssl=self._tls, server_hostname=self._server_name
            )
        except OSError as error:  # ssl.SSLError is one
            self.end(exchange, Outcome.ERROR, f"cannot connect: {error.strerror or error}")
            return
        if exchange.outcome is None:
            connection.send(exchange)
        else:
            self.idle(connection)

    def idle(self, connection: "Connection") -> None:
        """Take back a connection that can carry another request."""
        self._idle[connection] = time.monotonic()

    def lost(self, connection: "Connection", exchange: Exchange | None, answered_some: bool, why: str) -> None:
        """Take note of a connection that is gone, with the exchange it carried."""
        self._idle.pop(connection, None)
        if exchange is None or exchange.outcome is not None:
            return
        closed_idle = connection.carried > 1 and time.monotonic() - connection.sent_s < CLOSED_IDLE_S
        if closed_idle and not answered_some and exchange.attempts == 1:
            exchange.attempts += 1
            self._connect(exchange)
        else:
            self.end(exchange, Outcome.ERROR, why)

    def end(self, exchange: Exchange, outcome: Outcome, error: str = "") -> None:
        """End an exchange, once."""
        if exchange.outcome is not None:
            return
        exchange.outcome, exchange.error = outcome, error
        if exchange.timer is not None:
            exchange.timer.cancel()
            exchange.timer = None
        self.in_flight.discard(exchange)
        self._finished(exchange)

    def _give_up(self, exchange: Exchange) -> None:
        self.end(exchange, Outcome.TIMEOUT, "no answer in time")
        if exchange.connection is not None:
            exchange.connection.abort()

    def close(self) -> None:
        """End what is in flight as UNFINISHED, and close all connections."""
        for task in self._connecting:
            task.cancel()
        for exchange in list(self.in_flight):
            self.end(exchange, Outcome.UNFINISHED)
            if exchange.connection is not None:
                exchange.connection.abort()
        self._close_idle()

    def _close_idle(self) -> None:
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()


class _Parser(Protocol):
    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class Connection(asyncio.Protocol):
    """One connection; the methods named `on_…` are called by the parser of HTTP."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: _Parser | None = None
        self._exchange: Exchange | None = None
        self._now_s = 0.0
        self._answered_some = False
        self._has_end = False
        self._why_lost = "connection closed before the answer"
        self.carried = 0
        """Requests sent on it."""
        self.sent_s = 0.0
        """When the newest was."""

    def send(self, exchange: Exchange) -> None:
        """Send a request; there must be none under way."""
        assert self._transport is not None
        self._exchange = exchange
        exchange.connection = self
        self._answered_some = self._has_end = False
        self.carried += 1
        self.sent_s = time.monotonic()
        self._transport.write(exchange.payload)

    def abort(self) -> None:
        """Close at once; the server sees that nobody waits any more."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not of that class
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse; one look at the clock holds for all that came together."""
        if self._exchange is None or self._parser is None:
            self.abort()
            return
        self._now_s = time.monotonic()
        self._answered_some = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._why_lost = f"the answer is not HTTP: {error}"
            assert self._transport is not None
            self._transport.abort()

    def eof_received(self) -> None:
        """End an answer that has no length: the end of the connection is its end."""
        if self._exchange is not None and self._exchange.status and not self._has_end:
            self._now_s = time.monotonic()
            self._complete(self._exchange, reusable=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the pool."""
        exchange, self._exchange = self._exchange, None
        self._pool.lost(self, exchange, self._answered_some, f"{self._why_lost}: {exc}" if exc else self._why_lost)
        self._transport = self._parser = None  # breaks the cycle: the sender runs without garbage collection

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what matters; called for trailers too."""
        length = len(name)
        if length == 13 and name.lower() == b"server-timing":
            if self._exchange is not None:
                self._exchange.waits = parse_server_timing(value.decode("latin-1"))
        elif (length == 14 and name.lower() == b"content-length") or (
            length == 17 and name.lower() == b"transfer-encoding"
        ):
            self._has_end = True

    def on_headers_complete(self) -> None:
        """Keep the status."""
        if self._exchange is not None and self._parser is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Read tokens, and keep what is to be shown."""
        exchange = self._exchange
        if exchange is None:
            return
        good = exchange.status < 300
        if good and exchange.stream is not None:
            exchange.stream.feed(data, self._now_s)
        room = (exchange.keep_body_bytes if good else ERROR_BODY_BYTES) - len(exchange.body)
        if room > 0:
            exchange.body += data[:room]

    def on_message_complete(self) -> None:
        """End the exchange."""
        exchange = self._exchange
        if exchange is None or exchange.status < 200 or self._parser is None:
            return  # 1xx: the answer is still to come
        self._complete(exchange, reusable=self._parser.should_keep_alive())

    def _complete(self, exchange: Exchange, reusable: bool) -> None:
        self._exchange = None
        exchange.connection = None
        if reusable and self._transport is not None and not self._transport.is_closing():
            self._pool.idle(self)
        elif self._transport is not None:
            self._transport.close()
        exchange.done_s = self._now_s
        outcome, error = of_status(exchange.status), ""
        if outcome is Outcome.ANSWERED and exchange.stream is not None:
            if exchange.stream.waits is not None:
                exchange.waits = exchange.stream.waits
            if exchange.stream.error is not None:
                outcome, error = of_error_code(exchange.stream.error_code), exchange.stream.error
            elif not exchange.stream.done:
                outcome, error = Outcome.ERROR, "the stream ended without [DONE]"
        elif outcome is not Outcome.ANSWERED:
            error = f"status {exchange.status}"
        self._pool.end(exchange, outcome, error)
