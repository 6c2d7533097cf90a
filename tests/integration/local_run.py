"""`tailkeeper run` as a process of its own, and what it says of itself as JSON lines."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.integration.worker_process import MINILM

TAILKEEPER = str(Path(sys.executable).with_name("tailkeeper"))
Line = dict[str, Any]


def policy(**spec: Any) -> Line:
    """One instance of MiniLM under the mount that `--models` stands for; an SLA that no machine misses."""
    instance = {
        "name": "minilm",
        "model": {"name": "minilm", "engine": "encoder", "path": f"/models/{MINILM.name}"},
    }
    return {
        "apiVersion": "tailkeeper.dev/v1alpha1",
        "kind": "BatchingPolicy",
        "metadata": {"name": "try"},
        "spec": {"batching": {"tailLatencySlaMs": 10_000}, "instances": [instance], **spec},
    }


def write(file: Path, document: Line) -> None:
    """As an editor does: another file in its place."""
    new = file.with_suffix(".edited")
    new.write_text(yaml.safe_dump(document))
    os.replace(new, file)


class LocalRun:
    """One that runs."""

    def __init__(self, file: Path, *flags: str) -> None:
        self.file = file
        self.lines: list[Line] = []
        arguments = [TAILKEEPER, "run", str(file), "-o", "json", "--dir", str(file.parent / "run"), *flags]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def until(self, event: str, since: int = 0, within_s: float = 120, **facts: object) -> Line:
        """The first line of this event with these facts, from line `since` on."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for line in self.lines[since:]:
                if line["event"] == event and facts.items() <= line.items():
                    return line
            assert self.process.poll() is None, self.told()
            time.sleep(0.02)
        raise TimeoutError(f"no {event} with {facts}: {self.told()}")

    def told(self) -> str:
        """Everything that it said."""
        return "\n".join(map(str, self.lines)) + (self.process.stderr.read() if self.process.stderr else "")

    @property
    def url(self) -> str:
        return str(self.until("ready", model="minilm")["urls"][0])

    @property
    def pids(self) -> list[int]:
        """Of every worker that was ever started, oldest first."""
        return [line["pid"] for line in self.lines if "pid" in line]

    def settings(self) -> Line:
        """What the worker itself says that it applies."""
        answer: Line = httpx.get(f"{self.url}/settings").json()
        return answer

    def end(self, number: signal.Signals = signal.SIGTERM, within_s: float = 60) -> int:
        """Signals it and returns its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(within_s)
        self._reading.join(5)
        return status


@contextlib.contextmanager
def running(folder: Path, document: Line, *flags: str) -> Iterator[LocalRun]:
    """`tailkeeper run` of this policy, not ready yet; nothing of it is left behind."""
    file = folder / "policy.yaml"
    write(file, document)
    run = LocalRun(file, "--models", str(MINILM.parent), *flags)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait()


def gone(pid: int) -> bool:
    """Whether there is no such process, soon. Nobody may be there to reap it where this runs in a container."""
    return comes_to(pid, "", "Z")


def stopped(pid: int) -> bool:
    """Stops it; until it is, a later signal would be taken before this one."""
    os.kill(pid, signal.SIGSTOP)
    return comes_to(pid, "T")


def comes_to(pid: int, *states: str, within_s: float = 10) -> bool:
    """Whether the process is in one of these states soon, as /proc has them; empty when there is none."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = ""
        if state in states:
            return True
        time.sleep(0.02)
    return False
