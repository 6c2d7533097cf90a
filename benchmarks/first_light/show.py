"""Table and picture: for people who would rather look than read."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from benchmarks.first_light.compare import Run
from benchmarks.first_light.planted import Breach

_COLUMNS: Final = (
    ("mean", "mean_ms", "ms"),
    ("p95", "p95_ms", "ms"),
    ("p99", "p99_ms", "ms"),
    ("batch wait p99", "batch_wait_p99_ms", "ms"),
    ("waiting p99", "waiting_p99_ms", "ms"),
    ("late", "late", "%"),
    ("timeouts", "timeouts", "%"),
    ("busy", "busy_fraction", "%"),
    ("efficiency", "efficiency", "%"),
    ("batch tier/s", "batch_per_s", ""),
)
_STARTED: Final = time.monotonic()


def say(text: str) -> None:
    """One line with the time since the start."""
    print(f"\033[1m{time.monotonic() - _STARTED:6.0f} s  {text}\033[0m", flush=True)


def cell(value: float | None, unit: str) -> str:
    """A number as people read it."""
    if value is None:
        return "-"
    if unit == "%":
        return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.0f} %"
    return f"{value:.0f}"


def table(rows: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """One line a way."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("interactive tier, ms")
    for name, _, _ in _COLUMNS:
        shown.add_column(name, justify="right")
    for name, row in rows.items():
        shown.add_row(name, *(cell(row[key], unit) for _, key, unit in _COLUMNS))
    Console(width=150).print(shown)


def picture(file: Path, sla_ms: int, runs: Sequence[Run], breaches: Mapping[str, Breach]) -> None:
    """p99 and window over time: the ways side by side, then the planted ceiling with the tuner off and on."""
    figure, axes = plt.subplots(2, 2, figsize=(13, 7), constrained_layout=True, sharex="col")
    for run in runs:
        _lines(axes[:, 0], run, run.way.title)
    for name, breach in breaches.items():
        _lines(axes[:, 1], breach.run, name)
    axes[0, 0].set_title("one load, five ways to batch")
    axes[0, 1].set_title("a ceiling of 1 planted by hand, then 4 times the load")
    for axis in axes[0]:
        axis.axhline(sla_ms, color="black", linestyle="--", linewidth=1)
        axis.annotate("SLA", (0, sla_ms), fontsize=8, va="bottom")
        axis.set_yscale("log")
        axis.set_ylabel("p99 of the interactive tier, ms (1 s)")
        axis.legend(fontsize=8)
    for axis in axes[1]:
        axis.set_yscale("log", base=2)
        axis.set_ylabel("window, requests")
        axis.set_xlabel("seconds")
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _lines(axes: Any, run: Run, name: str) -> None:
    series = next(s for s in run.report.tier("interactive").series if s.bucket_s == min(_buckets(run)))
    times = [point.start_s for point in series.points]
    (line,) = axes[0].plot(times, [point.p99_ms for point in series.points], label=name, linewidth=1.2)
    begun_s = run.seen[0].time_s
    axes[1].plot([c.time_s - begun_s for c in run.seen], [c.window for c in run.seen], color=line.get_color())


def _buckets(run: Run) -> list[float]:
    return [series.bucket_s for series in run.report.tier("interactive").series]
