"""The texts of one call, while they are made. Each is a request of its own to the scheduler."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_worker.engines.interface import Piece
from gpu_worker.scheduling.interface import Answer, Outcome, Request
from gpu_worker.server.isolation import NotServed
from gpu_worker.server.loop import SERVED, NotServing, ServingLoop


@dataclass(frozen=True, slots=True)
class Grown:
    """One text grew."""

    index: int
    piece: Piece


class Texts:
    """Submits requests and hands on what comes. The first that is not served ends the call: the others are then work
    for nobody, and end with the same outcome."""

    def __init__(self, loop: ServingLoop) -> None:
        self._loop = loop
        self._events: asyncio.Queue[Grown | None] = asyncio.Queue()
        self._indices: dict[str, int] = {}
        self._open: set[str] = set()
        self.slowest: Answer | None = None
        """The served text that took longest; where the call's time went."""
        self.failure: Answer | None = None
        self.error: Exception | None = None

    def submit(self, requests: Sequence[tuple[Request, Any]]) -> None:
        """Takes all in. Raises NotServing with none of them left behind."""
        self._indices = {request.id: index for index, (request, _) in enumerate(requests)}
        self._open = set(self._indices)
        try:
            for request, content in requests:
                if self.failure is not None:
                    return
                self._loop.submit(request, content, self)
        except (NotServing, KeyError) as error:
            self._end_the_rest(Outcome.ERROR, NotServed(str(error)))
            raise

    async def next(self) -> Grown | None:
        """The next event; None when all is over, with `failure` set if it did not end well."""
        return await self._events.get()

    def cancel(self) -> None:
        """The caller is gone."""
        self._end_the_rest(Outcome.CANCELLED, None)

    def received(self, request_id: str, output: Any) -> None:
        """From the loop."""
        if request_id in self._open:
            self._events.put_nowait(Grown(self._indices[request_id], output))

    def ended(self, answer: Answer, error: Exception | None) -> None:
        """From the loop."""
        if answer.request.id not in self._open:
            return
        self._open.discard(answer.request.id)
        if answer.outcome not in SERVED:
            self.failure, self.error = answer, error
            self._end_the_rest(answer.outcome, error)
            return
        if self.slowest is None or answer.waits.total_s > self.slowest.waits.total_s:
            self.slowest = answer
        if not self._open:
            self._events.put_nowait(None)

    def _end_the_rest(self, outcome: Outcome, error: Exception | None) -> None:
        """What was produced until now is not handed on: nobody can use it."""
        left, self._open = self._open, set()
        for request_id in left:
            self._loop.cancel(request_id, outcome, error)
        self._events.put_nowait(None)
