"""What the scheduling core reaches, on the simulator: T(b) = 6 + 0.5·b ms, W ≤ 32, SLA 50 ms, margin .1.

    python benchmarks/scheduling.py [--requests 200000] [--chat FILE.csv --code FILE.csv] [--speeds .1,.2,.3]

`greedy` is windowDynamic: false at W = windowIdle, `one` the same at W = 1, `fixed40` waits 40 ms at most. The founding
case needs two recorded loads; their sizes are scaled by .1, and SmolLM2's iterations taken as 60 + 2·prefill tokens +
2.7·sequences ms. Its SLA is 3 times the unloaded p99 of the chat trace."""

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from results_file import keep

from gpu_worker.scheduling import create
from gpu_worker.scheduling.interface import Request, Step, StepReport, Work
from tailkeeper.api.settings import Settings
from tailkeeper.model.load_trace import LoadRequest, read_trace, rescaled
from tailkeeper.model.loads import parse_arrivals
from tailkeeper.simulate.model import parse_model
from tailkeeper.simulate.run import Simulated, simulate

MODEL = parse_model("a=0.5ms,c=6ms")
SMOLLM2 = parse_model("alpha=60ms,beta=2ms,gamma=2.7ms")
TOKENS = 0.1
LOADS = ("poisson:50", "poisson:150", "poisson:400", "poisson:800", "gamma:150,3.7", "mmpp:800")


def tier(name: str, deadline_ms: int, **more: object) -> dict[str, object]:
    return {"name": name, "deadline_ms": deadline_ms, "timeout_ms": 2 * deadline_ms, "max_hold_ms": deadline_ms, **more}


def settings(tiers: Sequence[dict[str, object]], **changes: object) -> Settings:
    fields: dict[str, object] = {
        "generation": 1,
        "policy_namespace": "default",
        "policy": "bench",
        "model_instance": "model",
        "traffic_class": "online",
        "mode": "request",
        "window_dynamic": True,
        "window_idle": 32,
        "window_busy": 8,
        "priority_queue": True,
        "timeout_target_per_mille": 5,
        "min_efficiency_percent": 70,
        "tiers": list(tiers),
        "default_tier": tiers[0]["name"],
        **changes,
    }
    fields.setdefault("ceiling", fields["window_idle"])
    return Settings.model_validate(fields)


def load(text: str, name: str, count: int = 1 << 60, until_s: float = float("inf")) -> list[LoadRequest]:
    times = itertools.islice(parse_arrivals(text).times(random.Random(f"1/{name}")), count)
    return [LoadRequest(at_s, name, 1, 1) for at_s in itertools.takewhile(lambda at_s: at_s < until_s, times)]


def figures(result: Simulated) -> dict[str, object]:
    return {
        name: {
            "sent": one.count,
            "mean_ms": round(one.mean_ms, 2),
            "p99_ms": round(one.p99_ms, 2),
            "max_ms": round(one.max_ms, 2),
            "over_sla_percent": round(100 * one.over_sla_ratio, 4),
            "timeouts": one.timeouts,
            "waiting_p99_ms": round(one.waiting_p99_ms, 2),
            "goodput_per_s": round(one.goodput_per_s, 2),
        }
        for name, one in result.tiers.items()
        if one.count
    } | {
        "busy_fraction": round(result.busy_fraction, 3),
        "efficiency": round(result.efficiency, 3),
        "mean_batch": round(result.mean_batch, 2),
    }


def one_setting(count: int) -> dict[str, object]:
    """One setting for all loads, beside greedy and one at a time."""
    tiers = [tier("interactive", 50)]
    variants = {
        "ours": settings(tiers),
        "greedy": settings(tiers, window_dynamic=False, window_busy=32),
        "one": settings(tiers, window_dynamic=False, window_busy=1),
    }
    table: dict[str, object] = {}
    for text in LOADS:
        for name, one in variants.items():
            few = count if name == "ours" else min(count, 50_000)
            table[f"{text} {name}"] = figures(simulate(one, load(text, "interactive", few), MODEL))
    return table


def two_state(count: int) -> dict[str, object]:
    """3 times the rate for exactly 1 s, low for 4 s, mean 800/s: goodput against what an ideal server finishes."""
    rng = random.Random(1)
    rows: list[LoadRequest] = []
    now_s = 0.0
    while len(rows) < count:
        phase = now_s % 5.0
        rate = 2400.0 if phase < 1.0 else 400.0
        next_s = now_s + rng.expovariate(rate)
        edge_s = now_s - phase + (1.0 if phase < 1.0 else 5.0)
        if next_s > edge_s:
            now_s = edge_s + 1e-9
            continue
        now_s = next_s
        rows.append(LoadRequest(now_s, "interactive", 1, 1))
    result = simulate(settings([tier("interactive", 50)]), rows, MODEL)
    patient = {**tier("interactive", 50), "timeout_ms": 86_400_000}
    fifo = simulate(settings([patient], mode="fixed", window_idle=1, window_busy=1), rows[:1000], MODEL)
    good = result.tiers["interactive"].goodput_per_s
    return {
        "ours": figures(result),
        "of_the_fluid_bound": round(good / fluid_goodput(rows), 4),
        "one_at_a_time_first_1000": figures(fifo),
    }


def fluid_goodput(rows: Sequence[LoadRequest]) -> float:
    """Requests a second that a server of 32/T(32) requests a second, without batches, ends inside 50 ms."""
    service_s = (0.006 + 0.0005 * 32) / 32
    free_s, good = 0.0, 0
    for row in rows:
        start_s = max(free_s, row.arrival_s)
        if start_s + service_s <= row.arrival_s + 0.050:
            free_s, good = start_s + service_s, good + 1
    return good / rows[-1].arrival_s


