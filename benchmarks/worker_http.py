"""The worker's HTTP path alone: a trivial engine, so that everything measured is the server's own.

    python -m benchmarks.worker_http [--seconds 10] [--connections 64] [--profile FILE] [--keep]

Starts a worker (real HTTP server, loop, scheduler, metrics; vectors of 8 numbers made of nothing) in a process of its
own and drives it over loopback from this one, first as fast as it goes (closed loop), then with Poisson arrivals at
750/s (open loop: latency counts from the intended send time). `server_…` is from arrival to end as the worker itself
has it (Server-Timing). Both processes share the machine's CPUs with whatever else runs there, so the figures are a
floor; `chrt -r 5 python -m …` keeps other processes out of them."""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import uvloop

from benchmarks.results_file import keep
from gpu_worker.config import parse
from gpu_worker.engines.interface import Prepared, Progress, Serves, StepResult, Task
from gpu_worker.scheduling import EngineLimits, create
from gpu_worker.server import worker
from tailkeeper.api.enums import Mode
from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import initial_settings, resolve_all
from tests.integration.control_plane import free_port

POISSON_PER_S = 750
BODY = json.dumps({"model": "trivial", "input": "how fast is nothing?", "encoding_format": "base64"}).encode()
REQUEST = (
    b"POST /v1/embeddings HTTP/1.1\r\nhost: worker\r\ncontent-type: application/json\r\ncontent-length: "
    + str(len(BODY)).encode()
    + b"\r\n\r\n"
    + BODY
)


class Trivial:
    """An engine whose forward pass takes no time."""

    serves = Serves.EMBEDDINGS
    modes = frozenset({Mode.REQUEST})
    limits = EngineLimits()
    stateless = True
    dimensions = 8
    max_tokens = 512

    def __init__(self) -> None:
        self._vector = np.ones(8, dtype=np.float32)

    def load(self, progress: Progress) -> None:
        """Nothing to load."""

    def text(self, text: str, truncate: bool) -> Prepared:
        """Any text."""
        return Prepared(text, 1)

    def tokens(self, ids: Sequence[int]) -> Prepared:
        """Any tokens."""
        return Prepared(ids, len(ids))

    def warm_up(self, batch: int) -> Sequence[Task]:
        """Nothing to warm."""
        return [Task(f"warm-up-{index}", "", 1) for index in range(batch)]

    def step(self, tasks: Sequence[Task], evicted: Sequence[str]) -> StepResult:
        """The same vector for everybody."""
        return StepResult({task.id: self._vector for task in tasks}, frozenset(task.id for task in tasks))

    def release(self, ids: Sequence[str]) -> None:
        """Nothing kept."""


def serve(arguments: Sequence[str], profile: str | None) -> None:
    """The worker's process."""
    config = parse(arguments)
    if profile is None:
        uvloop.run(worker.serve(config, Trivial(), create))
        return
    import cProfile

    profiler = cProfile.Profile()
    profiler.runcall(lambda: uvloop.run(worker.serve(config, Trivial(), create)))
    profiler.dump_stats(profile)


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request on it at a time; as little client as can be."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answered: asyncio.Future[bytes] | None = None
        self.server_s = 0.0
        """Of the last call: arrival to end as the worker itself has it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if separator and len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            self._buffer = b""
            assert self._answered is not None
            self._answered.set_result(head)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionResetError())

    async def call(self) -> bool:
        """Whether the answer was 200."""
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(REQUEST)  # type: ignore[attr-defined]
        head = await self._answered
        if not head.startswith(b"HTTP/1.1 200"):
            return False
        timing = head.split(b"server-timing: ")[1].split(b"\r\n")[0]
        self.server_s = sum(float(cause.split(b"=")[1]) for cause in timing.split(b", ")) / 1000
        return True


async def connect(port: int, count: int) -> list[Connection]:
    """That many connections."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def closed_loop(port: int, connections: int, seconds: float) -> dict[str, float]:
    """As fast as it goes."""
    until = time.perf_counter() + seconds
    latencies: list[float] = []
    failed = 0

    async def client(connection: Connection) -> None:
        nonlocal failed
        while (begun := time.perf_counter()) < until:
            failed += not await connection.call()
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(client(connection) for connection in await connect(port, connections)))
    return {"per_s": round(len(latencies) / (time.perf_counter() - begun)), "failed": failed, **quantiles(latencies)}


