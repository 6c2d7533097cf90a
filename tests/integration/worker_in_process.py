"""A whole worker in the test's own event loop: real ports, real HTTP, real scheduler; only the engine is scripted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from gpu_worker.config import parse
from gpu_worker.scheduling import create
from gpu_worker.server.loop import MakeScheduler
from gpu_worker.server.worker import Worker
from tests.integration.control_plane import free_port
from tests.unit.worker.doubles import ScriptedEngine, document


async def eventually(condition: Callable[[], Awaitable[bool]], within_s: float = 5.0) -> None:
    """Returns once the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens on another thread or behind a port
            await asyncio.sleep(0.01)


class Running:
    """A worker that serves, and clients of its two ports."""

    def __init__(self, worker: Worker, engine: ScriptedEngine, http_port: int, metrics_port: int, file: Path) -> None:
        self.worker = worker
        self.engine = engine
        self.port = http_port
        self.settings_file = file
        self.task = asyncio.create_task(worker.run())
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port}", timeout=20, limits=limits)
        self.metrics = httpx.AsyncClient(base_url=f"http://127.0.0.1:{metrics_port}", timeout=20)

    async def until_ready(self) -> None:
        """Waits for /readyz."""
        await eventually(self._ready, 10)

    async def _ready(self) -> bool:
        if self.task.done():
            await self.task
        with contextlib.suppress(httpx.TransportError):
            return (await self.http.get("/readyz")).status_code == 200
        return False

    async def until_settings(self, **fields: object) -> dict[str, Any]:
        """Waits until /settings says so, and returns all that it says."""
        status: dict[str, Any] = {}

        async def said() -> bool:
            nonlocal status
            status = (await self.metrics.get("/settings")).json()
            return fields.items() <= status.items()

        await eventually(said, 2)
        return status

    def change_settings(self, text: str) -> None:
        """As the kubelet does: all at once."""
        beside = self.settings_file.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.settings_file)

    async def embed(
        self, text: object = "hello", headers: dict[str, str] | None = None, **more: object
    ) -> httpx.Response:
        """POST /v1/embeddings."""
        return await self.http.post("/v1/embeddings", json={"model": "minilm", "input": text, **more}, headers=headers)

    async def series(self) -> dict[str, float]:
        """What /metrics shows, by name and sorted labels without those of the instance."""
        page = (await self.metrics.get("/metrics")).text
        return dict(_series(line) for line in page.splitlines() if not line.startswith("#"))


def _series(line: str) -> tuple[str, float]:
    key, _, value = line.rpartition(" ")
    name, _, labels = key.partition("{")
    shown = [
        label for label in labels.rstrip("}").split(",") if label and not label.startswith(("policy", "model_instance"))
    ]
    return (f"{name}{{{','.join(shown)}}}" if shown else name), float(value)


@contextlib.asynccontextmanager
async def running_worker(
    folder: Path,
    *flags: str,
    engine: ScriptedEngine | None = None,
    scheduler: MakeScheduler = create,
    settings: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """A ready worker; stopped afterwards, at once when it was not stopped before."""
    file = folder / "settings.json"
    file.write_text(document(1) if settings is None else settings)
    http_port, metrics_port = free_port(), free_port()
    arguments = [
        *("--engine", "encoder", "--model-name", "minilm", "--policy", "default/chat", "--model-instance", "minilm"),
        *("--settings-file", str(file), "--http-port", str(http_port), "--metrics-port", str(metrics_port)),
        *("--host", "127.0.0.1", "--endpoint-delay-seconds", "0", *flags),
    ]
    engine = engine or ScriptedEngine()
    worker = Worker(
        parse(arguments, {"POD_NAME": "chat-minilm-0", "POD_UID": "uid-0"}), engine, scheduler, environment or {}
    )
    running = Running(worker, engine, http_port, metrics_port, file)
    try:
        await running.until_ready()
        yield running
    finally:
        await running.http.aclose()
        await running.metrics.aclose()
        worker.stop()
        await running.task
