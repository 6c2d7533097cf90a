"""The tuner on the worker's own scheduler, in virtual time: how fast it mends, and how calm it is.

usage: python -m benchmarks.retune_simulated [--seeds 100] [--steady 5:24,50:24,400:2] [--processes 1] [--keep]

Inside the SLA again = the first of three 5 s buckets by intended send time with at most 1 % late, from the first
late request. A tick's settings are applied at once (0.5 s in a cluster). Engines are T(b) = c + a·b; settings differ
in nothing else than the lines say."""

import argparse
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from benchmarks.results_file import keep, percentile
from gpu_worker.scheduling.interface import Answer
from tailkeeper.api.enums import Mode, StillReason, TrafficClass
from tailkeeper.api.levers import parse_moves
from tailkeeper.api.settings import Settings, TierSettings
from tailkeeper.bench.breach import breaches
from tailkeeper.control.move import Bounds
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import parse_arrivals
from tailkeeper.simulate.model import EngineModel, parse_model
from tailkeeper.simulate.retune import LATE, Planted, Retuner
from tailkeeper.simulate.run import Move, Simulated, simulate
from tailkeeper.simulate.worker import VirtualWorker

STEP_S = 130.0
PLANTED_S = 80.0
ENGINE = "a=2ms,c=24ms"
SLA_MS = 800


def settings(sla_ms: int = SLA_MS, *, hold_ms: int | None = None, idle: int = 64, busy: int = 16) -> Settings:
    """One instance with the default tiers' shape; `hold_ms` defaults to 2 % of the SLA."""
    hold = sla_ms * 2 // 100 if hold_ms is None else hold_ms
    tiers = [
        TierSettings(name="interactive", deadline_ms=sla_ms, timeout_ms=2 * sla_ms, max_hold_ms=hold, preempts=True),
        TierSettings(name="batch", deadline_ms=60 * sla_ms, max_hold_ms=60 * sla_ms, reserve_percent=10),
    ]
    return Settings(
        generation=1,
        policy_namespace="benchmark",
        policy="retune",
        model_instance="m",
        traffic_class=TrafficClass.ONLINE,
        mode=Mode.REQUEST,
        window_dynamic=True,
        window_idle=idle,
        window_busy=busy,
        priority_queue=True,
        timeout_target_per_mille=5,
        min_efficiency_percent=70,
        tiers=tiers,
        default_tier="interactive",
        ceiling=idle,
    )


class Watched(Retuner):
    """Remembers when requests were sent and whether they were late."""

    sent: list[tuple[float, bool]]

    def tick(self, now_s: float, workers: Sequence[VirtualWorker], answers: Sequence[Answer]) -> Settings | None:
        if not hasattr(self, "sent"):
            self.sent = []
        self.sent += [(answer.request.arrival_s, answer.outcome in LATE) for answer in answers]
        return super().tick(now_s, workers, answers)


@dataclass(frozen=True)
class Run:
    """What came of one seed."""

    lasted_s: float | None
    """The longest breach from the step on; None: it did not end. 0: there was none."""
    late_ratio: float
    moves: tuple[Move, ...]
    last: StillReason | None
    replicas_needed: int | None


def run(load: str, seconds: float, planted: str, tick_s: float, scrape_s: float | None, seed: int) -> Run:
    """One seed of one scenario; `planted` is a move by hand at PLANTED_S, or empty. Ticks and scrapes know nothing of
    the step: `{step}` in the load is another time with each seed."""
    load = load.format(step=STEP_S + 0.7 * seed % 15)
    spec = settings()
    by_hand = [Planted(PLANTED_S, parse_moves(planted))] if planted else []
    tuner = Watched(spec, Bounds(spec), interval_s=tick_s, scrape_s=scrape_s, planted=by_hand)
    found = simulate(spec, arrivals(load, seconds, seed), parse_model(ENGINE), tuner=tuner)
    sent = sorted(tuner.sent)
    broken = breaches([at_s for at_s, _ in sent], [late for _, late in sent])
    lasted = [each.lasted_s for each in broken]
    last = tuner.decisions[-1][1]
    return Run(
        lasted_s=None if None in lasted else max((s for s in lasted if s is not None), default=0.0),
        late_ratio=found.all.over_sla_ratio,
        moves=found.moves,
        last=last.still,
        replicas_needed=last.replicas_needed,
    )


def arrivals(load: str, seconds: float, seed: int) -> list[LoadRequest]:
    """Requests of the interactive tier."""
    times = itertools.takewhile(lambda at_s: at_s < seconds, parse_arrivals(load).times(random.Random(seed)))
    return [LoadRequest(at_s, "interactive", 1, 1) for at_s in times]


