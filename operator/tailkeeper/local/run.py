"""A policy without a cluster: its workers as child processes, the operator's tuner beside them, its file followed."""

import asyncio
import contextlib
import fcntl
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailkeeper.api.enums import RetuneMode
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.local.events import Event, Happening, Tell
from tailkeeper.local.fleet import Fleet
from tailkeeper.local.launch import CannotStart, Wishes, launches
from tailkeeper.local.policy_file import POLL_S, FollowedFile
from tailkeeper.local.worker import Worker
from tailkeeper.reconcile.parsing import Refusal

BEAT_S: Final = 1.0
EXIT_S: Final = 10.0
"""After the drain: closing the engine and the process."""
EXIT_KILLED: Final = 130
"""Ended by a second Ctrl-C: requests in flight were lost."""


@dataclass(frozen=True)
class Order:
    """What to run and how to tell of it."""

    file: Path
    read: Callable[[], BatchingPolicy]
    """Reads the file. Raises Refusal."""
    wishes: Wishes
    mode: RetuneMode | None
    """Instead of the policy's."""
    tell: Tell
    status: bool
    """Whether to say every ten seconds how it stands."""


async def run(order: Order) -> int:
    """Runs until SIGTERM or SIGINT, then drains; the exit status. Raises CannotStart and NoModel, with no process left
    behind, Refusal for a policy that makes no sense."""
    with _alone_in(order.wishes.folder):
        watch = FollowedFile(order.file)
        policy = order.read()
        starts = launches(policy, order.wishes)
        signals = _Signals()
        workers = [Worker(launch, order.tell) for launch in starts]
        fleet = Fleet(policy, workers, order.wishes, order.mode, order.tell, order.status)
        jobs = [worker.supervise() for worker in workers]
        try:
            await _first_to_end(signals.stop.wait(), _beat(fleet), _follow(watch, order, fleet), *jobs)
        finally:
            killed = await _shut_down(workers, signals, policy.spec.drain_seconds + EXIT_S, order.tell)
            await fleet.close()
        text = f"stopped; logs, settings and decisions are in {order.wishes.folder}"
        order.tell(Event(Happening.STOPPED, text, facts={"folder": str(order.wishes.folder)}))
        return EXIT_KILLED if killed else 0


class _Signals:
    """The first SIGINT or SIGTERM asks for a drain, the next one ends it."""

    def __init__(self) -> None:
        self.stop, self.kill = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._caught)

    def _caught(self) -> None:
        (self.kill if self.stop.is_set() else self.stop).set()


async def _first_to_end(*jobs: Awaitable[object]) -> None:
    """Raises what that one raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _beat(fleet: Fleet) -> None:
    while True:
        began_s = time.monotonic()
        await fleet.beat(began_s)
        await asyncio.sleep(max(0.0, BEAT_S - (time.monotonic() - began_s)))


async def _follow(watch: FollowedFile, order: Order, fleet: Fleet) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        if not watch.changed():
            continue
        try:
            fleet.follow(order.read())
        except Refusal as refusal:
            order.tell(Event(Happening.REFUSED, f"edit refused, the policy stays as it was: {refusal}"))


async def _shut_down(workers: list[Worker], signals: _Signals, within_s: float, tell: Tell) -> bool:
    """Lets the workers drain; whether some had to be killed on demand."""
    running = [worker for worker in workers if worker.running]
    try:
        if running and signals.stop.is_set():
            words = f"stopping: {within_s:.0f} s at most to finish what is in flight; a second signal kills"
            tell(Event(Happening.STOPPING, words, facts={"withinSeconds": within_s}))
        for worker in workers:
            worker.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_first_to_end(signals.kill.wait(), _all_ended(workers)), within_s)
    finally:
        left = [worker.launch.name for worker in workers if worker.running]
        for worker in workers:
            await worker.kill()
    if left:
        tell(Event(Happening.STOPPING, f"killed: {', '.join(left)}", facts={"killed": left}))
    return bool(left) and signals.kill.is_set()


async def _all_ended(workers: list[Worker]) -> None:
    for worker in workers:
        await worker.ended()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise CannotStart(f"{folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotStart(f"{folder}: another `tailkeeper run` uses it; --dir takes another folder") from None
        yield
