"""`tailkeeper plan POLICY.yaml`: how many workers, and which window, keep the SLA under a forecast load."""

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tailkeeper.api.settings import Settings
from tailkeeper.cli import bench_options as options
from tailkeeper.cli.errors import EXIT_FAILED, UserError
from tailkeeper.cli.plan_candidates import MOST, Candidate, Load, Outcome, Task, cheapest, evaluate_all
from tailkeeper.cli.plan_report import check_chart, draw, table, to_json
from tailkeeper.cli.policy_file import instance_settings, read_policy
from tailkeeper.model.loads import LoadError
from tailkeeper.simulate.model import EngineModel, ModelError, parse_model

REQUESTS_OF_PASSES: Final = 600
REQUESTS_OF_ITERATIONS: Final = 60
"""Of each seed. Three seeds of them take .05 to .2 s a candidate, so that 200 take under 20 s on two cores. An
iteration costs as much to simulate as a pass, and a request takes many."""
MOST_WINDOW: Final = 65_536


class Format(StrEnum):
    """How it is printed."""

    TABLE = "table"
    JSON = "json"


def plan(
    policy: Annotated[Path, typer.Argument(metavar="POLICY.yaml", show_default=False)],
    arrivals: Annotated[
        list[str],
        typer.Option(
            "--arrivals",
            "-a",
            metavar="FILE.csv|[TIER:]PROCESS",
            help="The load of all workers together: a recorded one, or a process as `tailkeeper simulate` has them "
            "(poisson:400, gamma:400,2, mmpp:400); again for more.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="COEFFICIENTS", help="As for `tailkeeper simulate`.", show_default=False),
    ],
    replicas: Annotated[str, typer.Option(metavar="LIST", help="1-8, or 1,2,4.")] = "1-8",
    windows: Annotated[
        str | None, typer.Option(metavar="LIST", help="Likewise; else powers of two up to windowIdle.")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="The instance of the policy; else its first.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Of one worker with its GPU.")] = None,
    chart: Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw p99 over the window.")] = None,
    prompt_tokens: Annotated[
        list[str] | None,
        typer.Option(metavar="[TIER=]SIZE", help="TOKENS, uniform:LOW,HIGH or lognormal:P50,P99; else 16."),
    ] = None,
    output_tokens: Annotated[list[str] | None, typer.Option(metavar="[TIER=]SIZE", help="Likewise; else 16.")] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, help="Most requests that the engine's memory holds.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that its KV memory holds.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Loads that each candidate is tried with.")] = 3,
    max_requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            min=10,
            help=f"Of each of them; else {REQUESTS_OF_PASSES}, or {REQUESTS_OF_ITERATIONS} where tokens are made.",
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="table or json.")] = Format.TABLE,
) -> None:
    """Choose replicas and window: the tail, the waits and the cost of each, by the worker's own scheduler simulated.

    Exit status: 0 something keeps the SLA, 1 nothing does, 2 not possible as asked.

    Example: tailkeeper plan examples/online-embeddings.yaml --model a=0.5ms,c=6ms --arrivals poisson:1500
    """
    check_chart(chart)
    settings = instance_settings(read_policy(policy), instance)
    try:
        engine = parse_model(model, max_batch, kv_tokens)
        load = _load(settings, arrivals, prompt_tokens, output_tokens)
    except (LoadError, ModelError) as error:
        raise UserError(str(error)) from None
    wanted = windows or ",".join(map(str, _powers(settings.window_idle)))
    candidates = [
        Candidate(count, window)
        for count in numbers("--replicas", replicas, 1_000)
        for window in numbers("--windows", wanted, MOST_WINDOW)
    ]
    if len(candidates) > MOST:
        raise UserError(f"{len(candidates)} candidates, over {MOST}: name fewer --replicas or --windows")
    count = max_requests or _default_requests(engine, load)
    runs = seeds if load.made else 1
    tasks = [Task(candidate, settings, engine, load, runs, count) for candidate in candidates]
    progress = _Progress(len(tasks))
    outcomes = evaluate_all(tasks, _cores(), progress.add)
    progress.end()
    if chart is not None:
        draw(outcomes, settings.sla_ms, chart)
    typer.echo(
        to_json(outcomes, settings.sla_ms, price_per_hour, runs, count)
        if output is Format.JSON
        else table(outcomes, settings.sla_ms, price_per_hour)
    )
    if cheapest(outcomes) is None:
        raise typer.Exit(EXIT_FAILED)


def numbers(option: str, text: str, most: int) -> list[int]:
    """Reads `1-4,8`: sorted, each once. Raises UserError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"{option} {text}: write numbers, such as 1-8 or 1,2,4")
        low, high = int(first), int(last or first)
        if not 1 <= low <= high <= most:
            raise UserError(f"{option} {text}: {part.strip()} is not between 1 and {most}, low to high")
        found |= set(range(low, high + 1))
    return sorted(found)


def _powers(most: int) -> list[int]:
    """Of two, and the most itself."""
    return sorted({most, *(2**power for power in range(most.bit_length()))})


def _default_requests(engine: EngineModel, load: Load) -> int:
    if not load.made:
        return len(load.recorded)
    return REQUESTS_OF_PASSES if engine.line is not None else REQUESTS_OF_ITERATIONS


def _load(
    settings: Settings, arrivals: list[str], prompt_tokens: list[str] | None, output_tokens: list[str] | None
) -> Load:
    tiers = [tier.name for tier in settings.tiers]
    made = [
        text if text.partition(":")[0] in tiers else f"{settings.default_tier}:{text}"
        for text in arrivals
        if not text.endswith(".csv")
    ]
    rows = tuple(row for text in arrivals if text.endswith(".csv") for row in options.trace(Path(text), 1.0, 1.0))
    for row in rows:
        if row.tier not in tiers:
            raise LoadError(f"tier {row.tier!r} of the recorded load is not in the policy; it has {', '.join(tiers)}")
    if not rows and not made:
        raise LoadError("no request in the recorded load")
    return Load(
        options.loads(made, prompt_tokens, output_tokens, None, None),
        tuple(sorted(rows, key=lambda row: row.arrival_s)),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class _Progress:
    """How many are done, on standard error where it is a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._began_s = total, 0, time.monotonic()
        self._shown = sys.stderr.isatty()

    def add(self, _: Outcome) -> None:
        self._done += 1
        if self._shown:
            left_s = (time.monotonic() - self._began_s) / self._done * (self._total - self._done)
            print(f"\r{self._done}/{self._total} candidates, {left_s:.0f} s left ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