def recovery(each: Callable[[Callable[[int], Run]], list[Run]]) -> dict[str, object]:
    """Planted ceilings and a step to four times the load."""
    figures: dict[str, object] = {}
    for name, planted in (("ceiling 1", "ceiling=1"), ("ceiling 2", "ceiling=2"), ("nothing planted", "")):
        for tick_s, scrape_s in ((1.0, 1.0), (5.0, 5.0), (5.0, 15.0)):
            runs = each(partial(run, "step:25,4,{step:g}", 230.0, planted, tick_s, scrape_s))
            lasted = [found.lasted_s for found in runs]
            ended = [seconds for seconds in lasted if seconds is not None]
            figures[f"{name}, tick {tick_s:g} s, scrape {scrape_s:g} s"] = {
                "runs": len(runs),
                "inside_at_the_end": len(ended) / len(runs),
                "within_20_s": sum(seconds <= 20 for seconds in ended) / len(runs),
                "median_s": round(statistics.median(ended), 1) if ended else None,
                "p95_s": round(percentile(ended, 95), 1) if ended else None,
                "moves": Counter(move.cause for found in runs for move in found.moves),
            }
    runs = each(partial(run, "step:25,40,{step:g}", 190.0, "", 1.0, None))
    figures["1000 a second, one worker serves 421"] = {
        "runs": len(runs),
        "moves": sum(len(found.moves) for found in runs),
        "capacity_short": sum(found.last is StillReason.CAPACITY_SHORT for found in runs) / len(runs),
        "replicas_needed": Counter(str(found.replicas_needed) for found in runs),
    }
    return figures


def bad_moves(each: Callable[[Callable[[int], Run]], list[Run]]) -> dict[str, object]:
    """A move that makes it worse at a steady load."""
    runs = each(partial(run, "poisson:62", 210.0, "ceiling=1", 1.0, None))
    back = [move.time_s - PLANTED_S for found in runs for move in found.moves if move.cause in ("Rollback", "Capacity")]
    return {
        "runs": len(runs),
        "rolled_back": sum(any(move.outcome == "RolledBack" for move in found.moves) for found in runs),
        "mended_within_120_s": sum(seconds <= 120 for seconds in back),
        "median_s": statistics.median(back),
        "max_s": max(back),
    }


def steady(load: str, hours: float) -> dict[str, object]:
    """Hours of steady load with requests that may be held up to the deadline, against the best constant margin."""
    spec, model = settings(50, hold_ms=50, idle=32, busy=8), parse_model("a=0.5ms,c=6ms")
    requests = arrivals(load, hours * 3600, 1)
    tuner = Retuner(spec, Bounds(spec))
    tuned = simulate(spec, requests, model, tuner=tuner)
    short = requests[: len(requests) // 10]
    best = max(constant(spec, short, model))
    return {
        "hours": hours,
        "requests": len(requests),
        "over_sla": round(tuned.all.over_sla_ratio, 5),
        "moves": len(tuned.moves),
        "reversals_an_hour": reversals(tuned.moves) / hours,
        "efficiency": round(tuned.efficiency, 3),
        "best_constant_efficiency": round(best, 3),
    }


def constant(spec: Settings, requests: Sequence[LoadRequest], model: EngineModel) -> Iterable[float]:
    """Efficiency of every constant setting of the sweep that meets the SLA; 0 where none does."""
    yield 0.0
    for ceiling, margin in itertools.product((8, 16, 32), (2, 10, 20)):
        found: Simulated = simulate(spec.but(ceiling=ceiling, margin_percent=margin), requests, model)
        if found.all.over_sla_ratio <= 0.01 and not math.isnan(found.efficiency):
            yield found.efficiency


def reversals(moves: Iterable[Move]) -> int:
    """How often a lever went back on its last move."""
    upward: dict[str, bool] = {}
    count = 0
    for move in moves:
        values = zip(move.before.split(), move.after.split(), strict=True)
        for before, after in values:
            lever = before.partition("=")[0]
            up = _number(after) > _number(before)
            count += upward.get(lever, up) is not up
            upward[lever] = up
    return count


def _number(text: str) -> float:
    digits = text.partition("=")[2].rstrip("ms%")
    return {"on": 1.0, "off": 0.0}[digits] if digits in ("on", "off") else float(digits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steady", default="5:24,50:24,400:2", help="RATE:HOURS of the steady loads")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/retune_simulated.json")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:

        def each(scenario: Callable[[int], Run]) -> list[Run]:
            return list(pool.map(scenario, range(given.seeds)))

        loads = [
            (f"{kind}:{rate}{more}", float(hours))
            for rate, hours in (part.split(":") for part in given.steady.split(","))
            for kind, more in (("poisson", ""), ("gamma", ",3.7"))
        ]
        figures = {
            "recovery": recovery(each),
            "planted bad move": bad_moves(each),
            "steady": {
                load: found for (load, _), found in zip(loads, pool.map(steady, *zip(*loads, strict=True)), strict=True)
            },
        }
    if given.keep:
        command = f"python -m benchmarks.retune_simulated --seeds {given.seeds} --steady {given.steady}"
        keep("retune_simulated", command, figures)
    else:
        print(figures)


if __name__ == "__main__":
    main()
