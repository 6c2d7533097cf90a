"""A worker process that is told to stop: no request of its clients fails."""

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.worker_process import WorkerProcess, scripted_worker

ENDPOINTS_S = 0.5
"""When clients learn that a stopping worker is no endpoint any more; a real cluster takes about as long."""


class Clients:
    """Keep-alive clients that spread their requests over the workers that are endpoints."""

    def __init__(self, workers: list[WorkerProcess]) -> None:
        self.endpoints = workers
        self.statuses: list[int | str] = []
        self._stop = False

    async def run(self, count: int) -> None:
        """Until `stop`."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=20, limits=limits) as client:
            await asyncio.gather(*(self._one(client, number) for number in range(count)))

    def stop(self) -> None:
        self._stop = True

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        while not self._stop:
            worker = self.endpoints[(number + len(self.statuses)) % len(self.endpoints)]
            body = {"model": "minilm", "input": f"request {len(self.statuses)}"}
            try:
                self.statuses.append((await client.post(f"{worker.url}/v1/embeddings", json=body)).status_code)
            except httpx.TransportError as error:
                self.statuses.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.001 * (number % 7))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_no_request_fails_while_one_of_two_workers_is_stopped_under_load(
    tmp_path: Path, number: signal.Signals
) -> None:
    flags = ("--endpoint-delay-seconds", "1.5", "--drain-seconds", "10")
    with scripted_worker(tmp_path, *flags) as stays, scripted_worker(tmp_path, *flags) as goes:
        clients = Clients([stays, goes])
        load = asyncio.create_task(clients.run(12))
        await asyncio.sleep(1)
        goes.process.send_signal(number)
        await asyncio.sleep(ENDPOINTS_S)
        clients.endpoints = [stays]
        status = await asyncio.to_thread(goes.process.wait, 20)
        await asyncio.sleep(0.5)
        clients.stop()
        await load
        assert set(clients.statuses) == {200}
        assert len(clients.statuses) > 100
        assert status == 0


def test_impatient_signals_kill_no_request(tmp_path: Path) -> None:
    with scripted_worker(tmp_path, "--endpoint-delay-seconds", "0.5") as worker:
        begun = time.monotonic()
        worker.process.send_signal(signal.SIGTERM)
        for _ in range(3):
            time.sleep(0.05)
            worker.process.send_signal(signal.SIGTERM)
            worker.process.send_signal(signal.SIGINT)
            body = {"model": "minilm", "input": "hello"}
            assert httpx.post(f"{worker.url}/v1/embeddings", json=body).status_code == 200
        assert worker.process.wait(10) == 0
        assert time.monotonic() - begun < 5
