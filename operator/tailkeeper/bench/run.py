"""`run_load`: one run of the load generator, from a plan to a report.

    target = Target("http://127.0.0.1:8000/v1/embeddings")
    report = await run_load(Plan(target, loads=(TierLoad("interactive", parse_arrivals("poisson:40")),)))

Sending is done by processes of its own (`sender`). This one collects what they report, so it may draw and compute.
"""

import array
import asyncio
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tailkeeper.bench.frames import Done, Errors, Gaps, Ready, Rows, read_frames
from tailkeeper.bench.measured import Generator, Measured
from tailkeeper.bench.plan import Plan
from tailkeeper.bench.probe import Found, probe
from tailkeeper.bench.progress import Progress, ProgressKeeper
from tailkeeper.bench.report import Report
from tailkeeper.bench.schedule import Schedule, draw_schedule
from tailkeeper.bench.summary import summarize
from tailkeeper.bench.wire import bodies, kinds_of
from tailkeeper.bench.work import Work

LEAD_S: Final = 0.2
"""From the word to the start: every process has heard it by then."""
GRACE_S: Final = 10.0
"""How long after the last possible answer a silent process is given up."""
PROGRESS_EVERY_S: Final = 0.5


class SenderDiedError(RuntimeError):
    """A sending process ended by itself; the message has its last words."""


class NotStartedError(RuntimeError):
    """It was told to stop before the load began: there is nothing to report."""


