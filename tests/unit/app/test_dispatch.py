"""Reconciles off the queue: side by side, each policy one at a time, and a bug in one is not the end of the others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tailkeeper.app.dispatch import Dispatcher
from tailkeeper.app.metrics import Metrics
from tailkeeper.reconcile.kube import ApiError
from tailkeeper.reconcile.reconciler import Outcome
from tailkeeper.reconcile.store import Key

ONE, TWO = Key("team", "one"), Key("team", "two")


@asynccontextmanager
async def dispatching(
    reconcile: Callable[[Key], Awaitable[Outcome]], metrics: Metrics | None = None
) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(reconcile, metrics or Metrics())
    tasks = [asyncio.create_task(dispatcher.run()) for _ in range(4)]
    try:
        async with asyncio.timeout(10):
            yield dispatcher
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_policies_run_side_by_side_and_each_one_at_a_time() -> None:
    running: list[Key] = []
    both, go_on, overlaps = asyncio.Event(), asyncio.Event(), []

    async def reconcile(key: Key) -> Outcome:
        overlaps.append(key in running)
        running.append(key)
        if set(running) == {ONE, TWO}:
            both.set()
        await go_on.wait()
        running.remove(key)
        return Outcome()

    async with dispatching(reconcile) as dispatcher:
        for key in (ONE, TWO, ONE, ONE):
            dispatcher.add(key)
        await both.wait()
        dispatcher.add(ONE)
        await asyncio.sleep(0.02)
        go_on.set()
        await asyncio.sleep(0.02)
    assert len(overlaps) == 3, "what was added while it ran makes it run once more"
    assert not any(overlaps)


async def test_a_bug_in_one_reconcile_is_counted_and_retried() -> None:
    attempts: dict[Key, int] = {ONE: 0, TWO: 0}
    done = asyncio.Event()
    metrics = Metrics()

    async def reconcile(key: Key) -> Outcome:
        attempts[key] += 1
        if key == ONE and attempts[ONE] == 1:
            raise RuntimeError("a bug")
        if key == TWO and attempts[TWO] == 1:
            raise ApiError(500, "InternalError", "etcd is tired")
        if min(attempts.values()) > 1:
            done.set()
        return Outcome()

    async with dispatching(reconcile, metrics) as dispatcher:
        dispatcher.add(ONE)
        dispatcher.add(TWO)
        await done.wait()
    exposition = metrics.exposition().decode()
    assert 'tailkeeper_operator_reconciles_total{result="error"} 1.0' in exposition
    assert 'tailkeeper_operator_reconciles_total{result="retry"} 1.0' in exposition


async def test_a_wish_to_look_again_is_kept() -> None:
    runs: list[float] = []
    twice = asyncio.Event()

    async def reconcile(key: Key) -> Outcome:
        runs.append(asyncio.get_running_loop().time())
        if len(runs) == 2:
            twice.set()
            return Outcome()
        return Outcome(again_s=0.1)

    async with dispatching(reconcile) as dispatcher:
        dispatcher.add(ONE)
        await twice.wait()
    assert runs[1] - runs[0] >= 0.1