async def open_loop(port: int, connections: int, seconds: float) -> dict[str, float]:
    """Poisson arrivals; a request whose connection is not free yet waits, and the wait counts."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in await connect(port, connections):
        free.put_nowait(connection)
    latencies: list[float] = []
    in_server: list[float] = []
    failed = 0

    async def one(intended: float) -> None:
        nonlocal failed
        connection = await free.get()
        failed += not await connection.call()
        latencies.append(time.perf_counter() - intended)
        in_server.append(connection.server_s)
        free.put_nowait(connection)

    draw = random.Random(1)
    tasks = []
    at = time.perf_counter()
    end = at + seconds
    while at < end:
        if (wait := at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(at)))
        at += draw.expovariate(POISSON_PER_S)
    await asyncio.gather(*tasks)
    by_worker = {f"server_{name}": value for name, value in quantiles(in_server).items()}
    return {"per_s": round(len(latencies) / seconds), "failed": failed, **quantiles(latencies), **by_worker}


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    p50, p99, p999 = np.quantile(seconds, [0.5, 0.99, 0.999]) * 1e3
    return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "p99.9_ms": round(p999, 2)}


def settings_document() -> str:
    """An online instance that never holds."""
    spec = PolicySpec.model_validate(
        {
            "tiers": [{"name": "interactive", "deadlineMs": 1000, "maxHoldMs": 0}],
            "instances": [{"name": "trivial", "model": {"name": "trivial", "engine": "encoder", "path": "/nowhere"}}],
        }
    )
    effective = resolve_all(spec)["trivial"]
    settings = initial_settings(
        effective, policy_namespace="bench", policy="http", model_instance="trivial", generation=1
    )
    return settings.model_dump_json(by_alias=True, exclude_none=True)


async def drive(child: int, port: int, connections: int, seconds: float) -> dict[str, object]:
    """Both loads, after a short warm-up."""
    await closed_loop(port, connections, 1)
    before_s = cpu_seconds(child)
    fastest = await closed_loop(port, connections, seconds)
    spent_s = cpu_seconds(child) - before_s
    return {
        "connections": connections,
        "closed_loop": fastest,
        "worker_cpu_us_per_request": round(spent_s / (fastest["per_s"] * seconds) * 1e6),
        f"poisson_{POISSON_PER_S}_per_s": await open_loop(port, connections, seconds),
        "load_average_after": round(os.getloadavg()[0], 1),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def wait_until_ready(port: int) -> None:
    """Asks /readyz until it says yes."""
    for _ in range(600):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        if answer.startswith(b"HTTP/1.1 200"):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the worker did not become ready")


def main() -> None:
    """Measures, prints, and keeps the figures when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--profile", metavar="FILE", help="write a cProfile of the worker there")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/worker-http.json")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        document = Path(folder) / "settings.json"
        document.write_text(settings_document())
        port, metrics = free_port(), free_port()
        arguments = [
            *("--engine", "encoder", "--model-name", "trivial", "--policy", "bench/http"),
            *("--model-instance", "trivial", "--settings-file", str(document), "--host", "127.0.0.1"),
            *("--http-port", str(port), "--metrics-port", str(metrics)),
            *("--endpoint-delay-seconds", "0", "--log-level", "warning"),
        ]
        child = os.fork()
        if child == 0:
            serve(arguments, options.profile)
            os._exit(0)
        try:
            uvloop.run(wait_until_ready(port))
            figures = uvloop.run(drive(child, port, options.connections, options.seconds))
        finally:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
    if options.keep:
        priority = "chrt -r 5 " if os.sched_getscheduler(0) == os.SCHED_RR else ""
        keep("worker-http", f"{priority}python -m benchmarks.worker_http --seconds {options.seconds:g} --keep", figures)
    else:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
