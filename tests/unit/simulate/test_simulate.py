"""The simulator: right against theory, repeatable, and honest about what was asked for."""

import itertools
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailkeeper.cli.main import app
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import parse_arrivals
from tailkeeper.simulate.model import ModelError, parse_model
from tailkeeper.simulate.report import to_dict
from tailkeeper.simulate.run import simulate
from tests.unit.scheduling.drive import settings, tier

A, C = 0.0005, 0.006
MODEL = parse_model("a=0.5ms,c=6ms")


def load(text: str, count: int, seed: int = 1, tier: str = "interactive") -> list[LoadRequest]:
    times = itertools.islice(parse_arrivals(text).times(random.Random(seed)), count)
    return [LoadRequest(at_s, tier, 1, 1) for at_s in times]


def greedy(window: int = 60_000, deadline_ms: int = 100_000) -> object:
    return settings(
        window_dynamic=False, window_busy=window, window_idle=window, tiers=[tier("interactive", deadline_ms)]
    )


@pytest.mark.parametrize("rate", [100, 300, 800, 1400])
def test_mean_latency_of_greedy_batching_is_what_theory_says(rate: int) -> None:
    """Poisson arrivals, T(b) = c + a·b, no limit on b: the mean is below min(φ0, φ1) and within 5 % of it."""
    load_a = rate * A
    phi0 = (A + C) / (2 * (1 - load_a)) * (1 + 2 * rate * C + (1 - rate * C) / (1 + load_a))
    phi1 = 1.5 * C / (1 - load_a) + A / 2 * (load_a + 2) / (1 - load_a**2)
    bound_ms = 1000 * min(phi0, phi1)
    mean_ms = simulate(greedy(), load(f"poisson:{rate}", 25_000), MODEL).all.mean_ms
    assert mean_ms == pytest.approx(bound_ms, rel=0.05)
    assert mean_ms <= bound_ms * 1.02


def test_the_same_seed_gives_the_same_result() -> None:
    one, two = (to_dict(simulate(settings(), load("gamma:150,3.7", 3000), MODEL)) for _ in range(2))
    assert one == two


def test_waits_add_up_to_the_latency() -> None:
    result = simulate(settings(), load("mmpp:500", 5000), MODEL)
    answered = sum(wait.sum for wait in result.all.wait_ms.values())
    assert answered <= result.all.mean_ms * result.all.count + 1
    calm = simulate(settings(), load("poisson:200", 3000), MODEL)
    assert sum(wait.sum for wait in calm.all.wait_ms.values()) == pytest.approx(calm.all.mean_ms * calm.all.count)


def test_a_missing_answer_counts_as_its_timeout() -> None:
    result = simulate(settings(mode="fixed"), load("constant:10", 20), MODEL)
    assert result.all.timeouts == 20
    assert result.all.p50_ms == pytest.approx(100)
    assert result.all.over_sla_ratio == 1.0


def test_the_tail_of_the_served_leaves_the_missing_out() -> None:
    result = simulate(settings(), load("poisson:2500", 5000), MODEL)
    assert result.all.timeouts > 500
    assert result.all.served_p99_ms <= 50.0 < result.all.p99_ms


def test_two_workers_halve_the_load() -> None:
    one = simulate(settings(), load("poisson:800", 8000), MODEL)
    two = simulate(settings(), load("poisson:1600", 16_000), MODEL, workers=2)
    assert two.busy_fraction == pytest.approx(one.busy_fraction, rel=0.1)
    assert two.all.over_sla_ratio == 0.0


@pytest.mark.parametrize("text", ["", "a=1", "a=1ms,c=x", "a=0,c=1", "alpha=1,beta=1", "a=1,c=1,c=2", "b=1,c=1"])
def test_a_model_that_says_nothing_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ModelError) as error:
        parse_model(text)
    assert "\n" not in str(error.value)


POLICY = """
apiVersion: tailkeeper.dev/v1alpha1
kind: BatchingPolicy
metadata: {name: p}
spec:
  batching: {tailLatencySlaMs: 50, windowIdle: 32, windowBusy: 8}
  instances:
  - {name: m, model: {name: m, engine: encoder, path: /m}}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def call(*arguments: object) -> tuple[int, str, str]:
    import typer

    from tailkeeper.cli.errors import UserError
    from tailkeeper.cli.simulate import simulate as command

    one = typer.Typer(pretty_exceptions_enable=False)
    one.command()(command)
    result = CliRunner().invoke(one, [str(argument) for argument in arguments])
    said = str(result.exception) if isinstance(result.exception, UserError) else result.stderr
    return result.exit_code, result.stdout, said


def test_the_json_has_the_names_that_are_api(policy: Path) -> None:
    code, out, _ = call(policy, "--arrivals", "poisson:200", "--model", "a=0.5ms,c=6ms", "--requests", 500, "--json")
    assert code == 0
    report = json.loads(out)
    one = {
        "count", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms", "over_sla_ratio", "timeouts", "shed",
        "goodput_per_s", "wait_ms", "waiting_p99_ms",
    }  # fmt: skip
    assert set(report["tiers"]["interactive"]) == set(report["all"]) == one
    assert set(report["all"]["wait_ms"]) == {"hold", "busy", "slot", "exec"}
    assert set(report["all"]["wait_ms"]["hold"]) == {"p99", "sum"}
    assert {"busy_fraction", "throughput_per_s", "mean_batch", "windows", "moves"} <= set(report)
    assert set(report["windows"][0]) == {"time", "window"}


def test_a_recorded_load_is_scaled(policy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,tier,prompt_tokens,output_tokens\n0,interactive,100,10\n10,interactive,100,10\n")
    code, out, _ = call(policy, "-a", trace, "-m", "a=1,c=1", "--speed", 10, "--json")
    assert code == 0
    assert json.loads(out)["seconds"] == 1.0


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("5,interactive,1,1\n4,interactive,1,1\n", 3),
        ("0,interactive,1,1\n-1,interactive,1,1\n", 3),
        ("nan,interactive,1,1\n", 2),
        ("0,interactive,x,1\n", 2),
    ],
)
def test_a_bad_trace_is_one_line_with_its_number(policy: Path, tmp_path: Path, rows: str, line: int) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,tier,prompt_tokens,output_tokens\n" + rows)
    _, _, said = call(policy, "-a", trace, "-m", "a=1,c=1")
    assert f"t.csv:{line}:" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-a", "poisson:0", "-m", "a=1,c=1"], "RATE"),
        (["-a", "none.csv", "-m", "a=1,c=1"], "none.csv"),
        (["-a", "poisson:1", "-m", "a=1"], "model"),
        (["-a", "poisson:1", "-m", "a=1,c=1", "--instance", "x"], "no instance x"),
        (["-a", "poisson:0.001", "-d", "1s", "-m", "a=1,c=1"], "no request"),
    ],
)
def test_a_mistake_is_one_line(policy: Path, arguments: list[str], word: str) -> None:
    _, _, said = call(policy, *arguments)
    assert word in said
    assert "\n" not in said


def test_the_command_is_registered() -> None:
    from tailkeeper.cli.main import COMMANDS

    assert COMMANDS["simulate"].where == "tailkeeper.cli.simulate:simulate"
    assert app is not None
