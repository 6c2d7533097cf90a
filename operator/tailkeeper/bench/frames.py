"""What a sending process tells the one that started it, over a pipe: kind (1 byte), length (4 bytes), content."""

import array
import asyncio
import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, cast

_HEADER: Final = struct.Struct("<cI")
_READY, _ROWS, _GAPS, _ERRORS, _DONE = b"+", b"R", b"G", b"E", b"D"


@dataclass(frozen=True)
class Ready:
    """The process has its work and waits for the start."""


@dataclass(frozen=True)
class Rows:
    """Requests that have ended: packed `outcome.ROW`s."""

    packed: bytes


@dataclass(frozen=True)
class Gaps:
    """Times between tokens of one tier's streams."""

    tier: str
    seconds: "array.array[float]"


@dataclass(frozen=True)
class Errors:
    """How often what went wrong since the last one."""

    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Done:
    """The last word of a process."""

    sent: int
    connections: int
    cpu_fraction: float
    """Of one core, over the run."""
    realtime: bool
    """Whether the system let it run before other processes."""


Frame = Ready | Rows | Gaps | Errors | Done


class FrameWriter(asyncio.BaseProtocol):
    """Protocol of the pipe's writing end; never waits for the reader, the loop drains the pipe beside."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let `close` return."""
        self._closed.set()

    def ready(self) -> None:
        """Say `Ready`."""
        self._frame(_READY, b"")

    def rows(self, packed: bytes | bytearray) -> None:
        """Say `Rows`, also when there are none: it shows that the process lives."""
        self._frame(_ROWS, bytes(packed))

    def gaps(self, tier: str, seconds: "array.array[float]") -> None:
        """Say `Gaps`."""
        name = tier.encode()
        self._frame(_GAPS, bytes([len(name)]) + name + seconds.tobytes())

    def errors(self, counts: Mapping[str, int]) -> None:
        """Say `Errors`."""
        self._frame(_ERRORS, json.dumps(counts).encode())

    def done(self, done: Done) -> None:
        """Say `Done`."""
        self._frame(_DONE, json.dumps(asdict(done)).encode())

    async def close(self) -> None:
        """Wait until all is read."""
        assert self._transport is not None
        self._transport.close()
        await self._closed.wait()

    def _frame(self, kind: bytes, content: bytes) -> None:
        assert self._transport is not None
        self._transport.write(_HEADER.pack(kind, len(content)) + content)


async def read_frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Yield frames up to the end of the pipe; one that is cut off there is dropped."""
    while True:
        try:
            kind, length = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            content = await reader.readexactly(length)
        except asyncio.IncompleteReadError:
            return
        yield _frame(kind, content)


def _frame(kind: bytes, content: bytes) -> Frame:
    match kind:
        case b"+":
            return Ready()
        case b"R":
            return Rows(content)
        case b"G":
            name_end = 1 + content[0]
            seconds = array.array("f")
            seconds.frombytes(content[name_end:])
            return Gaps(content[1:name_end].decode(), seconds)
        case b"E":
            return Errors(Counter(json.loads(content)))
        case b"D":
            return Done(**json.loads(content))
    raise ValueError(f"frame of unknown kind {kind!r}")
