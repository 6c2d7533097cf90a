"""Lists everything now and then: a watch that was down may never say that an object was deleted."""

import asyncio
import logging
from collections.abc import Callable

from tailkeeper.app.metrics import Metrics
from tailkeeper.reconcile.kinds import WATCHED
from tailkeeper.reconcile.kube import ApiError, Kube
from tailkeeper.reconcile.store import Key, Store

SETTLE_S = 0.5
"""A watch that starts anew replays its objects at once: wait for the end of the burst."""
LEAST_S = 5.0
RETRY_S = 5.0

logger = logging.getLogger(__name__)


class Relist:
    """Keeps the store true to the server. `changed` is told of every policy that a list was news for."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        namespaces: tuple[str, ...],
        period_s: float,
        changed: Callable[[Key], None],
        metrics: Metrics,
    ) -> None:
        self._kube = kube
        self._store = store
        self._scopes = namespaces or (None,)
        self._period_s = period_s
        self._changed = changed
        self._metrics = metrics
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """A watch began anew: what was deleted meanwhile is not told."""
        self._wanted.set()

    async def once(self) -> None:
        """Lists all kinds; pods and children before policies, so that a policy finds what it owns. Raises ApiError."""
        for kind in reversed(WATCHED):
            for namespace in self._scopes:
                items, version = await self._kube.list(kind, namespace)
                news = self._store.replace(kind, namespace, items, version)
                logger.debug("listed %d %s at %s: news for %d policies", len(items), kind.plural, version, len(news))
                for key in news:
                    self._changed(key)
        self._metrics.relists.labels("ok").inc()

    async def run(self) -> None:
        """Lists every period, and soon after a request."""
        while True:
            try:
                async with asyncio.timeout(self._period_s):
                    await self._wanted.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self.once()
            except ApiError as error:
                logger.warning("list: %s", error)
                self._metrics.relists.labels("failed").inc()
                self._wanted.set()
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(min(LEAST_S, self._period_s))
