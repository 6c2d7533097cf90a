"""A plan as a table, as JSON, and as a chart."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailkeeper.cli.errors import UserError
from tailkeeper.cli.plan_candidates import Outcome, cheapest

CHART_ENDINGS = (".png", ".svg")


def table(outcomes: Sequence[Outcome], sla_ms: int, price_per_hour: float | None) -> str:
    """A row per candidate; ✓ keeps the SLA, ★ does so with the fewest workers."""
    best = cheapest(outcomes)
    heads = ["", "REPLICAS", "WINDOW", "P50", "P95", "P99", "(SEEDS)", "HOLD", "BUSY", "SLOT", "EXEC", "TIMEOUTS"]
    heads += ["ENGINE", "EFFICIENCY", *(["COST/H"] if price_per_hour is not None else [])]
    lines = [heads, *(_cells(one, one is best, price_per_hour) for one in outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    meeting = sum(one.meets for one in outcomes)
    text.append("")
    text.append(
        "times in ms; hold, busy, slot, exec: mean of a request by cause; engine: share of the time that it runs"
    )
    if best is None:
        text.append(f"none of {len(outcomes)} keeps the SLA of {sla_ms} ms: {_what_would_help(outcomes)}")
    else:
        cost = "" if price_per_hour is None else f", {best.candidate.replicas * price_per_hour:g} an hour"
        text.append(
            f"{meeting} of {len(outcomes)} keep the SLA of {sla_ms} ms (✓); ★ cheapest: {best.candidate.replicas} "
            f"replicas, window {best.candidate.window}{cost}, p99 {best.p99_ms:.0f} ms"
        )
    return "\n".join(text)


def to_json(outcomes: Sequence[Outcome], sla_ms: int, price_per_hour: float | None, seeds: int, requests: int) -> str:
    """Names are API; what is not defined is null."""
    best = cheapest(outcomes)
    document = {
        "slaMs": sla_ms,
        "seeds": seeds,
        "requests": requests,
        "cheapest": None if best is None else {"replicas": best.candidate.replicas, "window": best.candidate.window},
        "candidates": [_row(one, price_per_hour) for one in outcomes],
    }
    return json.dumps(document, indent=2)


def check_chart(path: Path | None) -> None:
    """Before the work is done. Raises UserError."""
    if path is None:
        return
    if path.suffix not in CHART_ENDINGS:
        raise UserError(f"--chart {path}: write FILE.png or FILE.svg")
    if not path.parent.is_dir():
        raise UserError(f"--chart {path}: there is no folder {path.parent}")


def draw(outcomes: Sequence[Outcome], sla_ms: int, path: Path) -> None:
    """p99 over the window, a line per number of replicas, with the spread over the seeds. Raises UserError."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    best = cheapest(outcomes)
    for replicas in sorted({one.candidate.replicas for one in outcomes}):
        line = [one for one in outcomes if one.candidate.replicas == replicas]
        windows = [one.candidate.window for one in line]
        (drawn,) = axes.plot(windows, [one.p99_ms for one in line], marker="o", markersize=4, label=f"{replicas}")
        low, high = [one.p99_low_ms for one in line], [one.p99_high_ms for one in line]
        axes.fill_between(windows, low, high, alpha=0.15, color=drawn.get_color())
    axes.axhline(sla_ms, color="black", linestyle="--", linewidth=1)
    axes.annotate(f"SLA {sla_ms} ms", (min(one.candidate.window for one in outcomes), sla_ms), va="bottom")
    if best is not None:
        axes.plot(best.candidate.window, best.p99_ms, marker="*", markersize=16, color="black", linestyle="none")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("window: most requests in a batch")
    axes.set_ylabel("p99, ms (band: lowest to highest seed)")
    axes.legend(title="replicas", ncols=2)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"--chart {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def _what_would_help(outcomes: Sequence[Outcome]) -> str:
    if not any(one.keeps_up for one in outcomes):
        return "no candidate keeps up with the load, so more --replicas are needed"
    nearest = min((one for one in outcomes if one.keeps_up), key=lambda one: (one.timeout_ratio, one.p99_ms))
    at = f"{nearest.candidate.replicas} replicas at window {nearest.candidate.window}"
    return f"the nearest is {at} with {nearest.p99_ms:.0f} ms; try more --replicas, other --windows or a longer SLA"


def _cells(one: Outcome, best: bool, price_per_hour: float | None) -> list[str]:
    waits = [f"{one.waits_ms[cause]:.1f}" for cause in ("hold", "busy", "slot", "exec")]
    cost = [f"{one.candidate.replicas * price_per_hour:g}"] if price_per_hour is not None else []
    return [
        "★" if best else "✓" if one.meets else "",
        str(one.candidate.replicas),
        str(one.candidate.window),
        f"{one.p50_ms:.1f}",
        f"{one.p95_ms:.1f}",
        f"{one.p99_ms:.1f}",
        f"({one.p99_low_ms:.0f}…{one.p99_high_ms:.0f})",
        *waits,
        f"{100 * one.timeout_ratio:.2f}%" if one.keeps_up else "too slow",
        f"{100 * one.busy_fraction:.0f}%",
        f"{100 * one.efficiency:.0f}%" if math.isfinite(one.efficiency) else "-",
        *cost,
    ]


def _row(one: Outcome, price_per_hour: float | None) -> dict[str, Any]:
    return {
        "replicas": one.candidate.replicas,
        "window": one.candidate.window,
        "meets": one.meets,
        "keepsUp": one.keeps_up,
        "lateTiers": list(one.late_tiers),
        "p50Ms": round(one.p50_ms, 3),
        "p95Ms": round(one.p95_ms, 3),
        "p99Ms": round(one.p99_ms, 3),
        "p99LowMs": round(one.p99_low_ms, 3),
        "p99HighMs": round(one.p99_high_ms, 3),
        "waitsMs": {cause: round(value, 3) for cause, value in one.waits_ms.items()},
        "timeoutRatio": round(one.timeout_ratio, 6),
        "busyFraction": round(one.busy_fraction, 4),
        "efficiency": round(one.efficiency, 4) if math.isfinite(one.efficiency) else None,
        "costPerHour": None if price_per_hour is None else one.candidate.replicas * price_per_hour,
    }
