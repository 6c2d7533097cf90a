"""One worker process from start to end: open the ports, load and warm the model, follow the settings, serve, drain."""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import cast

from starlette.routing import BaseRoute

from gpu_worker.clock import Clock, monotonic_s
from gpu_worker.config import WorkerConfig
from gpu_worker.engines.interface import EmbeddingEngine, Engine, Serves, TextEngine
from gpu_worker.metrics.exposition import Exposition, Snapshot
from gpu_worker.metrics.meter import Meter
from gpu_worker.server import keys as api_keys
from gpu_worker.server.app import api_app, embedding_routes, metrics_app, text_routes
from gpu_worker.server.completions import CompletionsApi
from gpu_worker.server.embeddings import EmbeddingsApi
from gpu_worker.server.engine_thread import EngineThread
from gpu_worker.server.exchange import Door
from gpu_worker.server.health import Health
from gpu_worker.server.inference import InferenceApi
from gpu_worker.server.isolation import NotServed
from gpu_worker.server.listening import HttpServer, listen
from gpu_worker.server.loop import MakeScheduler, ServingLoop
from gpu_worker.server.models import ModelsApi
from gpu_worker.server.service import Limits, Service
from gpu_worker.server.status import VERSION, StatusApi
from gpu_worker.settings.file import SettingsFile
from gpu_worker.settings.keeper import SettingsKeeper
from gpu_worker.settings.service_account import in_cluster
from gpu_worker.settings.watch import SettingsWatch
from tailkeeper.api.settings import Settings

log = logging.getLogger(__name__)

WARM_UP = (1, 8, 1, 1, 1, 8, 8, 8)
"""Batches of the warm-up; the first two are cold. Two sizes, so that the slope of the latency model is known before the
first request: forty synchronised clients would otherwise never show a second size."""
COLD = 2
QUIET_S = 0.5
"""A draining worker closes its port after this long without a call in flight."""
ABANDON_S = 2.0
"""For sending the last refusals when the drain time is over."""


