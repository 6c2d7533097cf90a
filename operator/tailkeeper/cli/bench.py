"""`tailkeeper bench URL`: an open-loop load, and the tail of its latency."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailkeeper.bench.plan import Api, Plan, Target
from tailkeeper.cli import bench_options as options
from tailkeeper.cli.errors import EXIT_FAILED, UserError
from tailkeeper.model.loads import LoadError

# numpy, pydantic and rich are imported where they are used: help and wrong input are answered before they could be.
if TYPE_CHECKING:
    from tailkeeper.bench.measured import Measured
    from tailkeeper.bench.progress import Progress
    from tailkeeper.bench.report import Report
    from tailkeeper.bench.thresholds import Threshold

EXIT_INTERRUPTED: Final = 130
"""As shells have it: ended by Ctrl-C, with nothing to report."""
EXIT_NOT_MEASURED: Final = 3
"""The generator did not keep up, so thresholds were not judged."""


class Output(StrEnum):
    """How the report is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    LINE = "line"


def bench(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="http://HOST:PORT with --api, or the whole URL of an API.", show_default=False
        ),
    ],
    tier: Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            "-t",
            metavar="NAME:ARRIVALS",
            help="A tier and its arrivals; again for more. constant:RATE, poisson:RATE, gamma:RATE,CV, "
            "mmpp:RATE[,FACTOR,BURST_S,QUIET_S], step:RATE,FACTOR,AT_S[,BACK_S], onoff:RATE,ON_S,OFF_S[,OFF_MAX_S].",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Send a recorded load: arrival_s,tier,prompt_tokens,output_tokens[,deadline_ms,tenant].",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(help="Send the trace this many times as fast.")] = 1.0,
    scale_tokens: Annotated[float, typer.Option(help="Multiply the trace's sizes by this.")] = 1.0,
    api: Annotated[Api | None, typer.Option(help="The API, where the URL does not say it.", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name; else the first that the server lists.", show_default=False)
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", "-d", metavar="TIME", help="How long to measure: 90, 90s, 5m; else 30 s or the whole trace."
        ),
    ] = None,
    warmup: Annotated[str, typer.Option(metavar="TIME", help="Load before that, which is not counted.")] = "0",
    max_requests: Annotated[int, typer.Option(help="Cut the load there.")] = 1_000_000,
    prompt_tokens: Annotated[
        list[str] | None,
        typer.Option(metavar="[TIER=]SIZE", help="TOKENS, uniform:LOW,HIGH or lognormal:P50,P99; else 16."),
    ] = None,
    output_tokens: Annotated[
        list[str] | None, typer.Option(metavar="[TIER=]SIZE", help="Most tokens of an answer, likewise; else 16.")
    ] = None,
    sla_ms: Annotated[list[str] | None, typer.Option(metavar="[TIER=]MS", help="Answers over this are late.")] = None,
    timeout_ms: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TIER=]MS", help="Hang up after this; counts as the latency of a missing answer. Else 30000."
        ),
    ] = None,
    deadline_ms: Annotated[
        list[str] | None, typer.Option(metavar="[TIER=]MS", help="Tell the server this deadline.")
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(metavar="[TIER=]NAME", help="Tell the server this tenant.")
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Send these in turn: FILE.jsonl has a request body a line, others a text a line.",
        ),
    ] = None,
    stream: Annotated[bool, typer.Option(help="Chat and completions: answers token by token.")] = True,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Sent with every request.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not check the server's certificate.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed sends the same load.")] = 0,
    processes: Annotated[int, typer.Option(help="Sending processes; one does some thousand requests a second.")] = 1,
    max_send_lag_ms: Annotated[
        float, typer.Option(help="When 1 % leave later than this, the load was not the one asked for.")
    ] = 10.0,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Exit 1 on [TIER.]METRIC>NUMBER, such as interactive.p99>1000."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="What to print.")] = Output.TABLE,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw p99 over time.")] = None,
    raw: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write every request.")] = None,
    probe: Annotated[bool, typer.Option(help="Send one request of each tier first, and stop if it is refused.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Send an open-loop load to a URL and measure the tail of its latency.

    Requests leave at their intended times, whatever became of those before, and latency counts from there.
    Percentiles are over all requests sent; a missing answer counts as its timeout.

    Exit codes: 0; 1: a --fail-if was crossed; 2: wrong input; 3: not sent in time, so --fail-if was not judged.

    Example: tailkeeper bench http://localhost:8000 --api embeddings --tier interactive:poisson:40 --sla-ms 50
    """
    try:
        recorded = options.trace(trace, speed, scale_tokens) if trace else ()
        loads = options.loads(tier or [], prompt_tokens, output_tokens, deadline_ms, tenant)
        texts, bodies = options.inputs(input_file) if input_file else ((), ())
        names = [load.tier for load in loads] + [r.tier for r in recorded]
        plan = Plan(
            target=Target(url, api, model, stream, options.headers(header), verify_tls=not insecure),
            loads=loads,
            trace=recorded,
            limits=options.limits(names, sla_ms, timeout_ms),
            duration_s=options.duration_s(duration, loads, recorded),
            warmup_s=options.seconds(warmup),
            max_requests=max_requests,
            seed=seed,
            processes=processes,
            inputs=bodies,
            texts=texts,
            max_send_lag_ms=max_send_lag_ms,
            probe=probe,
        )
        thresholds = _thresholds(plan, fail_if or ())
    except LoadError as error:
        raise UserError(str(error)) from None
    _check_writable(plot, raw)
    measured, report = _measure(plan, quiet)
    _write(report, output)
    _write_files(plan, measured, report, plot, raw)
    raise typer.Exit(_judge(report, thresholds))


def _thresholds(plan: Plan, texts: Sequence[str]) -> "list[Threshold]":
    from tailkeeper.bench.thresholds import parse_threshold

    return [parse_threshold(text, plan.tiers) for text in texts]


def _measure(plan: Plan, quiet: bool) -> "tuple[Measured, Report]":
    from tailkeeper.bench.probe import TargetError
    from tailkeeper.bench.run import NotStartedError, SenderDiedError
    from tailkeeper.bench.summary import summarize

    try:
        with _progress(plan, quiet) as show:
            measured = asyncio.run(_until_interrupted(plan, show))
        return measured, summarize(plan, measured)
    except (LoadError, TargetError) as error:
        raise UserError(str(error)) from None
    except NotStartedError as error:
        raise UserError(str(error), EXIT_INTERRUPTED) from None
    except SenderDiedError as error:
        raise UserError(f"{error}; this is a fault of ours, please report it", EXIT_NOT_MEASURED) from None


async def _until_interrupted(plan: Plan, show: "Callable[[Progress], None] | None") -> "Measured":
    """Ctrl-C and SIGTERM end the run early and keep what it has; a second one ends it at once."""
    from tailkeeper.bench.run import measure

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def interrupted() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    return await measure(plan, show, stop)


@contextlib.contextmanager
def _progress(plan: Plan, quiet: bool) -> "Iterator[Callable[[Progress], None] | None]":
    """A line on standard error that lives, when that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(
        Text("looking at the target…"), console=Console(stderr=True), transient=True, refresh_per_second=4
    ) as live:
        yield lambda progress: live.update(Text(_progress_line(plan, progress)))


def _progress_line(plan: Plan, progress: "Progress") -> str:
    part = f"{min(progress.elapsed_s, progress.total_s):.0f}/{progress.total_s:g} s"
    if progress.elapsed_s < plan.warmup_s:
        part += " (warm-up)"
    tiers = "  ".join(
        f"{t.tier}: p99 {'–' if t.p99_ms is None else format(t.p99_ms, '.0f')} ms, {t.late}/{t.ended} late"
        for t in progress.tiers
    )
    return f"{part}  sent {progress.due}  in flight {progress.in_flight}  last 5 s: {tiers}"


def _write(report: "Report", output: Output) -> None:
    if output is Output.JSON:
        typer.echo(report.to_json())
        return
    if output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(report.model_dump(mode="json", by_alias=True), sort_keys=False), nl=False)
        return
    from tailkeeper.bench import table

    if output is Output.LINE:
        for line in table.lines(report):
            typer.echo(line)
        return
    from rich.console import Console

    # Not cut to 80 columns where there is no terminal: a log has no width.
    table.show(report, Console() if sys.stdout.isatty() else Console(width=160))


def _write_files(plan: Plan, measured: "Measured", report: "Report", plot: Path | None, raw: Path | None) -> None:
    if raw is not None:
        from tailkeeper.bench.raw import write_raw

        with raw.open("w", encoding="utf-8", newline="") as file:
            write_raw(plan, measured, file)
    if plot is not None:
        from tailkeeper.bench.plot import plot as draw

        draw(report, plot)


def _judge(report: "Report", thresholds: "Sequence[Threshold]") -> int:
    from tailkeeper.bench.thresholds import crossed

    if not report.generator.kept_up:
        typer.echo(f"error: not the load asked for: {report.generator.why_not}", err=True)
        return EXIT_NOT_MEASURED if thresholds else 0
    failed = crossed(report, thresholds)
    for one in failed:
        typer.echo(f"failed: {one}", err=True)
    return EXIT_FAILED if failed else 0


def _check_writable(plot: Path | None, raw: Path | None) -> None:
    """Fail before the load, not after it."""
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"{plot}: a picture is .png, .svg or .pdf")
    for path in (plot, raw):
        if path is not None:
            try:
                path.open("ab").close()
            except OSError as error:
                raise UserError(f"{path}: {error.strerror}") from None
