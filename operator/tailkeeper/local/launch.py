"""Which workers there are to be and how each is started: what the operator's pod template is in a cluster."""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailkeeper.api.enums import Engine
from tailkeeper.api.names import SETTINGS_KEY
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.local.model_source import model_flags

NAMESPACE: Final = "default"
"""Of a policy that names none, as kubectl has it."""
_EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - only compared with
"""Addresses to listen on, and where this machine itself reaches what listens there."""


class CannotStart(ValueError):
    """What was asked for cannot be run here. The message is one line and says what to do."""


@dataclass(frozen=True)
class Wishes:
    """What the command line says."""

    folder: Path
    """For settings, logs and decisions."""
    models: Path | None = None
    replicas: int | None = None
    """Workers of every instance; None: one, or none where the policy says 0."""
    instances: tuple[str, ...] = ()
    """Only these; all when empty."""
    host: str = "127.0.0.1"
    port: int | None = None
    """Of the first worker, the others follow; None: free ones."""
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "gpu_worker")
    """What a worker is; `-P`, so that nothing in the present folder is taken for one of its modules."""


@dataclass(frozen=True)
class Launch:
    """How one worker is started, each time anew."""

    name: str
    """INSTANCE-NUMBER."""
    instance: str
    program: tuple[str, ...]
    environment: Mapping[str, str]
    host: str
    """Where this machine reaches it."""
    http_port: int
    metrics_port: int
    log: Path
    last_words: Path

    @property
    def url(self) -> str:
        """Base address of its API."""
        return self._at(self.http_port)

    @property
    def metrics_url(self) -> str:
        """Its metrics."""
        return f"{self._at(self.metrics_port)}/metrics"

    def _at(self, port: int) -> str:
        return f"http://[{self.host}]:{port}" if ":" in self.host else f"http://{self.host}:{port}"


def settings_file(folder: Path, instance: str) -> Path:
    """Where the workers of an instance read their settings."""
    return folder / instance / SETTINGS_KEY


def chosen(policy: BatchingPolicy, names: Sequence[str]) -> list[Instance]:
    """The instances to run. Raises CannotStart for a name that is not there."""
    known = [instance.name for instance in policy.spec.instances]
    for name in names:
        if name not in known:
            raise CannotStart(f"{policy.metadata.name}: no instance {name}; there are {', '.join(known)}")
    return [instance for instance in policy.spec.instances if not names or instance.name in names]


def launches(policy: BatchingPolicy, wishes: Wishes) -> list[Launch]:
    """Every worker's start. Raises CannotStart, NoModel."""
    workers = [
        (instance, f"{instance.name}-{number}")
        for instance in chosen(policy, wishes.instances)
        for number in range(_replicas(instance, wishes.replicas))
    ]
    if not workers:
        raise CannotStart(f"{policy.metadata.name}: replicas are 0 everywhere; --replicas 1 runs one of each instance")
    ports = _ports(wishes.host, wishes.port, len(workers))
    threads = _threads(len(workers))
    return [
        Launch(
            name=name,
            instance=instance.name,
            program=(
                *wishes.program,
                f"--engine={instance.model.engine.value}",
                f"--model-name={instance.model.name}",
                *model_flags(instance, wishes.models),
                f"--policy={policy.metadata.namespace or NAMESPACE}/{policy.metadata.name}",
                f"--model-instance={instance.name}",
                f"--settings-file={settings_file(wishes.folder, instance.name)}",
                f"--drain-seconds={policy.spec.drain_seconds}",
                "--endpoint-delay-seconds=0",  # nobody else has to hear first that it stops
                f"--host={wishes.host}",
                f"--http-port={http_port}",
                f"--metrics-port={metrics_port}",
                *threads,
            ),
            environment={
                **os.environ,
                "POD_NAME": name,
                # Not as a flag: wrong flags are told there as well.
                "TAILKEEPER_TERMINATION_LOG": str(wishes.folder / f"{name}.last-words"),
            },
            host=_EVERYWHERE.get(wishes.host, wishes.host),
            http_port=http_port,
            metrics_port=metrics_port,
            log=wishes.folder / f"{name}.log",
            last_words=wishes.folder / f"{name}.last-words",
        )
        for (instance, name), (http_port, metrics_port) in zip(workers, ports, strict=True)
    ]


def _replicas(instance: Instance, asked: int | None) -> int:
    """One of each is enough to try a policy: `replicas` is sized for the cluster, not for this machine."""
    if asked is not None:
        return asked
    return 1 if instance.replicas is None else min(instance.replicas, 1)


def _threads(workers: int) -> list[str]:
    """Workers that each took all CPUs would wait for each other at every layer."""
    if workers == 1 or "TAILKEEPER_THREADS" in os.environ:
        return []
    return [f"--threads={max(1, len(os.sched_getaffinity(0)) // workers)}"]


def _ports(host: str, first: int | None, workers: int) -> list[tuple[int, int]]:
    """API and metrics ports. Held until all are chosen, so that none is given twice; then free for the workers."""
    held: list[socket.socket] = []
    try:
        listen = _listener(host, held)
        wanted = iter(range(first, first + workers)) if first is not None else iter([0] * workers)
        api = [listen(port) for port in wanted]
        return list(zip(api, (listen(0) for _ in range(workers)), strict=True))
    finally:
        for sock in held:
            sock.close()


def _listener(host: str, held: list[socket.socket]) -> Callable[[int], int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def listen(port: int) -> int:
        sock = socket.socket(family, socket.SOCK_STREAM)
        held.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen()  # only this tells that another process listens there, where both allow the address's reuse
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no such port"
            what = f"port {port}: {reason}; --port takes another one" if port else f"cannot listen there: {reason}"
            raise CannotStart(f"{host or 'any address'} {what}") from None
        return int(sock.getsockname()[1])

    return listen


def missing_packages(policy: BatchingPolicy, instances: Sequence[str]) -> Iterator[str]:
    """Modules that these workers need and that are not installed."""
    from importlib.util import find_spec

    needed = ["gpu_worker", "uvicorn", "starlette"]
    if any(each.model.engine in (Engine.ENCODER, Engine.CAUSAL_LM) for each in chosen(policy, instances)):
        needed.append("torch")
    return (name for name in needed if find_spec(name) is None)
