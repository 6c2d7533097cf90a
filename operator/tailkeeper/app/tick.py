"""One loop for all instances: every few seconds ask every worker what it applies, and wake the policies that this is
news for. The tuner's decisions hang on the same tick."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

import aiohttp

from tailkeeper.app.metrics import Metrics
from tailkeeper.reconcile.kinds import POD, Manifest
from tailkeeper.reconcile.store import Key, Store, key_of
from tailkeeper.reconcile.sync import SyncWatch
from tailkeeper.signals.worker_settings import WorkerReport, address_of, ask_all, open_session

SOON_S = 0.5
"""After new settings were written: by then the workers have them."""

logger = logging.getLogger(__name__)


class Tick:
    """Asks the workers. `reports` holds the newest answer of each running pod, by UID."""

    def __init__(
        self,
        store: Store,
        reports: dict[str, WorkerReport | None],
        sync_watch: SyncWatch,
        period_s: float,
        news: Callable[[Key], None],
        metrics: Metrics,
    ) -> None:
        self.reports = reports
        self.finished_s = time.monotonic()
        """When the last round ended."""
        self._store = store
        self._sync_watch = sync_watch
        self._period_s = period_s
        self._news = news
        self._metrics = metrics
        self._soon: set[Key] = set()
        self._wake = asyncio.Event()

    def soon(self, key: Key) -> None:
        """Ask this policy's workers before the next round is due: their settings were just written."""
        self._soon.add(key)
        self._wake.set()

    async def run(self) -> None:
        """Ticks for ever."""
        async with open_session() as session:
            due_s = time.monotonic()
            while True:
                pods = self._store.all(POD)
                await self._ask(session, pods)
                self._forget({pod["metadata"]["uid"] for pod in pods})
                self.finished_s = time.monotonic()
                self._metrics.ticks.inc()
                due_s = max(due_s + self._period_s, self.finished_s)
                while (left_s := due_s - time.monotonic()) > 0:
                    self._wake.clear()
                    try:
                        async with asyncio.timeout(left_s):
                            await self._wake.wait()
                            await asyncio.sleep(SOON_S)
                    except TimeoutError:
                        break
                    keys, self._soon = self._soon, set()
                    await self._ask(session, [pod for key in keys for pod in self._store.of_policy(POD, key)])

    async def _ask(self, session: aiohttp.ClientSession, pods: Iterable[Manifest]) -> None:
        asked = {address.uid: (address, pod) for pod in pods if (address := address_of(pod))}
        answers = await ask_all(session, [address for address, _ in asked.values()])
        for uid, answer in answers.items():
            if uid not in self.reports or self.reports[uid] != answer:
                self.reports[uid] = answer
                if key := key_of(POD, asked[uid][1]):
                    self._news(key)

    def _forget(self, uids: set[str]) -> None:
        for uid in self.reports.keys() - uids:
            del self.reports[uid]
        self._sync_watch.forget_all_but(uids)
        states = Counter(
            "silent" if report is None else "ready" if report.ready else "unready" for report in self.reports.values()
        )
        for state in ("ready", "unready", "silent"):
            self._metrics.workers.labels(state).set(states[state])
