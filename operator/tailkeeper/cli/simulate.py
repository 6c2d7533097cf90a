"""`tailkeeper simulate POLICY.yaml`: what a policy does to a load, without a cluster, a GPU, or waiting."""

import random
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from tailkeeper.api.settings import Settings
from tailkeeper.cli import bench_options as options
from tailkeeper.cli.errors import UserError
from tailkeeper.cli.policy_file import instance_settings, read_policy
from tailkeeper.model.load_mix import requests
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError
from tailkeeper.simulate.model import ModelError, parse_model
from tailkeeper.simulate.report import table, to_json
from tailkeeper.simulate.run import simulate as run

DEFAULT_REQUESTS: Final = 20_000


def simulate(
    policy: Annotated[Path, typer.Argument(metavar="POLICY.yaml", show_default=False)],
    arrivals: Annotated[
        list[str],
        typer.Option(
            "--arrivals",
            "-a",
            metavar="FILE.csv|[TIER:]PROCESS",
            help="A recorded load, or a process; again for more. constant:RATE, poisson:RATE, gamma:RATE,CV, "
            "mmpp:RATE[,FACTOR,BURST_S,QUIET_S], step:RATE,FACTOR,AT_S[,BACK_S], onoff:RATE,ON_S,OFF_S[,OFF_MAX_S]. "
            "Without TIER: the default tier.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="COEFFICIENTS",
            help="a=0.5ms,c=6ms (a batch takes c + a·b), or alpha=60ms,beta=2ms,gamma=2.7ms[,delta=…] (an iteration "
            "takes α + β·prefill tokens + γ·decoding sequences + δ·KV tokens).",
            show_default=False,
        ),
    ],
    instance: Annotated[str | None, typer.Option(help="The instance of the policy; else its first.")] = None,
    instances: Annotated[int, typer.Option(min=1, max=1000, help="Workers that share the load.")] = 1,
    duration: Annotated[
        str | None, typer.Option("--duration", "-d", metavar="TIME", help="Virtual time of a process: 90, 90s, 5m.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option("--requests", help=f"Cut the load there; else {DEFAULT_REQUESTS}, or the whole file.")
    ] = None,
    prompt_tokens: Annotated[
        list[str] | None,
        typer.Option(metavar="[TIER=]SIZE", help="TOKENS, uniform:LOW,HIGH or lognormal:P50,P99; else 16."),
    ] = None,
    output_tokens: Annotated[list[str] | None, typer.Option(metavar="[TIER=]SIZE", help="Likewise; else 16.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same load.")] = 0,
    speed: Annotated[float, typer.Option(help="A recorded load this many times as fast.")] = 1.0,
    scale_tokens: Annotated[float, typer.Option(help="A recorded load's sizes times this.")] = 1.0,
    max_batch: Annotated[int | None, typer.Option(min=1, help="Most requests that the engine's memory holds.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that its KV memory holds.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a load through the worker's own scheduler on a virtual clock, and report its tail.

    Percentiles are over all requests; a missing answer counts as its timeout.

    Example: tailkeeper simulate examples/online-embeddings.yaml --arrivals poisson:400 --model a=0.5ms,c=6ms
    """
    settings = instance_settings(read_policy(policy), instance)
    try:
        engine = parse_model(model, max_batch, kv_tokens)
        load = _load(
            settings, arrivals, duration, max_requests, prompt_tokens, output_tokens, seed, speed, scale_tokens
        )
    except (LoadError, ModelError) as error:
        raise UserError(str(error)) from None
    result = run(settings, load, engine, workers=instances)
    typer.echo(to_json(result) if json else table(result))


def _load(
    settings: Settings,
    arrivals: list[str],
    duration: str | None,
    max_requests: int | None,
    prompt_tokens: list[str] | None,
    output_tokens: list[str] | None,
    seed: int,
    speed: float,
    scale_tokens: float,
) -> list[LoadRequest]:
    tiers = [tier.name for tier in settings.tiers]
    files = [Path(text) for text in arrivals if text.endswith(".csv")]
    processes = [
        text if text.partition(":")[0] in tiers else f"{settings.default_tier}:{text}"
        for text in arrivals
        if not text.endswith(".csv")
    ]
    rows = [row for file in files for row in options.trace(file, speed, scale_tokens)]
    for row in rows:
        if row.tier not in tiers:
            raise LoadError(f"tier {row.tier!r} of the recorded load is not in the policy; it has {', '.join(tiers)}")
    if processes:
        loads = options.loads(processes, prompt_tokens, output_tokens, None, None)
        until_s = options.seconds(duration) if duration else (rows[-1].arrival_s if rows else float("inf"))
        made = requests(loads, lambda name: random.Random(f"{seed}/{name}"), until_s)
        most = max_requests or (DEFAULT_REQUESTS if until_s == float("inf") else None)
        rows += islice(made, most)
    rows.sort(key=lambda row: row.arrival_s)
    rows = rows[:max_requests] if max_requests else rows
    if not rows:
        raise LoadError("no request in that time: a longer --duration, or a higher rate")
    return rows