async def run_load(
    plan: Plan,
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> Report:
    """Send a load and report on it.

    Args:
        plan: what to send where.
        on_progress: called about twice a second.
        stop: set it to end early; the report then covers what was sent, and says so.

    Raises:
        LoadError: the plan makes no load.
        TargetError: the target cannot be loaded as asked.
        SenderDiedError: a sending process broke.
        NotStartedError: stopped before the load began.
    """
    measured = await measure(plan, on_progress, stop)
    return summarize(plan, measured)


async def measure(
    plan: Plan,
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> Measured:
    """Send a load and return what was measured, request by request. See `run_load`."""
    schedule = draw_schedule(plan)
    stop = stop or asyncio.Event()
    found = await _unless_stopped(probe(plan), stop)
    heard = _Heard()
    senders = [await _Sender.start(work, heard) for work in _share_out(plan, schedule, found)]
    try:
        started = await _run(senders, stop, plan, schedule, heard, on_progress)
    finally:
        await asyncio.gather(*(sender.end() for sender in senders))
    warnings = list(found.warnings)
    if schedule.cut:
        warnings.append(f"cut at {plan.max_requests} requests: the plan has more (--max-requests)")
    return Measured(
        schedule=schedule.requests,
        rows=b"".join(heard.rows),
        gaps_s=heard.gaps_s,
        errors=heard.errors,
        generator=Generator(
            processes=len(senders),
            sent=sum(d.sent for d in heard.done),
            connections=sum(d.connections for d in heard.done),
            cpu_fraction=max((d.cpu_fraction for d in heard.done), default=0.0),
            realtime=all(d.realtime for d in heard.done),
        ),
        model=found.model.name,
        started_at=started,
        interrupted=stop.is_set(),
        warnings=tuple(warnings),
    )


async def _unless_stopped(looking: Coroutine[Any, Any, Found], stop: asyncio.Event) -> Found:
    task, stopped = asyncio.create_task(looking), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            raise NotStartedError("stopped before the load began")
        return task.result()
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


@dataclass
class _Heard:
    """What the senders have reported so far."""

    rows: list[bytes] = field(default_factory=list)
    gaps_s: "dict[str, array.array[float]]" = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    done: list[Done] = field(default_factory=list)


class _Sender:
    """One sending process, seen from here."""

    def __init__(self, process: asyncio.subprocess.Process, heard: _Heard) -> None:
        self._process = process
        self._heard = heard
        self.ready = asyncio.Event()
        self.is_done = False
        self.finished = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, work: Work, heard: _Heard) -> "_Sender":
        """Start the process and give it its work."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tailkeeper.bench.sender",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            # A Ctrl-C on the terminal is for us: we stop the senders in order, and keep what they have.
            start_new_session=True,
        )
        sender = cls(process, heard)
        sender._write(pickle.dumps(work, protocol=pickle.HIGHEST_PROTOCOL))
        return sender

    def go(self, start_s: float) -> None:
        """Send from `start_s` of `time.monotonic()` on: that clock is the same for all processes of a machine."""
        self._write(f"start {start_s!r}\n".encode())

    def stop(self) -> None:
        """Send no more; what has been reported arrives still."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def end(self) -> None:
        """Make sure that the process is gone."""
        self.finished.cancel()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(self.finished, return_exceptions=True)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        last_words = asyncio.create_task(self._process.stderr.read())
        try:
            async for frame in read_frames(self._process.stdout):
                match frame:
                    case Ready():
                        self.ready.set()
                    case Rows(packed):
                        self._heard.rows.append(packed)
                    case Gaps(tier, seconds):
                        self._heard.gaps_s.setdefault(tier, array.array("f")).extend(seconds)
                    case Errors(counts):
                        self._heard.errors.update(counts)
                    case Done():
                        self._heard.done.append(frame)
                        self.is_done = True
            status = await self._process.wait()
            if not self.is_done:
                words = (await last_words).decode("utf-8", "replace").strip().splitlines()
                raise SenderDiedError(
                    f"a sending process ended with {status}: {words[-1] if words else 'no last words'}"
                )
        finally:
            last_words.cancel()


async def _run(
    senders: Sequence[_Sender],
    stop: asyncio.Event,
    plan: Plan,
    schedule: Schedule,
    heard: _Heard,
    on_progress: Callable[[Progress], None] | None,
) -> float:
    """Start all senders at one time, and wait until they are done. Returns the time of day of the start."""
    everything = asyncio.gather(*(sender.finished for sender in senders))
    ready = asyncio.gather(*(sender.ready.wait() for sender in senders))
    stopped = asyncio.create_task(stop.wait())
    try:
        # `everything` first: a process that breaks before it is ready would be waited for without end.
        await asyncio.wait((everything, ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        if everything.done():
            everything.result()
        start_s = time.monotonic() + LEAD_S
        started_at = time.time() + LEAD_S
        if not stop.is_set():
            for sender in senders:
                sender.go(start_s)
        keeper = ProgressKeeper(plan, schedule.requests, start_s)
        longest_s = max(plan.limits_of(tier).timeout_ms for tier in plan.tiers) / 1000
        give_up_s = start_s + schedule.requests[-1].arrival_s + longest_s + GRACE_S
        while not everything.done():
            await asyncio.wait((everything, stopped), timeout=PROGRESS_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                for sender in senders:
                    sender.stop()
                await asyncio.wait((everything,), timeout=GRACE_S)
                return started_at
            if time.monotonic() > give_up_s:
                raise SenderDiedError("a sending process does not end")
            if on_progress is not None:
                on_progress(keeper.look(heard.rows, time.monotonic()))
        everything.result()
        return started_at
    finally:
        for task in (everything, ready, stopped):
            task.cancel()
        await asyncio.gather(everything, ready, stopped, return_exceptions=True)


def _share_out(plan: Plan, schedule: Schedule, found: Found) -> list[Work]:
    """Deal the requests out to the processes like cards, so that all are equally busy."""
    requests = schedule.requests
    kinds, kind_of = kinds_of(plan, found.model, requests)
    made = bodies(plan, found.model, max(r.prompt_tokens for r in requests))
    shares = [range(first, len(requests), plan.processes) for first in range(plan.processes)]
    return [
        Work(
            addresses=found.addresses,
            server_name=plan.target.host,
            tls=plan.target.tls,
            verify_tls=plan.target.verify_tls,
            streams=plan.target.streams,
            gaps_from_s=plan.warmup_s,
            kinds=tuple(kinds),
            bodies=made,
            index=array.array("I", share),
            arrival_s=array.array("d", (requests[i].arrival_s for i in share)),
            kind=array.array("I", (kind_of[i] for i in share)),
            prompt_tokens=array.array("I", (requests[i].prompt_tokens for i in share)),
            output_tokens=array.array("I", (requests[i].output_tokens for i in share)),
        )
        for share in shares
        if share
    ]
