"""A bad ceiling set by hand, then four times the load: how long is the SLA broken, with the tuner off and on?"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.first_light import instance
from benchmarks.first_light.compare import WORDS, Run, plan
from benchmarks.first_light.instance import Watched
from benchmarks.first_light.ways import Way
from tailkeeper.bench.run import run_load
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_sizes import Fixed
from tailkeeper.model.loads import parse_arrivals
from tests.e2e import cluster

CEILING: Final = 1
STEP: Final = 4
OVER_CEILING: Final = 1.4
"""The load after the step, in what the engine serves one at a time: far too much for the ceiling, and about half of
what it serves in full batches."""
BEFORE_S: Final = 15.0
LOOK_BACK_S: Final = 60.0
"""A new operator looks on for that long before it moves anything."""


@dataclass(frozen=True)
class Breach:
    """One run, seconds from the begin of the load."""

    run: Run
    first_late_s: float | None
    inside_s: float | None
    """First of three 5 s buckets in a row with at most 1 % late; None: not before the end."""

    @property
    def lasted_s(self) -> float | None:
        """First late request → inside the SLA again; 0 when nobody was late."""
        if self.first_late_s is None:
            return 0.0
        return None if self.inside_s is None else self.inside_s - self.first_late_s

    def kept(self) -> dict[str, Any]:
        """As it is written down."""
        lasted_s = self.lasted_s
        return {
            "lasted_s": None if lasted_s is None else round(lasted_s, 1),
            "late": self.run.report.tier("interactive").late_ratio,
            "ceiling_at_end": self.run.seen[-1].ceiling,
            "moves": list(self.run.moves),
        }


def rate_after(c_s: float, a_s: float) -> float:
    """Requests a second after the step, for an engine of T(b) = c + a·b seconds."""
    return OVER_CEILING / (c_s + a_s)


async def breach(way: Way, sla_ms: int, rate: float, after_s: float, seed: int, show: bool) -> Breach:
    """Plants the ceiling, loads, and says how long requests were late. `rate`: after the step."""
    instance.apply(way, sla_ms)
    instance.plant(CEILING)
    arrivals = parse_arrivals(f"step:{rate / STEP:g},{STEP},{BEFORE_S:g}")
    tiers = (TierLoad("interactive", arrivals, prompt=Fixed(WORDS)),)
    watched = Watched()
    with instance.operator_log(show) as moves:
        async with watched.running():
            report = await run_load(plan(tiers, sla_ms, BEFORE_S + after_s, seed, warmup_s=0.0))
    run = Run(way, report, tuple(watched.seen), tuple(move.text for move in moves))
    found = report.tier("interactive").breaches
    # A lone late request before the step is noise; the breach meant is the one that the step makes.
    mine = [one for one in found if one.inside_s is None or one.inside_s > BEFORE_S]
    if not mine:
        return Breach(run, None, None)
    return Breach(run, max(mine[0].first_late_s, BEFORE_S), mine[-1].inside_s)


@contextlib.contextmanager
def signals(source: str, scrape_s: int) -> Iterator[None]:
    """The operator with that source of signals, and Prometheus with that interval, until the block ends."""
    _configure(source, scrape_s)
    try:
        yield
    finally:
        _configure("", 1)


def _configure(source: str, scrape_s: int) -> None:
    namespace = cluster.OPERATOR_NAMESPACE
    command = ["helm", "upgrade", namespace, "charts/tailkeeper", "-n", namespace, "--wait", "--timeout=120s"]
    cluster.run(*command, "--values=hack/local-cluster/values.yaml", f"--set=signals={source}", timeout_s=150)
    found = cluster.get("configmap", "monitoring", "prometheus")
    lines = found["data"]["prometheus.yml"].splitlines()
    changed = [f"  scrape_interval: {scrape_s}s" if "scrape_interval:" in line else line for line in lines]
    if changed == lines:
        return
    found["data"]["prometheus.yml"] = "\n".join(changed) + "\n"
    found["metadata"].pop("managedFields", None)
    cluster.apply("monitoring", found)
    cluster.kubectl("rollout", "restart", "deployment/prometheus", "-n", "monitoring")
    cluster.kubectl("rollout", "status", "deployment/prometheus", "-n", "monitoring", "--timeout=90s")


async def without_prometheus(way: Way, sla_ms: int, rate: float, down_s: float, show: bool) -> dict[str, Any]:
    """Takes Prometheus away under load while a bad ceiling breaks the SLA: nothing may be moved on what is not seen."""
    instance.apply(way, sla_ms)
    instance.plant(CEILING)
    _replicas(0)
    await asyncio.sleep(5)
    before = instance.moves_total()
    tiers = (TierLoad("interactive", parse_arrivals(f"poisson:{rate:g}"), prompt=Fixed(WORDS)),)
    try:
        report = await run_load(plan(tiers, sla_ms, down_s, seed=0, warmup_s=0.0))
        down = instance.moves_total()
        condition = cluster.conditions(instance.POLICY, instance.NAMESPACE)["MetricsAvailable"]
    finally:
        _replicas(1)
    back_s = time.monotonic()
    with instance.operator_log(show) as moves:
        again = await run_load(plan(tiers, sla_ms, 60.0, seed=1, warmup_s=0.0))
    outcomes = report.tier("interactive").outcomes
    return {
        "down_s": down_s,
        "moves_while_down": sum(down.values()) - sum(before.values()),
        "requests": report.tier("interactive").sent,
        "errors": outcomes.error,
        "metrics_available": {"status": condition["status"], "message": condition["message"]},
        "moves_after": [{"after_s": round(move.time_s - back_s, 1), "move": move.text} for move in moves],
        "late_while_down": report.tier("interactive").late_ratio,
        "late_after": again.tier("interactive").late_ratio,
    }


def _replicas(count: int) -> None:
    cluster.kubectl("scale", "deployment/prometheus", "-n", "monitoring", f"--replicas={count}")
    if count:
        cluster.kubectl("rollout", "status", "deployment/prometheus", "-n", "monitoring", "--timeout=90s")
    else:
        cluster.kubectl("wait", "pod", "-n", "monitoring", "-l", "app=prometheus", "--for=delete", "--timeout=60s")


def coefficients() -> tuple[float, float]:
    """c and a in seconds, as the worker learnt them."""
    found = instance.now().coefficients
    try:
        return found["c"], found["a"]
    except KeyError:
        raise SystemExit("the worker has no latency model yet: send it some load first") from None


def patience_s() -> float:
    """How long to wait until a restarted operator may move."""
    return LOOK_BACK_S + 15.0
