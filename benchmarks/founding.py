"""The founding case on the simulator: chat online and code offline on one engine, over loads; with a plot.

    python benchmarks/founding.py CHAT.csv CODE.csv

Token counts of the recorded loads are scaled by .1; speeds are multiples of the recorded one, and code is repeated
until chat ends. An iteration is SmolLM2's on two CPU cores: 60 + 2·prefill tokens + 2.7·sequences ms. The SLA is 3
times the unloaded p99 of chat. `fixed` waits until 64 are there; `W8` … `W64` are continuous with that window, first
come first served, `W1` is one at a time and `W64` greedy at W = windowIdle. `ours` holds online for a quarter of the
SLA at most."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from results_file import RESULTS, keep
from scheduling import settings, tier

from tailkeeper.api.settings import Settings
from tailkeeper.model.load_trace import LoadRequest, read_trace, rescaled
from tailkeeper.simulate.model import parse_model
from tailkeeper.simulate.run import Simulated, simulate

SMOLLM2 = parse_model("alpha=60ms,beta=2ms,gamma=2.7ms")
TOKENS = 0.1
CHAT_ALONE = (0.05, 0.1, 0.15, 0.2, 0.268, 0.34)
WITH_CODE = (0.05, 0.1, 0.15, 0.2, 0.24)
CODE = 0.26
HOLD = 0.25
MARGIN_PERCENT = 8
WINDOWS = (1, 8, 16, 32, 64)
SHOWN_TO = 30.0
"""SLAs; what is above is drawn at the edge."""


@dataclass(frozen=True)
class Load:
    """Chat at that multiple of its recorded speed, code at another; 0: none."""

    chat: float
    code: float

    def rows(self, chat: Sequence[LoadRequest], code: Sequence[LoadRequest]) -> list[LoadRequest]:
        rows = rescaled([replace(row, tier="interactive") for row in chat], self.chat, TOKENS)
        end_s = rows[-1].arrival_s
        if self.code:
            once = rescaled([replace(row, tier="batch") for row in code], self.code, TOKENS)
            span_s = once[-1].arrival_s + 1.0
            for turn in range(math.ceil(end_s / span_s)):
                rows += [replace(row, arrival_s=row.arrival_s + turn * span_s) for row in once]
        return sorted((row for row in rows if row.arrival_s <= end_s), key=lambda row: row.arrival_s)


def unloaded_p99_ms(chat: Sequence[LoadRequest]) -> float:
    calm = rescaled([replace(row, tier="interactive") for row in chat], 0.001, TOKENS)
    alone = settings([tier("interactive", 40_000_000)], mode="continuous", window_dynamic=False, window_idle=64)
    return simulate(alone.but(window_busy=64), calm, SMOLLM2).all.p99_ms


def variants(sla_ms: int) -> dict[str, Settings]:
    online = {**tier("interactive", sla_ms), "timeout_ms": 20 * sla_ms, "preempts": True}
    offline = tier("batch", 60 * sla_ms, reserve_percent=10)
    tiers = [{**online, "max_hold_ms": int(HOLD * sla_ms)}, offline]
    fifo = {"priority_queue": False, "window_idle": 64}
    return {
        "fixed": settings([online, offline], mode="fixed", window_busy=16, **fifo),
        **{
            f"W{window}": settings(tiers, mode="continuous", window_dynamic=False, window_busy=window, **fifo)
            for window in WINDOWS
        },
        "ours": settings(tiers, mode="continuous", window_idle=64, margin_percent=MARGIN_PERCENT, window_busy=16),
    }


def figures(result: Simulated, sla_ms: int) -> dict[str, float]:
    online, offline = result.tiers["interactive"], result.tiers["batch"]
    found = {
        "p99_slas": online.p99_ms / sla_ms,
        "mean_slas": online.mean_ms / sla_ms,
        "late_percent": 100 * online.over_sla_ratio,
        "timeout_percent": 100 * online.timeouts / online.count,
        "waiting_p99_s": online.waiting_p99_ms / 1000,
        "efficiency": result.efficiency,
        "busy_fraction": result.busy_fraction,
    }
    if offline.count:
        found["offline_done_percent"] = 100 * (1 - offline.timeouts / offline.count)
    return {name: round(value, 3) for name, value in found.items()}


def bounds(sla_ms: int, chat: Sequence[LoadRequest]) -> dict[str, float]:
    """What no order of work gets past while 99 % of chat, of lengths not known before, end inside the SLA.

    A request that may come to need n99 tokens needs an iteration every SLA/n99. Each costs α, whoever shares it, so the
    engine spends α·n99/SLA of its time on that, and at most the rest on work. The window is W = (SLA/n99 − α)/own."""
    cost = SMOLLM2.cost
    assert cost is not None
    outputs = sorted(max(1, round(row.output_tokens * TOKENS)) for row in chat)
    prompt = sum(max(1, round(row.prompt_tokens * TOKENS)) for row in chat) / len(chat)
    longest = outputs[math.ceil(0.99 * len(outputs)) - 1]
    own_s = cost.gamma + cost.beta * prompt / (sum(outputs) / len(outputs))
    every_s = sla_ms / 1000 / longest
    window = (every_s - cost.alpha) / own_s
    saturated_s = own_s + cost.alpha / math.ceil(cost.alpha / ((own_s + cost.alpha / 64) / 0.95 - own_s))
    return {
        "iteration_every_ms": round(1000 * every_s, 1),
        "widest_window": round(window, 2),
        "best_efficiency_chat_alone_saturated": round(saturated_s / (own_s + cost.alpha / window), 3),
        "alpha_share_of_time": round(cost.alpha / every_s, 3),
    }


def plot(curves: dict[str, dict[str, dict[float, dict[str, float]]]], file: Path) -> None:
    figure, axes = pyplot.subplots(1, len(curves), figsize=(11, 4.2), sharey=True)
    for axis, (title, curve) in zip(axes, curves.items(), strict=True):
        for name, points in curve.items():
            values = [min(point["p99_slas"], SHOWN_TO) for point in points.values()]
            axis.plot(
                list(points), values, label=name, marker="o", markersize=3, linewidth=2.5 if name == "ours" else 1
            )
        axis.axhline(1.0, color="black", linestyle=":", linewidth=1)
        axis.set(title=title, xlabel="speed of chat ÷ recorded", yscale="log")
    axes[0].set_ylabel("online p99 ÷ SLA")
    axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def table(curves: dict[str, dict[str, dict[float, dict[str, float]]]]) -> str:
    lines = [
        "# The founding case, simulated",
        "",
        "Made by `benchmarks/founding.py`, which says what the columns are.",
        "",
    ]
    for title, curve in curves.items():
        lines += [f"## {title}", "", "| chat | how | p99 ÷ SLA | mean ÷ SLA | late % | timeouts % | waiting p99 s |"]
        lines[-1] += " efficiency | busy | offline done % |"
        lines.append("| --- " * 10 + "|")
        for speed in next(iter(curve.values())):
            for name, points in curve.items():
                cells = [f"{points[speed].get(key, math.nan):.2f}".replace("nan", "") for key in KEYS]
                lines.append(f"| {speed:g} | {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join([*lines, "![p99 against load](founding.png)", ""])


KEYS = (
    "p99_slas",
    "mean_slas",
    "late_percent",
    "timeout_percent",
    "waiting_p99_s",
    "efficiency",
    "busy_fraction",
    "offline_done_percent",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chat", type=Path)
    parser.add_argument("code", type=Path)
    arguments = parser.parse_args()
    with arguments.chat.open() as chat_lines, arguments.code.open() as code_lines:
        chat, code = read_trace(chat_lines, arguments.chat.name), read_trace(code_lines, arguments.code.name)
    sla_ms = int(3 * unloaded_p99_ms(chat))
    curves: dict[str, dict[str, dict[float, dict[str, float]]]] = {}
    for title, speeds, beside in (("chat alone", CHAT_ALONE, 0.0), (f"with code at {CODE:g}", WITH_CODE, CODE)):
        curve: dict[str, dict[float, dict[str, float]]] = {}
        for speed in speeds:
            rows = Load(speed, beside).rows(chat, code)
            for name, one in variants(sla_ms).items():
                curve.setdefault(name, {})[speed] = figures(simulate(one, rows, SMOLLM2), sla_ms)
        curves[title] = curve
    report: dict[str, object] = {"sla_ms": sla_ms, "scale_tokens": TOKENS, "bounds": bounds(sla_ms, chat)}
    for title, curve in curves.items():
        report[title] = {
            name: {f"{speed:g}": point for speed, point in points.items()} for name, points in curve.items()
        }
    plot(curves, RESULTS / "founding.png")
    (RESULTS / "founding.md").write_text(table(curves))
    keep("founding", "python benchmarks/founding.py CHAT.csv CODE.csv", report)


if __name__ == "__main__":
    main()
