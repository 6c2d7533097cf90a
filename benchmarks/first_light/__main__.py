"""The whole loop on the local cluster, measured: `make bench-first-light` (long, kept), its short form in `make demo`.

usage: python -m benchmarks.first_light [--demo PNG] [--seconds N] [--rounds N] [--repeats N] [--only PART ...]

The worker, the sender, the API server, the kubelet, Prometheus and the operator share this machine's cores. The SLA is
3 times the p99 of requests that meet nobody, measured first. The load is the one at which `fixed` times out more than
1 % of its interactive requests at 6 times the SLA: a p99 of 6 SLAs. Percentiles are over all requests sent; a missing
answer counts as its timeout."""

import argparse
import asyncio
import math
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.first_light import compare, instance, planted, ways
from benchmarks.first_light.compare import Load, Run
from benchmarks.first_light.planted import Breach
from benchmarks.first_light.show import picture, say, table
from benchmarks.results_file import RESULTS, keep

SLA_FACTOR: Final = 3
MOST_TIMEOUTS: Final = 0.15
"""Of `fixed` at the load that is looked for: the founding case had 5 %."""
PARTS: Final = ("compare", "breach", "signals", "prometheus")


async def calibrated_sla_ms(seconds: float) -> int:
    """3 times the unloaded p99, in whole milliseconds."""
    alone_ms = await compare.unloaded_p99_ms(ways.GREEDY, 500, seconds)
    sla_ms = math.ceil(SLA_FACTOR * alone_ms)
    say(f"requests that meet nobody have a p99 of {alone_ms:.0f} ms; the SLA is {SLA_FACTOR} times that: {sla_ms} ms")
    return sla_ms


async def calibrated_load(sla_ms: int, seconds: float) -> Load:
    """The load at which `fixed` has a p99 of 6 times the SLA: waiting for a full batch is shorter the more arrive."""
    c_s, a_s = planted.coefficients()
    filling_s = ways.TIMEOUT_FACTOR * sla_ms / 1000 - (c_s + a_s * ways.WINDOW)
    load = Load(ways.WINDOW / max(filling_s, 0.1))  # from below: the least load at which it is so
    for _ in range(5):
        run = await compare.run(ways.FIXED, load, sla_ms, seconds, seed=99, show=False)
        timeouts = run.report.tier("interactive").timeout_ratio
        say(f"fixed at {load.rate:.0f} requests/s: {100 * timeouts:.1f} % of the interactive time out")
        if 0.01 <= timeouts <= MOST_TIMEOUTS:
            break
        load = Load(load.rate * (1.2 if timeouts > MOST_TIMEOUTS else 0.9))
    return load


async def compared(sla_ms: int, load: Load, seconds: float, rounds: int, show: bool) -> dict[str, list[Run]]:
    """All ways in turn, that many times."""
    runs: dict[str, list[Run]] = {way.key: [] for way in ways.WAYS}
    for number in range(rounds):
        for way in ways.WAYS:
            run = await compare.run(way, load, sla_ms, seconds, seed=number, show=show)
            runs[way.key].append(run)
            latency = run.report.tier("interactive").latency_ms
            say(f"{way.title}: p99 {latency.p99 if latency else math.nan:.0f} ms")
    return runs


def rows(runs: dict[str, list[Run]]) -> dict[str, dict[str, Any]]:
    """Per way the median of its rounds, and the p99 of each."""
    # `fixed` sends nothing but full batches: what the engine does in a busy second at most.
    saturated = max(run.work_per_busy_s for run in runs["fixed"])
    found = {}
    for way in ways.WAYS:
        each = [compare.row(run, saturated) for run in runs[way.key]]
        middle = {
            name: median(values) if len(values := [row[name] for row in each if row[name] is not None]) else None
            for name in each[0]
            if name != "kept_up"
        }
        found[way.title] = middle | {
            "p99_ms_of_each_round": [row["p99_ms"] for row in each],
            "kept_up": all(row["kept_up"] for row in each),
        }
    return found


async def repeated(way: ways.Way, sla_ms: int, rate: float, repeats: int, after_s: float, name: str) -> list[Breach]:
    """The planted ceiling, that many times."""
    found = []
    for number in range(repeats):
        found.append(await planted.breach(way, sla_ms, rate, after_s, number, show=True))
        lasted_s = found[-1].lasted_s
        say(f"{name}: " + ("the breach lasts" if lasted_s is None else f"inside the SLA again after {lasted_s:.1f} s"))
    return found


