"""Liveness means work gets done (case O1), not that a process is there."""

import asyncio
import time

import pytest

from tailkeeper.app import health as health_module
from tailkeeper.app.health import Health
from tailkeeper.app.metrics import Metrics
from tailkeeper.app.watching import watcher_names


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(health_module, "time", clock)
    return clock


def new_health(tick_finished_s: float = 1000.0, namespaces: tuple[str, ...] = ()) -> Health:
    return Health(namespaces, 5.0, lambda: tick_finished_s, Metrics())


def test_a_tick_that_does_not_come_for_three_intervals_is_a_finding_after_the_start(clock: Clock) -> None:
    health = new_health(tick_finished_s=1000.0)
    clock.now_s = 1059.0
    assert health.findings() == []
    clock.now_s = 1061.0
    assert [finding.what for finding in health.findings()] == ["tick"]


def test_every_kind_is_watched_in_every_namespace() -> None:
    everywhere, two = watcher_names(()), watcher_names(("a", "b"))
    assert "watcher for pods.v1@None" in everywhere
    assert "watcher for deployments.v1.apps@a" in two
    assert len(two) == 2 * len(everywhere)


async def test_a_watch_that_ran_and_is_gone_is_a_finding_within_thirty_seconds(clock: Clock) -> None:
    names = sorted(watcher_names(()))
    watches = [asyncio.create_task(asyncio.sleep(60), name=name) for name in names]
    health = new_health()
    health.look(clock.now_s)
    assert health.findings() == []
    watches[0].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    health.look(clock.now_s)
    clock.now_s += 11.0
    (finding,) = health.findings()
    assert names[0] in finding.detail
    for watch in watches:
        watch.cancel()


async def test_watches_that_have_not_begun_yet_have_a_minute(clock: Clock) -> None:
    health = new_health(tick_finished_s=1050.0)
    health.look(clock.now_s)
    clock.now_s = 1050.0
    assert health.findings() == []
    clock.now_s = 1061.0
    assert {finding.what for finding in health.findings()} == {"watch"}


async def test_a_loop_that_was_blocked_is_a_finding() -> None:
    health = Health((), 5.0, time.monotonic, Metrics())
    beating = asyncio.create_task(health.run())
    await asyncio.sleep(0.3)
    assert health.findings() == []
    health.note_lag(time.monotonic(), 6.0)
    assert [finding.what for finding in health.findings()] == ["loop"]
    beating.cancel()
