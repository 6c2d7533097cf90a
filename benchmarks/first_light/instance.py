"""The instance under test, on the local cluster: its policy, what its worker counts, what the operator says of it."""

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import Any, Final

import httpx

from benchmarks.first_light import ways
from tests.e2e import cluster

NAMESPACE: Final = "default"
POLICY: Final = "first-light"
INSTANCE: Final = "minilm"
_SAMPLE: Final = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Counters:
    """What the worker had counted at one time."""

    time_s: float
    busy_s: float
    work: float
    window: float
    ceiling: float
    coefficients: dict[str, float]
    generation: int


def apply(way: ways.Way, sla_ms: int) -> None:
    """Applies the policy and returns once the worker has the settings."""
    instances = [cluster.instance(INSTANCE)]
    spec = ways.spec(way, sla_ms, instances)
    cluster.apply(NAMESPACE, cluster.policy(POLICY, instances=instances) | {"spec": spec})
    cluster.wait_condition(POLICY, NAMESPACE, "Ready", "True", timeout_s=240)
    wanted = way.batching["mode"], way.batching["windowIdle"], sla_ms

    def applied() -> bool:
        found = settings()
        return (found["mode"], found["windowIdle"], found["tiers"][0]["deadlineMs"]) == wanted

    cluster.wait(f"the worker applies {way.title}", applied, timeout_s=15, every_s=0.1)


def delete() -> None:
    """Takes the instance away."""
    cluster.kubectl("delete", "batchingpolicy", POLICY, "-n", NAMESPACE, "--ignore-not-found", "--wait")


def annotate(name: str, value: str | None) -> None:
    """Sets an annotation of the policy, or takes it off."""
    change = f"{name}-" if value is None else f"{name}={value}"
    cluster.kubectl("annotate", "--overwrite", "batchingpolicy", POLICY, "-n", NAMESPACE, change)


def plant(ceiling: int) -> None:
    """A ceiling set by hand; returns once the worker has it."""
    name = f"tailkeeper.dev/set.{INSTANCE}"
    annotate(name, None)  # the same value again is news only when it was away in between
    time.sleep(1)
    annotate(name, f"ceiling={ceiling}")
    cluster.wait(f"the worker applies ceiling {ceiling}", lambda: settings()["ceiling"] == ceiling, 15, 0.1)


def url() -> str:
    """Where requests are sent."""
    return f"{cluster.address(f'{POLICY}-{INSTANCE}', NAMESPACE)}/v1/embeddings"


def _pod_address() -> str:
    (pod,) = cluster.pods(NAMESPACE, POLICY, INSTANCE)
    address: str = pod["status"]["podIP"]
    return address


def settings() -> dict[str, Any]:
    """The settings that the worker applies."""
    found: dict[str, Any] = httpx.get(f"http://{_pod_address()}:9000/settings", timeout=5).json()["settings"]
    return found


def counters(address: str) -> Counters:
    """Reads the worker's metrics."""
    text = httpx.get(f"http://{address}:9000/metrics", timeout=5).text
    single: dict[str, float] = {}
    coefficients: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        single[name] = float(value)
        if name == "tailkeeper_latency_model":
            coefficients[re.findall(r'coefficient="(\w+)"', labels)[0]] = float(value)
    return Counters(
        time_s=time.monotonic(),
        busy_s=single["tailkeeper_engine_busy_seconds_total"],
        work=single["tailkeeper_engine_work_total"],
        window=single["tailkeeper_window"],
        ceiling=single["tailkeeper_window_ceiling"],
        coefficients=coefficients,
        generation=int(single["tailkeeper_settings_generation"]),
    )


def now() -> Counters:
    """What the worker has counted by now."""
    return counters(_pod_address())


class Watched:
    """The worker's counters once a second, for as long as the block runs."""

    def __init__(self) -> None:
        self.seen: list[Counters] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reads until the block ends."""
        address = await asyncio.to_thread(_pod_address)
        self.seen.append(await asyncio.to_thread(counters, address))
        task = asyncio.create_task(self._read(address))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self.seen.append(await asyncio.to_thread(counters, address))

    async def _read(self, address: str) -> None:
        while True:
            await asyncio.sleep(1)
            with contextlib.suppress(httpx.TransportError):
                self.seen.append(await asyncio.to_thread(counters, address))


@dataclass(frozen=True)
class Move:
    """One line of the operator's log about this instance."""

    time_s: float
    text: str


@contextlib.contextmanager
def operator_log(show: bool) -> Iterator[list[Move]]:
    """What the operator logs of the instance's moves while the block runs, shown as it comes."""
    moves: list[Move] = []
    deployment = f"deployment/{cluster.OPERATOR_NAMESPACE}"
    command = ["kubectl", "logs", "-f", "--since=1s", "-n", cluster.OPERATOR_NAMESPACE, deployment]
    process = Popen(command, stdout=PIPE, text=True, env=cluster.environment())
    began_s = time.monotonic()

    def follow() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                message = json.loads(line)["message"]
                if f"{POLICY}/{INSTANCE}" in message and "sla_breached=" in message:
                    moves.append(Move(time.monotonic(), message))
                    if show:
                        print(f"  {time.monotonic() - began_s:5.1f} s  {message.split(': ', 1)[1]}", flush=True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield moves
    finally:
        process.terminate()
        process.wait(10)
        thread.join(5)


def moves_total() -> dict[str, float]:
    """Moves of the instance since the operator began, by cause, from the operator's metrics."""
    (pod,) = cluster.get("pods", cluster.OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=tailkeeper")["items"]
    text = httpx.get(f"http://{pod['status']['podIP']}:8080/metrics", timeout=5).text
    lines = re.findall(r"^tailkeeper_operator_moves_total(\{.*\}) (\S+)$", text, re.MULTILINE)
    mine = [(labels, value) for labels, value in lines if f'policy="{POLICY}"' in labels]
    return {re.findall(r'cause="(\w+)"', labels)[0]: float(value) for labels, value in mine}
