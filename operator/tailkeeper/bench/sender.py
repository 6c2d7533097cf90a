"""The process that sends: `python -m tailkeeper.bench.sender`, started by `run_load` and spoken to over its pipes.

Open loop: every request leaves at its intended time, whatever became of those before it. The process does nothing
else, so that no table drawn and no garbage collected elsewhere makes a request late; and it tells how late each left.

Standard input: a pickled `Work`, then the line `start MONOTONIC_SECONDS`; end of file, or any line more, means stop.
Standard output: frames (`tailkeeper.bench.frames`).
"""

import array
import asyncio
import gc
import math
import os
import pickle
import resource
import sys
import time
from collections import Counter
from typing import Final

import uvloop

from tailkeeper.bench.connection import Exchange, Pool
from tailkeeper.bench.frames import Done, FrameWriter
from tailkeeper.bench.outcome import ROW, Outcome
from tailkeeper.bench.precise_timer import timer
from tailkeeper.bench.stream import StreamReader
from tailkeeper.bench.work import Work, tls_context

AT_ONCE: Final = 64
"""Most requests sent before answers are looked at again, when the sender is behind."""
REPORT_EVERY_S: Final = 0.25


class Sender:
    """Sends the work of one process from `start_s` of `time.monotonic()` on."""

    def __init__(self, work: Work, start_s: float, out: FrameWriter, realtime: bool) -> None:
        self._work = work
        self._realtime = realtime
        self._start_s = start_s
        self._out = out
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(
            work.addresses, tls_context(work.verify_tls) if work.tls else None, work.server_name, self._finished
        )
        self._next = 0
        self._ready: Exchange | None = self._make(0)
        self._timer = timer(self._loop, self._due)
        self._timer.at(start_s + work.arrival_s[0])
        self._stopped = self._loop.create_future()
        self._rows = bytearray()
        self._errors: Counter[str] = Counter()
        self._gaps_s: dict[str, array.array[float]] = {}
        self._cpu_s = time.process_time()
        self._report_timer = self._loop.call_later(REPORT_EVERY_S, self._report_again)

    async def done(self) -> None:
        """Wait until every request has ended or `stop` was called, and report the rest."""
        await self._stopped
        self._timer.close()
        self._pool.close()
        self._report_timer.cancel()
        self._report()
        wall_s = max(1e-9, time.monotonic() - self._start_s)
        cpu = (time.process_time() - self._cpu_s) / wall_s
        self._out.done(Done(sent=self._next, connections=self._pool.opened, cpu_fraction=cpu, realtime=self._realtime))

    def stop(self) -> None:
        """Send nothing more, and wait for no answer."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _due(self) -> None:
        """Send all whose time has come, then set the timer to the next."""
        now_s = time.monotonic()
        sent: list[Exchange] = []
        while self._ready is not None and self._ready.intended_s <= now_s and len(sent) < AT_ONCE:
            exchange, self._next = self._ready, self._next + 1
            exchange.sent_s = now_s
            self._pool.send(exchange, exchange.intended_s + self._work.kinds[exchange.kind].timeout_s)
            sent.append(exchange)
            self._ready = self._make(self._next)
            now_s = time.monotonic()
        if sent:
            # The loop hands the bytes to the sockets after this callback: only then they are sent.
            self._loop.call_soon(_stamp, sent)
        if self._ready is not None:
            self._timer.at(self._ready.intended_s)

    def _make(self, position: int) -> Exchange | None:
        """Put the next request together before its time comes."""
        work = self._work
        if position >= len(work.index):
            return None
        index, kind = work.index[position], work.kind[position]
        body = work.bodies.body(index, work.prompt_tokens[position], work.output_tokens[position])
        payload = b"%b%d\r\n\r\n%b" % (work.kinds[kind].head, len(body), body)
        stream = StreamReader() if work.streams else None
        return Exchange(index, kind, payload, self._start_s + work.arrival_s[position], stream)

    def _finished(self, exchange: Exchange) -> None:
        outcome = exchange.outcome
        assert outcome is not None
        if exchange.error:
            self._errors[_error_text(exchange)] += 1
        intended_s, stream = exchange.intended_s, exchange.stream
        first_s = stream.first_s if stream is not None else None
        tokens = 0
        if stream is not None:
            tokens = stream.tokens if stream.completion_tokens is None else stream.completion_tokens
            warm = intended_s >= self._start_s + self._work.gaps_from_s
            if stream.gaps_s and warm and outcome is Outcome.ANSWERED:
                tier = self._work.kinds[exchange.kind].tier
                self._gaps_s.setdefault(tier, array.array("f")).extend(stream.gaps_s)
        self._rows += ROW.pack(
            exchange.index,
            exchange.sent_s - intended_s,
            math.nan if exchange.done_s is None else exchange.done_s - intended_s,
            math.nan if first_s is None else first_s - intended_s,
            *exchange.waits,
            tokens,
            exchange.status,
            outcome,
            exchange.attempts,
        )
        if self._ready is None and not self._pool.in_flight:
            self.stop()

    def _report_again(self) -> None:
        self._report()
        self._report_timer = self._loop.call_later(REPORT_EVERY_S, self._report_again)

    def _report(self) -> None:
        self._out.rows(self._rows)
        self._rows = bytearray()
        for tier, gaps_s in self._gaps_s.items():
            self._out.gaps(tier, gaps_s)
        self._gaps_s = {}
        if self._errors:
            self._out.errors(self._errors)
            self._errors = Counter()


def _stamp(sent: list[Exchange]) -> None:
    now_s = time.monotonic()
    for exchange in sent:
        exchange.sent_s = now_s


def _error_text(exchange: Exchange) -> str:
    body = exchange.body[:200].decode("utf-8", "replace").strip()
    return f"{exchange.error}: {body}" if body else exchange.error


def allow_many_files() -> None:
    """Raise the limit of open files as far as the system lets us: a connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _die(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Whatever nobody caught: a sender that goes on after it would measure something else."""
    loop.default_exception_handler(context)
    os._exit(1)


def go_before_others() -> bool:
    """Ask for real-time scheduling, and return whether the system lets us.

    A sender that waits for a core measures that wait. On two busy cores a sleeper woke up 3 ms late in 1 % of cases,
    whatever its niceness, and 0.09 ms late with this. It takes no more of the machine, only in time; and the kernel
    leaves 5 % to the others even when one never sleeps.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, PermissionError):
        return False
    return True


async def _serve(work: Work, realtime: bool) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_die)
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    _, out = await loop.connect_write_pipe(FrameWriter, sys.stdout)
    out.ready()
    words = (await orders.readline()).split()
    if len(words) != 2:
        return  # told to stop before the start
    sender = Sender(work, float(words[1]), out, realtime)
    stop = loop.create_task(orders.readline())
    stop.add_done_callback(lambda _: sender.stop())
    await sender.done()
    await out.close()
    stop.cancel()


def main() -> None:
    """Read the work, send it, report."""
    # Not data from elsewhere: our own parent process wrote it.
    work = pickle.load(sys.stdin.buffer)  # noqa: S301
    allow_many_files()
    realtime = go_before_others()
    # A full collection would stop sending for tens of milliseconds; what lives now lives to the end.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
    uvloop.run(_serve(work, realtime))


if __name__ == "__main__":
    main()
