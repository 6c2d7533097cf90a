"""`tailkeeper plan`: what keeps the SLA, with the fewest workers."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailkeeper.cli.errors import UserError
from tailkeeper.cli.plan import numbers
from tailkeeper.cli.plan_candidates import Candidate, Outcome, cheapest
from tests.unit.cli.calling import POLICY, Tailkeeper

LINE = ("--model", "a=0.5ms,c=6ms")
TAILKEEPER = Path(sys.executable).with_name("tailkeeper")


def test_more_load_than_a_window_can_do_is_too_slow_and_the_cheapest_that_keeps_up_is_named(
    tailkeeper: Tailkeeper,
) -> None:
    """1500/s: b/(6 + b/2) ms is over it from 36 on with one worker, from 7.2 on with two."""
    policy = tailkeeper.file(POLICY.replace("windowIdle: 32", "windowIdle: 64"))
    arguments = ("-a", "poisson:1500", "--windows", "4,8,32,64", "--replicas", "1-2", "--requests", 400)
    called = tailkeeper("plan", policy, *LINE, *arguments, "-o", "json", "--price-per-hour", 2)
    assert called.code == 0, called.err
    found = called.json()
    keeping = {(one["replicas"], one["window"]) for one in found["candidates"] if one["keepsUp"]}
    assert keeping == {(1, 64), (2, 8), (2, 32), (2, 64)}
    assert found["cheapest"] == {"replicas": 1, "window": 64}
    one = next(each for each in found["candidates"] if each["replicas"] == 2 and each["window"] == 64)
    assert one["meets"]
    assert one["costPerHour"] == 4
    assert one["p50Ms"] <= one["p95Ms"] <= one["p99LowMs"] <= one["p99Ms"] <= one["p99HighMs"]
    assert set(one["waitsMs"]) == {"hold", "busy", "slot", "exec"}
    assert 0 < one["busyFraction"] <= 1
    table = tailkeeper("plan", policy, *LINE, *arguments).out
    assert "★ cheapest: 1 replicas, window 64" in table
    assert "too slow" in table


def test_when_nothing_keeps_the_sla_it_is_1_and_says_what_would_help(tailkeeper: Tailkeeper) -> None:
    called = tailkeeper(
        "plan", tailkeeper.file(POLICY), *LINE, "-a", "poisson:4000", "--replicas", 1, "--requests", 100
    )
    assert called.code == 1
    assert "no candidate keeps up with the load, so more --replicas are needed" in called.out


def test_a_recorded_load_and_tokens(tailkeeper: Tailkeeper) -> None:
    policy = tailkeeper.file(POLICY.replace("engine: encoder", "engine: causal-lm").replace("Ms: 200", "Ms: 20000"))
    rows = "\n".join(f"{second / 2},interactive,20,5" for second in range(60))
    load = tailkeeper.file(f"arrival_s,tier,prompt_tokens,output_tokens\n{rows}\n", "load.csv")
    model = ("--model", "alpha=20ms,beta=0.1ms,gamma=2ms")
    called = tailkeeper("plan", policy, *model, "-a", load, "--replicas", 1, "--windows", "1,4", "-o", "json")
    assert called.code == 0, called.err
    assert (called.json()["seeds"], called.json()["requests"]) == (1, 60)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_chart_is_drawn(tailkeeper: Tailkeeper, ending: str) -> None:
    chart = tailkeeper.folder / f"curve.{ending}"
    arguments = ("-a", "poisson:300", "--replicas", "1,2", "--requests", 50, "--chart", chart)
    assert tailkeeper("plan", tailkeeper.file(POLICY), *LINE, *arguments).code == 0
    assert chart.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-a", "poisson:300", "--replicas", "4-1"), "--replicas 4-1: 4-1 is not between 1 and 1000, low to high"),
        (("-a", "poisson:300", "--windows", "many"), "--windows many: write numbers"),
        (("-a", "poisson:300", "--replicas", "1-1000"), "6000 candidates, over 2000"),
        (("-a", "poisson:300", "--chart", "x.gif"), "write FILE.png or FILE.svg"),
        (("-a", "poisson:300", "--chart", "/no/where/x.png"), "there is no folder /no/where"),
        (("-a", "weibull:300"), "weibull"),
        (("-a", "gone.csv"), "gone.csv: No such file"),
        (("-a", "poisson:300", "--instance", "big"), "no instance big; there are small"),
    ],
)
def test_a_mistake_is_one_line_and_2(tailkeeper: Tailkeeper, arguments: tuple[str, ...], says: str) -> None:
    called = tailkeeper("plan", tailkeeper.file(POLICY), *LINE, *arguments)
    assert (called.code, called.out) == (2, "")
    assert says in called.err
    assert called.err.count("\n") == 1


def test_numbers() -> None:
    assert numbers("--replicas", "4,1-2, 2", 9) == [1, 2, 4]
    with pytest.raises(UserError):
        numbers("--replicas", "0", 9)


def outcome(replicas: int, window: int, p99_ms: float, meets: bool) -> Outcome:
    values = dict.fromkeys((each.name for each in dataclasses.fields(Outcome)), 0.0)
    changes = {"candidate": Candidate(replicas, window), "p99_high_ms": p99_ms, "meets": meets}
    return Outcome(**{**values, **changes})  # type: ignore[arg-type]


def test_cheapest_is_the_fewest_workers_and_then_the_shortest_tail() -> None:
    every = [outcome(1, 8, 50, False), outcome(2, 8, 90, True), outcome(2, 16, 80, True), outcome(3, 8, 10, True)]
    assert cheapest(every) is every[2]
    assert cheapest(every[:1]) is None


def test_an_interrupt_leaves_no_process_behind(tailkeeper: Tailkeeper) -> None:
    arguments = ("plan", tailkeeper.file(POLICY), *LINE, "-a", "poisson:900", "--replicas", "1-100")
    running = subprocess.Popen(
        [TAILKEEPER, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    until_s = time.monotonic() + 60
    while not children.read_text() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert children.read_text() or len(os.sched_getaffinity(0)) == 1
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, b"", b"")
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)