def two_tiers(seconds: float) -> dict[str, object]:
    """Both on one engine: near capacity, a high tier above it for ever, and a flood of the low tier."""
    tiers = [tier("high", 50), tier("low", 2000, reserve_percent=10)]
    strict = [tier("high", 50), {**tier("low", 40_000_000), "max_hold_ms": 50}]
    cases = {"1300/s high, 120/s low": (1300, 120), "endless high": (2000, 20), "low flood": (100, 2000)}
    table: dict[str, object] = {}
    for case, (high, low) in cases.items():
        rows = load(f"poisson:{high}", "high", until_s=seconds) + load(f"poisson:{low}", "low", until_s=seconds)
        rows.sort(key=lambda row: row.arrival_s)
        table[f"{case} ours"] = figures(simulate(settings(tiers), rows, MODEL))
        table[f"{case} strict priority, greedy"] = figures(
            simulate(settings(strict, window_dynamic=False, window_busy=32), rows, MODEL)
        )
    return table


def cost(queued: int, count: int = 30_000) -> float:
    """Microseconds of processor time per request for all decisions about it, with so many waiting."""
    scheduler = create(settings([tier("interactive", 40_000_000)]), 0.0)
    for size in (1, 8):
        work = tuple(Work(Request(str(-n - 1), "", 0.0)) for n in range(size))
        scheduler.finished(StepReport(Step(0, work), 0.0, 0.006 + 0.0005 * size), 0.0)
    requests = [Request(str(n), "interactive", n * 1e-5) for n in range(queued + count)]
    for request in requests[:queued]:
        scheduler.submit(request, request.arrival_s)
    step = scheduler.next(requests[queued].arrival_s).step
    spent_s, at = 0.0, queued
    while step is not None and at + 32 <= len(requests):
        now_s = requests[at + 31].arrival_s
        report = StepReport(step, now_s - 1e-4, now_s, frozenset([work.request.id for work in step.work]))
        began_s = time.process_time()
        for request in requests[at : at + 32]:
            scheduler.submit(request, request.arrival_s)
        scheduler.finished(report, now_s)
        step = scheduler.next(now_s).step
        spent_s += time.process_time() - began_s
        at += 32
    return 1e6 * spent_s / (at - queued)


def founding(chat: Path, code: Path, speeds: Sequence[float], count: int) -> dict[str, object]:
    """Chat online and code offline on one engine, over loads."""
    with chat.open() as lines:
        recorded = read_trace(lines, chat.name)[:count]
    with code.open() as lines:
        offline = read_trace(lines, code.name)
    alone = settings([tier("interactive", 40_000_000)], mode="continuous", window_dynamic=False, window_idle=64)
    calm = rescaled([replace(row, tier="interactive") for row in recorded], 0.001, TOKENS)
    unloaded = simulate(alone.but(window_busy=64), calm, SMOLLM2).all
    sla_ms = int(3 * unloaded.p99_ms)
    online = {**tier("interactive", sla_ms), "timeout_ms": 20 * sla_ms, "max_hold_ms": sla_ms // 50, "preempts": True}
    tiers = [online, {**tier("batch", 60 * sla_ms, reserve_percent=10)}]
    fifo = {"priority_queue": False, "window_idle": 64}
    variants = {
        "fixed": settings([{**online, "max_hold_ms": sla_ms}, tiers[1]], mode="fixed", window_busy=16, **fifo),
        **{
            f"W{window}": settings(tiers, mode="continuous", window_dynamic=False, window_busy=window, **fifo)
            for window in (1, 8, 16, 32, 64)
        },
        "ours": settings(tiers, mode="continuous", window_idle=64, window_busy=16),
    }
    table: dict[str, object] = {"sla_ms": sla_ms, "scale_tokens": TOKENS, "unloaded_p99_ms": round(unloaded.p99_ms, 1)}
    for speed, mix in itertools.product(speeds, (0.0, 0.3, 1.0)):
        rows = rescaled([replace(row, tier="interactive") for row in recorded], speed, TOKENS)
        if mix:
            more = rescaled([replace(row, tier="batch") for row in offline], speed * mix, TOKENS)
            rows = sorted(
                rows + [row for row in more if row.arrival_s < rows[-1].arrival_s], key=lambda row: row.arrival_s
            )
        for name, one in variants.items():
            table[f"speed {speed:g}, code ×{mix:g}, {name}"] = figures(simulate(one, rows, SMOLLM2))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--chat", type=Path)
    parser.add_argument("--code", type=Path)
    parser.add_argument("--speeds", default="0.1,0.2,0.26,0.3")
    arguments = parser.parse_args()
    count = arguments.requests
    began_s = time.process_time()
    simulate(settings([tier("interactive", 50)]), load("poisson:400", "interactive", 20_000), MODEL)
    spent_s = time.process_time() - began_s
    report: dict[str, object] = {
        "one setting": one_setting(count),
        "two states": two_state(count),
        "two tiers": two_tiers(count / 2000),
        "cost_us_per_request": {str(n): round(min(cost(n) for _ in range(3)), 2) for n in (100, 1000, 10_000, 50_000)},
        "simulated_requests_per_minute": round(20_000 / spent_s * 60),
    }
    if arguments.chat and arguments.code:
        speeds = [float(text) for text in arguments.speeds.split(",")]
        report["founding case"] = founding(arguments.chat, arguments.code, speeds, count)
    command = f"python benchmarks/scheduling.py --requests {count}" + (" --chat … --code …" if arguments.chat else "")
    keep("scheduling", command, report)


if __name__ == "__main__":
    main()