class Worker:
    """Wires the parts of one process together. To be made inside a running event loop."""

    def __init__(
        self,
        config: WorkerConfig,
        engine: Engine,
        make_scheduler: MakeScheduler,
        environment: Mapping[str, str] = os.environ,
        clock: Clock = monotonic_s,
    ) -> None:
        self._config = config
        self._engine = engine
        self._clock = clock
        self._stop = asyncio.Event()
        self._load_progress = 0.0
        self._thread = EngineThread()
        meter = Meter()
        self._loop = loop = ServingLoop(engine, make_scheduler, meter, self._thread, clock)
        self._health = Health(loop, config.hang_s, clock)
        self._keeper = SettingsKeeper(config.identity, engine.modes, self._apply)
        self._environment = environment
        self._keys = api_keys.ApiKeys(config.api_keys) if config.api_keys is not None else None
        self._doors = Door(self._keys), Door()
        service = Service(config.model_name, loop, meter, Limits(config.max_body_bytes, config.max_inputs), clock)
        status = StatusApi(
            config, self._keeper, self._health, Exposition(config.identity, meter, self._snapshot), clock
        )
        self._apps = (
            api_app(self._doors[0], self._routes(service), ModelsApi(service, created=int(time.time())), status),
            metrics_app(self._doors[1], status),
        )

    def _routes(self, service: Service) -> list[BaseRoute]:
        door, engine = self._doors[0], self._engine
        if engine.serves is Serves.TEXT:
            return text_routes(door, CompletionsApi(service, cast("TextEngine", engine)))
        embedding = cast("EmbeddingEngine", engine)
        inference = InferenceApi(service, embedding, VERSION, self._health)
        return embedding_routes(door, EmbeddingsApi(service, embedding), inference)

    def stop(self) -> None:
        """Begins to drain. Said twice it changes nothing: no request is killed by impatience."""
        self._stop.set()

    async def run(self) -> None:
        """Serves until `stop`, then drains and returns. Raises LoadError and whatever a warm-up step raises."""
        config = self._config
        servers = [
            HttpServer(app, listen(config.host, port), config.keep_alive_s)
            for app, port in zip(self._apps, (config.http_port, config.metrics_port), strict=True)
        ]
        for server in servers:
            await server.open()
        log.info("listening on ports %d and %d", config.http_port, config.metrics_port)
        background = [asyncio.create_task(job) for job in self._background()]
        starting = asyncio.create_task(self._start_engine())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                await starting
                await stopping
            await self._drain(*servers)
        finally:
            for task in [*background, starting, stopping]:
                task.cancel()

    def _background(self) -> list:  # type: ignore[type-arg]
        config = self._config
        jobs = []
        account = in_cluster(config.service_account, self._environment)
        if config.settings_config_map is not None and account is not None:
            jobs.append(SettingsWatch(account, *config.settings_config_map, self._keeper).run())
        elif config.settings_config_map is not None:
            log.warning("no service account token: the ConfigMap cannot be watched")
        if config.settings_file is not None:
            jobs.append(SettingsFile(config.settings_file, self._keeper).run())
        if self._keys is not None:
            jobs.append(_reload(self._keys))
        return jobs

    async def _start_engine(self) -> None:
        events = asyncio.get_running_loop()
        begun_s = self._clock()

        def progress(share: float, what: str) -> None:
            events.call_soon_threadsafe(self._progress, share, what)

        await self._thread.call(lambda: self._engine.load(progress))
        self._health.phase = "warming up"
        await self._loop.warm_up(WARM_UP, cold=COLD)
        # torch and transformers leave half a million objects: collecting over them all would stop the loop for 100 ms.
        gc.collect()
        gc.freeze()
        self._load_progress = 1.0
        self._health.phase = ""
        log.info("model %s is warm after %.1f s", self._config.model_name, self._clock() - begun_s)

    def _progress(self, share: float, what: str) -> None:
        self._load_progress = 0.9 * share
        self._health.phase = f"loading: {what}"
        log.info("loading %3.0f %%: %s", share * 100, what)

    def _apply(self, settings: Settings) -> None:
        self._loop.apply(settings)
        self._health.settings_applied = True

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            state=self._loop.state(),
            refused=self._keeper.refused,
            ready=not self._health.why_not_ready(),
            load_progress=self._load_progress,
            second=int(self._clock()),
        )

    async def _drain(self, http: HttpServer, metrics: HttpServer) -> None:
        """Not ready at once, but served on until the endpoints are updated; then the port closes and what is in
        flight is finished."""
        begun_s = self._clock()
        until_s = begun_s + self._config.drain_s
        welcome = not self._health.why_not_ready()
        self._health.draining = True
        for door in self._doors:
            door.draining = True
        log.info("draining: %d requests in flight", self._loop.in_flight)
        if welcome:
            await asyncio.sleep(self._config.endpoint_delay_s)
        await self._quiet(http, (self._clock() + until_s) / 2)
        left_s = until_s - self._clock()
        closing = asyncio.create_task(http.close(left_s + ABANDON_S))
        await asyncio.wait([closing], timeout=left_s)
        if not closing.done():
            unfinished = self._loop.abandon(NotServed("the worker is shutting down"))
            log.error("%d requests were not finished within %.0f s", unfinished, self._config.drain_s)
            await closing
        await metrics.close(1)
        log.info("drained in %.1f s", self._clock() - begun_s)

    async def _quiet(self, http: HttpServer, until_s: float) -> None:
        """Returns when every client has left or none has called for a moment, or time is up. Connections outlive the
        endpoint that they were made to; a call that comes at the moment when its connection is closed sees a reset."""
        quiet_since_s = self._clock()
        while http.connections and self._clock() < until_s and self._clock() - quiet_since_s < QUIET_S:
            if http.calls or self._loop.in_flight:
                quiet_since_s = self._clock()
            await asyncio.sleep(0.02)


async def serve(config: WorkerConfig, engine: Engine, make_scheduler: MakeScheduler) -> None:
    """One worker until SIGTERM or SIGINT, and its drain. Further signals change nothing."""
    worker = Worker(config, engine, make_scheduler)
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, worker.stop)
    await worker.run()


async def _reload(keys: api_keys.ApiKeys) -> None:
    while True:
        keys.reload()
        await asyncio.sleep(api_keys.RELOAD_S)
