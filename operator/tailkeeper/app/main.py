"""The operator as one object: builds its parts, runs them side by side, and ends all when one ends."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from typing import Any

import kopf
from aiohttp import web

from tailkeeper.app.access import Credentials
from tailkeeper.app.config import Config
from tailkeeper.app.dispatch import Dispatcher
from tailkeeper.app.endpoints import serve
from tailkeeper.app.health import Health
from tailkeeper.app.metrics import Metrics
from tailkeeper.app.relist import RETRY_S, Relist
from tailkeeper.app.tick import Tick
from tailkeeper.app.tuner import Ports, TunerLoop
from tailkeeper.app.watching import build_registry, build_settings
from tailkeeper.reconcile.kinds import POLICY
from tailkeeper.reconcile.kube import ApiError, Kube
from tailkeeper.reconcile.moves import Answer, Fate, Proposal
from tailkeeper.reconcile.observer import Observer
from tailkeeper.reconcile.reconciler import Reconciler, now
from tailkeeper.reconcile.reporter import Reporter
from tailkeeper.reconcile.store import Key, Store
from tailkeeper.reconcile.worker_pod import WorkerDefaults
from tailkeeper.signals.sources import open_source
from tailkeeper.signals.worker_settings import WorkerReport

logger = logging.getLogger(__name__)


class Operator:
    """One operator. `run` returns when `stop` is set or a signal comes, and raises when a part of it breaks."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self.store = Store()
        self.metrics.policies.set_function(lambda: len(self.store.all(POLICY)))
        self.stop = asyncio.Event()
        self.port = config.http_port
        """Where /healthz is served; known for sure once it runs (port 0 takes a free one)."""
        self._credentials = Credentials(config.service_account_dir, config.login_s)
        self._kube = Kube(self._credentials.access, self.metrics.api_request)
        reports: dict[str, WorkerReport | None] = {}
        observer = Observer(self.store, reports, time.monotonic)
        self._tick = Tick(self.store, reports, observer.sync_watch, config.tick_s, self._wake, self.metrics)
        self.reporter = Reporter(self._kube, self.store, time.monotonic, now)
        self.reconciler = Reconciler(
            kube=self._kube,
            store=self.store,
            defaults=WorkerDefaults(config.worker_image, config.worker_template),
            observer=observer,
            reporter=self.reporter,
            settings_written=self._tick.soon,
        )
        self.tuner = TunerLoop(
            store=self.store,
            reports=reports,
            source=open_source(config.signals, config.prometheus),
            ports=Ports(self.propose, self.reporter.announce, self._wake),
            metrics=self.metrics,
        )
        self.reporter.signals = self.tuner.conditions
        observer.outcome = self.tuner.outcome
        self._dispatcher = Dispatcher(self.reconciler.reconcile, self.metrics)
        self._relist = Relist(self._kube, self.store, config.namespaces, config.relist_s, self._wake, self.metrics)
        self.health = Health(config.namespaces, config.tick_s, lambda: self._tick.finished_s, self.metrics)
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._http: web.AppRunner | None = None

    async def propose(self, key: Key, instance: str, proposal: Proposal, within_s: float | None = None) -> Answer:
        """Has a new settings generation written, if the one that it was decided on still is the newest.

        What is not written within that time is withdrawn."""
        fate = self.reconciler.inbox.put(key, instance, proposal)
        self._dispatcher.add(key)
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(fate)
        except TimeoutError:
            late = Answer(Fate.FAILED, proposal.based_on, f"not written within {within_s:g} s")
            self.reconciler.inbox.answer(key, instance, proposal, late)
            return await fate

    async def run(self) -> None:
        """Runs until stopped. Raises what broke."""
        self._http = await serve(self.config.http_host, self.config.http_port, self.health, self.metrics)
        self.port = self._http.addresses[0][1]
        self._start("health", self.health.run())
        try:
            await self._first_list()
            self.health.synced = True
            self._start("relist", self._relist.run())
            self._start("tick", self._tick.run())
            self._start("tuner", self.tuner.run())
            for number in range(self.config.concurrency):
                self._start(f"reconcile {number}", self._dispatcher.run())
            logger.info("%d policies; watching", len(self.store.all(POLICY)))
            await self._watch()
        finally:
            await self._end_own()
            await self._kube.close()
        if self._failure is not None:
            raise self._failure

    def _wake(self, key: Key) -> None:
        self._dispatcher.add(key)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"tailkeeper {name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()):
            logger.error("%s broke", task.get_name(), exc_info=failure)
            self._failure = self._failure or failure
            self.stop.set()

    async def _first_list(self) -> None:
        """Before this nothing may be reconciled: what is not known yet would look as if it were absent."""
        while not self.stop.is_set():
            try:
                await self._relist.once()
                return
            except ApiError as error:
                logger.warning("first list: %s", error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self.stop.wait()

    async def _watch(self) -> None:
        """kopf, until a signal or `stop`. It cancels every task that began after it, so ours end first."""
        registry = build_registry(self._credentials, self.store, self._wake, self._relist.request)

        @kopf.on.cleanup(registry=registry)
        async def end_own(**_: Any) -> None:
            await self._end_own()

        await kopf.operator(
            registry=registry,
            settings=build_settings(),
            standalone=True,
            clusterwide=not self.config.namespaces,
            namespaces=self.config.namespaces,
            stop_flag=self.stop,
        )

    async def _end_own(self) -> None:
        self.stop.set()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            runner, self._http = self._http, None
            await runner.cleanup()
