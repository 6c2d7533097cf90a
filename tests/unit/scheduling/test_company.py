"""Clients that send their next request after the last answer: holding for company that cannot come is worth nothing."""

import math

import pytest

from gpu_worker.scheduling import create
from gpu_worker.scheduling.interface import Request
from tests.unit.scheduling.drive import Drive, settings, taught, tier
from tests.unit.scheduling.streams import Streams

THINK_S = 0.001
PATIENT = [tier("interactive", 50, max_hold_ms=1), tier("batch", 60_000)]


def seconds(size: int) -> float:
    return 0.006 + 0.0005 * size


def closed_loop(clients: int, calls: int) -> list[list[float]]:
    """Seconds of hold of every round of calls."""
    scheduler = create(settings(tiers=PATIENT), 0.0)
    taught(scheduler, seconds)
    run = Drive(scheduler, seconds)
    holds = []
    for call in range(calls):
        names = [f"{client}/{call}" for client in range(clients)]
        at_s = run.now_s + THINK_S
        run.submit(*[Request(name, "batch", at_s + 1e-4 * n) for n, name in enumerate(names)])
        run.until(math.inf)
        run.now_s = max(run.answer(name).ended_s for name in names)
        holds.append([run.answer(name).waits.hold_s for name in names])
    return holds


@pytest.mark.parametrize("clients", [1, 3, 20])
def test_a_closed_loop_is_held_a_few_times_and_never_again(clients: int) -> None:
    holds = [max(of_round) for of_round in closed_loop(clients, 60)]
    assert max(holds) <= 0.1
    assert max(holds[20:]) <= 0.001 * clients


def test_company_that_does_come_is_waited_for_again() -> None:
    scheduler = create(settings(tiers=PATIENT), 0.0)
    taught(scheduler, seconds)
    run = Drive(scheduler, seconds)
    for call in range(30):
        run.submit(Request(f"alone/{call}", "batch", run.now_s + THINK_S))
        run.until(math.inf)
        run.now_s = run.answer(f"alone/{call}").ended_s
    before = len(run.steps)
    run.submit(*[Request(f"open/{n}", "batch", run.now_s + 0.003 * n) for n in range(1, 400)])
    run.until(math.inf)
    sizes = [len(step.work) for _, step in run.steps[before:]]
    assert sum(sizes) / len(sizes) >= 8


def test_a_lone_stream_that_calls_again_and_again_is_not_held() -> None:
    tiers = [tier("interactive", 20_000, max_hold_ms=400), tier("batch", 600_000)]
    run = Streams(settings(mode="continuous", window_idle=16, tiers=tiers))
    holds = []
    for _ in range(30):
        name = run.submit("batch", at_s=run.now_s + THINK_S)
        run.until(math.inf)
        run.now_s = run.answer(name).ended_s
        holds.append(run.answer(name).waits.hold_s)
    assert max(holds[15:]) == 0.0
    assert sum(holds) <= 60.0