def summary(breaches: list[Breach]) -> dict[str, Any]:
    """Median and each."""
    lasted = [breach.lasted_s for breach in breaches]
    ended = [seconds for seconds in lasted if seconds is not None]
    return {
        "median_s": round(median(ended), 1) if len(ended) == len(lasted) else None,
        "not_ended": len(lasted) - len(ended),
        "each": [breach.kept() for breach in breaches],
    }


async def short(png: Path) -> None:
    """The demo: one round, one breach with the tuner off and one with it on."""
    sla_ms = await calibrated_sla_ms(10)
    load = await calibrated_load(sla_ms, 6)
    runs = await compared(sla_ms, load, 10, 1, show=True)
    rate = planted.rate_after(*planted.coefficients())
    say(f"a ceiling of {planted.CEILING} by annotation, then {planted.STEP} times the load: {rate:.0f} requests/s")
    breaches = {
        "retune Off": await planted.breach(ways.OURS_OFF, sla_ms, rate, 12, 0, show=True),
        "retune Auto": await planted.breach(ways.OURS, sla_ms, rate, 35, 0, show=True),
    }
    for name, breach in breaches.items():
        lasted_s = breach.lasted_s
        say(f"{name}: " + ("the breach lasts" if lasted_s is None else f"inside the SLA again after {lasted_s:.1f} s"))
    table(rows(runs), f"SLA {sla_ms} ms; {load.rate:.0f} requests/s, a fifth of them interactive")
    picture(png, sla_ms, [runs[way.key][0] for way in ways.WAYS], breaches)
    print(f"p99 and window over time: {png}")


async def whole(arguments: argparse.Namespace) -> None:
    """All figures."""
    figures: dict[str, Any] = {}
    sla_ms = await calibrated_sla_ms(60)
    figures["sla_ms"] = sla_ms
    runs: dict[str, list[Run]] = {}
    if "compare" in arguments.only:
        load = await calibrated_load(sla_ms, 20)
        runs = await compared(sla_ms, load, arguments.seconds, arguments.rounds, show=True)
        figures["requests_per_s"] = round(load.rate, 1)
        figures["ways"] = rows(runs)
        table(figures["ways"], f"SLA {sla_ms} ms; {load.rate:.0f} requests/s, a fifth of them interactive")
    else:
        await compare.run(ways.OURS, Load(50), sla_ms, 20, seed=0, show=False)  # teaches the latency model
    rate = planted.rate_after(*planted.coefficients())
    figures["planted_requests_per_s"] = {"before": round(rate / planted.STEP, 1), "after": round(rate, 1)}
    breaches: dict[str, Breach] = {}
    if "breach" in arguments.only:
        off = await repeated(ways.OURS_OFF, sla_ms, rate, 1, 60, "retune Off")
        breaches["retune Off"] = off[0]
        figures["retune Off"] = summary(off)
        auto = await repeated(ways.OURS, sla_ms, rate, arguments.repeats, 60, "both, scrape 1 s")
        breaches["retune Auto"] = auto[0]
        figures["retune Auto, signals both, scrape 1 s"] = summary(auto)
    if "signals" in arguments.only:
        for source, scrape_s in (("prometheus", 1), ("prometheus", 15), ("direct", 1)):
            with planted.signals(source, scrape_s):
                await asyncio.sleep(planted.patience_s())
                name = f"signals {source}, scrape {scrape_s} s" if source == "prometheus" else f"signals {source}"
                each = await repeated(ways.OURS, sla_ms, rate, arguments.repeats, 60 + 4 * scrape_s, name)
                figures[f"retune Auto, {name}"] = summary(each)
    if "prometheus" in arguments.only:
        await asyncio.sleep(planted.patience_s())
        figures["prometheus stopped"] = await planted.without_prometheus(ways.OURS, sla_ms, rate, 180, show=True)
    if runs and breaches:
        picture(RESULTS / "first-light.png", sla_ms, [runs[way.key][0] for way in ways.WAYS], breaches)
    keep(
        "-".join(["first-light", *([] if set(arguments.only) == set(PARTS) else arguments.only)]),
        arguments.command,
        figures,
    )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, metavar="PNG")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    options = f"--seconds {arguments.seconds:g} --rounds {arguments.rounds} --repeats {arguments.repeats}"
    parts = "" if set(arguments.only) == set(PARTS) else f" --only {' '.join(arguments.only)}"
    arguments.command = f"python -m benchmarks.first_light {options}{parts}"
    if arguments.demo:
        asyncio.run(short(arguments.demo))
        return
    try:
        asyncio.run(whole(arguments))
    finally:
        instance.delete()


if __name__ == "__main__":
    main()
