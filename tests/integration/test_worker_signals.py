"""A worker process that is told to stop: no request of its clients fails."""

import asyncio
import signal
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


class PinnedClient:
    """A client on one connection, which a cluster leaves on a stopping pod for as long as it lives: only the server can
    say when it is over."""

    def __init__(self, first: WorkerProcess, then: WorkerProcess) -> None:
        self._ports = [first.port, then.port]
        self.served = [0, 0]

    async def run(self, stop: asyncio.Event, think_s: float) -> None:
        """Raises when a request fails."""
        body = b'{"model": "minilm", "input": "hello"}'
        request = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        at = 0
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[at])
        while not stop.is_set():
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            self.served[at] += 1
            if b"connection: close" in head:
                writer.close()
                at = 1
                reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[at])
            await asyncio.sleep(think_s)
        writer.close()


async def test_connections_that_outlive_the_endpoint_are_ended_without_a_reset(tmp_path: Path) -> None:
    """As with a preStop hook that waits for the endpoints: the worker itself need not."""
    flags = ("--endpoint-delay-seconds", "0", "--drain-seconds", "10")
    with scripted_worker(tmp_path, *flags) as stays, scripted_worker(tmp_path, *flags) as goes:
        stop = asyncio.Event()
        clients = [PinnedClient(goes, stays) for _ in range(16)]
        load = asyncio.gather(*(client.run(stop, 0.01 * number) for number, client in enumerate(clients)))
        await asyncio.sleep(1)
        goes.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(goes.process.wait, 20) == 0
        await asyncio.sleep(0.5)
        stop.set()
        await load
        assert all(client.served[0] > 0 and client.served[1] > 0 for client in clients)


def test_impatient_signals_kill_no_request(tmp_path: Path) -> None:
    body = {"model": "minilm", "input": "hello"}
    with (
        scripted_worker(tmp_path, "--endpoint-delay-seconds", "3") as worker,
        httpx.Client(base_url=worker.url, timeout=20) as client,
    ):
        worker.process.send_signal(signal.SIGTERM)
        for _ in range(5):
            worker.process.send_signal(signal.SIGTERM)
            worker.process.send_signal(signal.SIGINT)
            assert client.post("/v1/embeddings", json=body).status_code == 200
        assert worker.process.wait(20) == 0
