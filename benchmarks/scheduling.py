"""What the scheduling core reaches, on the simulator: T(b) = 6 + 0.5·b ms, W ≤ 32, SLA 50 ms, margin .1.

    python benchmarks/scheduling.py [--requests 200000]

Baselines, on the same arrivals: `greedy` takes whoever waits, up to W = windowIdle, as soon as the engine is free;
`one` serves one at a time. Neither refuses anybody before the timeout. Gamma arrivals are bursts so long that one seed
says little: these are medians over three. The founding case is in founding.py."""

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from statistics import median

from results_file import keep

from gpu_worker.scheduling import create
from gpu_worker.scheduling.interface import Request, Step, StepReport, Work
from tailkeeper.api.settings import Settings
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import parse_arrivals
from tailkeeper.simulate.model import parse_model
from tailkeeper.simulate.run import Simulated, simulate

MODEL = parse_model("a=0.5ms,c=6ms")
LOADS = ("poisson:50", "poisson:150", "poisson:400", "poisson:800")
BURSTS = "gamma:150,3.7"
SEEDS = (1, 2, 3)


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


def load(text: str, name: str, count: int = 1 << 60, until_s: float = float("inf"), seed: int = 1) -> list[LoadRequest]:
    times = itertools.islice(parse_arrivals(text).times(random.Random(f"{seed}/{name}")), count)
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
            "served_p99_ms": round(one.served_p99_ms, 2),
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


def plain(tiers: Sequence[dict[str, object]], window: int) -> Settings:
    """Whoever waits, up to the window, first come first served, as soon as the engine is free. Its efficiency is
    measured against that window."""
    hasty = [{**one, "max_hold_ms": 0} for one in tiers]
    return settings(hasty, mode="fixed", window_idle=window, window_busy=window, priority_queue=False)


def one_setting(count: int) -> dict[str, object]:
    """One setting for all loads, beside greedy and one at a time."""
    tiers = [tier("interactive", 50)]
    variants = {"ours": settings(tiers), "greedy": plain(tiers, 32), "one": plain(tiers, 1)}
    table: dict[str, object] = {}
    for text in LOADS:
        rows = load(text, "interactive", count)
        for name, one in variants.items():
            table[f"{text} {name}"] = figures(simulate(one, rows, MODEL))
    for name in ("ours", "greedy"):
        seeds = [simulate(variants[name], load(BURSTS, "interactive", count, seed=seed), MODEL) for seed in SEEDS]
        table[f"{BURSTS} {name}"] = {
            "median_mean_ms": round(median(one.all.mean_ms for one in seeds), 2),
            "median_p99_ms": round(median(one.all.p99_ms for one in seeds), 2),
            "median_busy_fraction": round(median(one.busy_fraction for one in seeds), 4),
            "most_over_sla_percent": round(max(100 * one.all.over_sla_ratio for one in seeds), 4),
            "p99_ms": [round(one.all.p99_ms, 2) for one in seeds],
        }
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
    tiers = [tier("interactive", 50)]
    patient = [{**tiers[0], "timeout_ms": 86_400_000}]
    variants = {"ours": settings(tiers), "greedy": plain(patient, 32), "one": plain(patient, 1)}
    results = {name: simulate(one, rows, MODEL) for name, one in variants.items()}
    good = {name: one.all.goodput_per_s for name, one in results.items()}
    return {name: figures(one) for name, one in results.items()} | {
        "of_the_fluid_bound": round(good["ours"] / fluid_goodput(rows), 4),
        "times_greedy": round(good["ours"] / good["greedy"], 2),
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
        table[f"{case} greedy"] = figures(simulate(plain(tiers, 32), rows, MODEL))
        table[f"{case} one"] = figures(simulate(plain(tiers, 1), rows, MODEL))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    arguments = parser.parse_args()
    count = arguments.requests
    began_s = time.process_time()
    simulate(settings([tier("interactive", 50)]), load("poisson:400", "interactive", 20_000), MODEL)
    spent_s = time.process_time() - began_s
    report: dict[str, object] = {
        "one setting": one_setting(count),
        "two states": two_state(count),
        "two tiers": two_tiers(count / 2000),
        "cost_us_per_request": {str(n): round(min(cost(n) for _ in range(7)), 2) for n in (100, 1000, 10_000, 50_000)},
        "simulated_requests_per_minute": round(20_000 / spent_s * 60),
    }
    keep("scheduling", f"python benchmarks/scheduling.py --requests {count}", report)


if __name__ == "__main__":
    main()
