"""The one thread that engine work runs on, so that accepting, expiring and cancelling never wait for a forward pass.

A daemon thread, not an executor: an executor joins its threads at exit, and a hung forward pass would then keep a
drained process alive until it is killed."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class EngineThread:
    """Runs jobs one after the other; results come back on the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    def run(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Runs a job that does not raise, then `done(result)` on the event loop."""
        self._jobs.put(lambda: self._back(done, job()))

    async def call(self, job: Callable[[], T]) -> T:
        """Runs a job; raises what it raises."""
        future: asyncio.Future[T] = self._loop.create_future()

        def settle(outcome: tuple[T, None] | tuple[None, Exception]) -> None:
            result, error = outcome
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def attempt() -> tuple[T, None] | tuple[None, Exception]:
            try:
                return job(), None
            except Exception as error:
                return None, error

        self.run(attempt, settle)
        return await future

    def _back(self, done: Callable[[T], None], result: T) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, result)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
