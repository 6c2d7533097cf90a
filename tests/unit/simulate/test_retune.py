"""The operator's tuner on virtual workers that run the worker's own scheduler."""

import itertools
from random import Random

import pytest

from tailkeeper.api.enums import RetuneMode, StillReason
from tailkeeper.api.levers import parse_moves
from tailkeeper.control.freeze import Situation
from tailkeeper.control.move import Bounds
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import parse_arrivals
from tailkeeper.simulate.model import parse_model
from tailkeeper.simulate.retune import Planted, Retuner
from tailkeeper.simulate.run import Simulated, simulate
from tests.unit.control.loop import slow_settings

MODEL = parse_model("a=2ms,c=24ms")
STEP = "step:25,4,100"
SMALL = Planted(70.0, parse_moves("ceiling=2"))


def load(text: str, seconds: float, seed: int = 1) -> list[LoadRequest]:
    times = itertools.takewhile(lambda at_s: at_s < seconds, parse_arrivals(text).times(Random(seed)))
    return [LoadRequest(at_s, "interactive", 1, 1) for at_s in times]


def run(
    text: str,
    seconds: float,
    *planted: Planted,
    mode: RetuneMode = RetuneMode.AUTO,
    interval_s: float = 1.0,
    scrape_s: float | None = None,
    workers: int = 1,
    seed: int = 1,
) -> tuple[Simulated, Retuner]:
    spec = slow_settings()
    tuner = Retuner(
        spec,
        Bounds(spec),
        interval_s=interval_s,
        scrape_s=scrape_s,
        situation=Situation(mode=mode),
        planted=planted,
    )
    return simulate(spec, load(text, seconds, seed), MODEL, tuner=tuner, workers=workers), tuner


def test_a_healthy_inner_loop_needs_no_move_at_a_step_to_four_times_the_load() -> None:
    found, _ = run(STEP, 160)
    assert found.moves == ()
    assert found.all.over_sla_ratio == 0


@pytest.mark.parametrize(("interval_s", "scrape_s"), [(1.0, None), (5.0, None), (5.0, 15.0)])
def test_a_ceiling_left_too_small_is_opened(interval_s: float, scrape_s: float | None) -> None:
    found, _ = run(STEP, 200, SMALL, interval_s=interval_s, scrape_s=scrape_s)
    assert [(move.cause, move.after) for move in found.moves] == [("Manual", "ceiling=2"), ("Capacity", "ceiling=64")]
    assert found.moves[1].time_s - 100 <= (15 if scrape_s is None else 30)


def test_several_workers_are_judged_as_one_instance() -> None:
    found, tuner = run("step:75,4,100", 160, SMALL, workers=3)
    assert [move.cause for move in found.moves] == ["Manual", "Capacity"]
    assert tuner.decisions[-1][1].replicas_needed == 1


def test_off_leaves_it_as_it_is() -> None:
    off, tuner = run(STEP, 160, SMALL, mode=RetuneMode.OFF)
    auto, _ = run(STEP, 160, SMALL)
    assert [move.cause for move in off.moves] == ["Manual"]
    assert off.all.over_sla_ratio > 5 * auto.all.over_sla_ratio
    assert tuner.decisions[-1][1].still is StillReason.PAUSED


def test_the_same_load_gives_the_same_decisions() -> None:
    one, two = (run(STEP, 140, SMALL)[1].decisions for _ in range(2))
    assert one == two
