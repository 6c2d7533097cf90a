"""The inputs of one call, answered together. Each input is a request of its own to the scheduler."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gpu_worker.scheduling.interface import Answer, Outcome, Request
from gpu_worker.server.isolation import NotServed
from gpu_worker.server.loop import SERVED, NotServing, ServingLoop


class Group:
    """Submits requests and gathers their outputs. The first that is not served ends the call: the others are then work
    for nobody, and end with the same outcome."""

    __slots__ = ("_done", "_ids", "_left", "_loop", "_outputs", "error", "failure", "slowest")

    def __init__(self, loop: ServingLoop) -> None:
        self._loop = loop
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ids: list[str] = []
        self._left = 0
        self._outputs: dict[str, Any] = {}
        self.slowest: Answer | None = None
        """The served input that took longest; where the call's time went."""
        self.failure: Answer | None = None
        self.error: Exception | None = None

    def submit(self, requests: Sequence[tuple[Request, Any]]) -> None:
        """Takes all in. Raises NotServing with none of them left behind."""
        self._ids = [request.id for request, _ in requests]
        self._left = len(self._ids)
        try:
            for request, content in requests:
                if self._done.done():
                    return
                self._loop.submit(request, content, self)
        except (NotServing, KeyError) as error:
            self._end_the_rest(Outcome.ERROR, NotServed(str(error)))
            raise

    async def wait(self) -> list[Any] | None:
        """Outputs in the order of the inputs; None when `failure` says why there are none, or the caller is gone."""
        await self._done
        return None if self._left > 0 else [self._outputs[request_id] for request_id in self._ids]

    def cancel(self) -> None:
        """The caller is gone."""
        if not self._done.done():
            self._end_the_rest(Outcome.CANCELLED, None)

    def received(self, request_id: str, output: Any) -> None:
        """From the loop."""
        self._outputs[request_id] = output

    def ended(self, answer: Answer, error: Exception | None) -> None:
        """From the loop."""
        if self._done.done():
            return
        if answer.outcome not in SERVED:
            self.failure, self.error = answer, error
            self._done.set_result(None)
            self._end_the_rest(answer.outcome, error)
            return
        if self.slowest is None or answer.waits.total_s > self.slowest.waits.total_s:
            self.slowest = answer
        self._left -= 1
        if self._left == 0:
            self._done.set_result(None)

    def _end_the_rest(self, outcome: Outcome, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)
        for request_id in self._ids:
            self._loop.cancel(request_id, outcome, error)
