"""One worker process, started anew whenever it ends, as the kubelet does."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import Final

from tailkeeper.local.backoff import Backoff
from tailkeeper.local.child import ended, start
from tailkeeper.local.events import Event, Happening, Tell
from tailkeeper.local.launch import CannotStart, Launch
from tailkeeper.signals.worker_settings import WorkerAddress, WorkerReport

LIVENESS_S: Final = 10.0
LIVENESS_FAILURES: Final = 3
"""As the operator has the kubelet probe `/healthz`."""
MOST_UNANSWERED: Final = 3
"""In a row; each is waited for for two seconds."""
_WRONG_ARGUMENTS: Final = 2
"""Exit status of a worker that no restart would help."""


class Worker:
    """`supervise` it. What it says of itself is `report`."""

    def __init__(self, launch: Launch, tell: Tell, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.launch = launch
        self.report: WorkerReport | None = None
        self.starts = 0
        """How often it was started."""
        self._tell = tell
        self._monotonic_s = monotonic_s
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._backoff = Backoff()
        self._started_s = 0.0
        self._was_ready = self._told_ready = False
        self._unhealthy = self._unanswered = 0
        self._told_reason = self._told_refusal = ""

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    @property
    def ready(self) -> bool:
        """Whether requests are welcome, as it last said."""
        return self.running and self.report is not None and self.report.ready

    @property
    def address(self) -> WorkerAddress:
        """Where it is asked."""
        return WorkerAddress(self.launch.name, self.launch.host, self.launch.metrics_port)

    async def supervise(self) -> None:
        """Runs it until `stop` or `kill`. Raises CannotStart when no restart would help."""
        again = False
        while not self._stopping.is_set():
            await self._start(again)
            process = self._process
            assert process is not None
            status = await process.wait()
            ran_s = self._monotonic_s() - self._started_s
            self.report, was_ready = None, self._was_ready
            if self._stopping.is_set():
                return
            words = self._last_words()
            if status == _WRONG_ARGUMENTS and not was_ready:
                raise CannotStart(f"{self.launch.name}: {words or f'see {self.launch.log}'}")
            wait_s = self._backoff.after(ran_s)
            self._say_died(status, words, wait_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            again = True

    def hear(self, report: WorkerReport | None) -> None:
        """Takes in what it says of itself; None: no answer. On a busy machine one may be late: what it said last holds
        until several are missing."""
        if report is None:
            self._unanswered += 1
            if self._unanswered == MOST_UNANSWERED and self.ready:
                self.report, self._told_ready = None, False
                self._say(Happening.UNREADY, f"does not answer on {self.launch.metrics_url}")
            return
        self._unanswered, self.report = 0, report
        if report.ready and not self._told_ready:
            took_s = self._monotonic_s() - self._started_s
            self._was_ready = True
            self._say(Happening.READY, f"ready after {took_s:.1f} s", afterSeconds=round(took_s, 1))
        elif not report.ready and report.reason != self._told_reason:
            what = Happening.UNREADY if self._was_ready else Happening.LOADING
            self._say(what, report.reason or "not ready")
        if report.refusal and report.refusal != self._told_refusal:
            self._say(Happening.REFUSED, f"refuses the settings: {report.refusal}")
        self._told_ready, self._told_reason, self._told_refusal = report.ready, report.reason, report.refusal

    def probed(self, live: bool) -> None:
        """Takes in a probe of `/healthz`; a worker that has made no progress for three of them is killed."""
        self._unhealthy = 0 if live or not self._was_ready else self._unhealthy + 1
        if self._unhealthy >= LIVENESS_FAILURES:
            self._unhealthy = 0
            self._say(Happening.UNREADY, "makes no progress: killed")
            self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Lets it drain, and not start again."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    async def ended(self) -> None:
        """Returns when there is no process."""
        if self._process is not None:
            await self._process.wait()

    async def kill(self) -> None:
        """Ends it at once."""
        self._stopping.set()
        self._signal(signal.SIGKILL)
        await self.ended()

    async def _start(self, again: bool) -> None:
        self.launch.last_words.write_bytes(b"")  # a worker writes them only where the file is there
        self._was_ready = self._told_ready = False
        self._unhealthy = self._unanswered = 0
        self._told_reason = self._told_refusal = ""
        self._started_s = self._monotonic_s()
        self.starts += 1
        self._process = await start(self.launch.program, self.launch.environment, self.launch.log)
        what = Happening.RESTARTED if again else Happening.STARTED
        self._say(what, f"{what} as process {self._process.pid}", pid=self._process.pid, log=str(self.launch.log))
        if self._stopping.is_set():  # told while it started
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return " ".join(self.launch.last_words.read_text("utf-8", errors="replace").split())
        return ""

    def _say_died(self, status: int, words: str, wait_s: float) -> None:
        when = f"in {wait_s:.0f} s" if wait_s else "at once"
        why = f": {words}" if words else ""
        text = f"{ended(status)}{why}; starts again {when} (log: {self.launch.log})"
        self._say(Happening.DIED, text, status=status, againSeconds=wait_s)

    def _say(self, what: Happening, text: str, **facts: object) -> None:
        self._tell(Event(what, text, self.launch.instance, self.launch.name, facts))
