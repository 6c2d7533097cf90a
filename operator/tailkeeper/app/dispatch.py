"""Runs reconciles off the queue: several keys side by side, each key one at a time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tailkeeper.app.metrics import Metrics
from tailkeeper.reconcile.kube import ApiError
from tailkeeper.reconcile.queue import KeyQueue
from tailkeeper.reconcile.reconciler import Outcome
from tailkeeper.reconcile.store import Key

logger = logging.getLogger(__name__)


class Dispatcher:
    """The queue and the tasks that empty it."""

    def __init__(self, reconcile: Callable[[Key], Awaitable[Outcome]], metrics: Metrics) -> None:
        self._reconcile = reconcile
        self._metrics = metrics
        self._queue: KeyQueue[Key] = KeyQueue()
        self._news = asyncio.Event()

    def add(self, key: Key, delay_s: float = 0.0) -> None:
        """Asks for the policy to be reconciled."""
        self._queue.add(key, time.monotonic(), delay_s)
        self._news.set()

    async def run(self) -> None:
        """Reconciles for ever; run as many of these as should work side by side."""
        while True:
            key = await self._next()
            began_s = time.monotonic()
            outcome = await self._attempt(key)
            now_s = time.monotonic()
            self._metrics.reconcile_seconds.observe(now_s - began_s)
            self._queue.finish(key, now_s, outcome.failed)
            if outcome.again_s is not None and not outcome.failed:
                self._queue.add(key, now_s, outcome.again_s)
            self._metrics.failing.set(self._queue.failing)
            self._news.set()

    async def _next(self) -> Key:
        while True:
            now_s = time.monotonic()
            key = self._queue.take(now_s)
            self._metrics.queue_length.set(self._queue.waiting(now_s))
            if key is not None:
                return key
            due_s = self._queue.next_due_s()
            self._news.clear()
            try:
                async with asyncio.timeout(None if due_s is None else max(0.0, due_s - now_s)):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _attempt(self, key: Key) -> Outcome:
        try:
            outcome = await self._reconcile(key)
        except ApiError as error:
            logger.warning("%s: %s", key, error)
            outcome = Outcome(failed=True)
        except Exception:  # a bug must not end the operator for all the other policies
            logger.exception("%s: reconcile failed", key)
            self._metrics.reconciles.labels("error").inc()
            return Outcome(failed=True)
        self._metrics.reconciles.labels("retry" if outcome.failed else "ok").inc()
        return outcome
