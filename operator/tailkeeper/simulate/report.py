"""A simulation's result as JSON, and as a table for people."""

import json
import math
from collections.abc import Mapping, Sequence

from tailkeeper.simulate.run import Simulated
from tailkeeper.simulate.tally import TierResult

Json = str | int | float | None | Mapping[str, "Json"] | Sequence["Json"]


def to_json(result: Simulated) -> str:
    """Names are API; what is not defined (a percentile of nothing) is null."""
    return json.dumps(to_dict(result), indent=2)


def to_dict(result: Simulated) -> dict[str, Json]:
    """The same as plain data."""
    return {
        "tiers": {name: _tier(tier) for name, tier in result.tiers.items()},
        "all": _tier(result.all),
        "busy_fraction": _number(result.busy_fraction),
        "throughput_per_s": _number(result.throughput_per_s),
        "mean_batch": _number(result.mean_batch),
        "efficiency": _number(result.efficiency),
        "seconds": _number(result.seconds),
        "windows": [{"time": point.time_s, "window": point.window} for point in result.windows],
        "moves": [
            {
                "time": _number(move.time_s),
                "cause": move.cause,
                "from": move.before,
                "to": move.after,
                "outcome": move.outcome,
            }
            for move in result.moves
        ],
    }


def table(result: Simulated) -> str:
    """A row per tier, and what the engine did, in a line below."""
    heads = ["tier", "sent", "mean", "p50", "p95", "p99", "max", "late %", "timeouts", "hold p99", "waiting p99"]
    rows = [[name, *_cells(tier)] for name, tier in result.tiers.items() if tier.count]
    if len(rows) > 1:
        rows.append(["all", *_cells(result.all)])
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in [heads, *rows])
    ]
    windows = [point.window for point in result.windows]
    lines.append("")
    lines.append(
        f"times in ms; engine busy {100 * result.busy_fraction:.1f} %, efficiency {100 * result.efficiency:.0f} %, "
        f"{result.throughput_per_s:.1f} answers/s, mean batch {result.mean_batch:.1f}, "
        f"window {min(windows, default=0)}…{max(windows, default=0)}"
    )
    return "\n".join(lines)


def _cells(tier: TierResult) -> list[str]:
    times = (tier.mean_ms, tier.p50_ms, tier.p95_ms, tier.p99_ms, tier.max_ms)
    return [
        str(tier.count),
        *(f"{value:.1f}" for value in times),
        f"{100 * tier.over_sla_ratio:.3f}",
        str(tier.timeouts),
        f"{tier.wait_ms['hold'].p99:.1f}",
        f"{tier.waiting_p99_ms:.1f}",
    ]


def _tier(tier: TierResult) -> dict[str, Json]:
    return {
        "count": tier.count,
        "mean_ms": _number(tier.mean_ms),
        "p50_ms": _number(tier.p50_ms),
        "p95_ms": _number(tier.p95_ms),
        "p99_ms": _number(tier.p99_ms),
        "max_ms": _number(tier.max_ms),
        "over_sla_ratio": _number(tier.over_sla_ratio),
        "timeouts": tier.timeouts,
        "shed": tier.shed,
        "goodput_per_s": _number(tier.goodput_per_s),
        "wait_ms": {
            cause: {"p99": _number(wait.p99), "sum": _number(wait.sum)} for cause, wait in tier.wait_ms.items()
        },
        "waiting_p99_ms": _number(tier.waiting_p99_ms),
    }


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
