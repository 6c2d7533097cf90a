"""The same open-loop load under each way to batch, in turn."""

from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.first_light import instance
from benchmarks.first_light.instance import Counters, Watched
from benchmarks.first_light.ways import TIMEOUT_FACTOR, Way
from tailkeeper.bench.plan import Limits, Plan, Target
from tailkeeper.bench.report import Report
from tailkeeper.bench.run import run_load
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_sizes import Fixed
from tailkeeper.model.loads import parse_arrivals

WORDS: Final = 12
"""Tokens of a text."""
INTERACTIVE_SHARE: Final = 0.2
BATCH_CV: Final = 3.7
"""Of the gaps between offline requests: what a public trace of code completion shows within a minute."""
BATCH_FACTOR: Final = 60
"""The batch tier's deadline in SLAs, the default of the online class."""


@dataclass(frozen=True)
class Load:
    """Requests a second, both tiers together."""

    rate: float

    def tiers(self) -> tuple[TierLoad, ...]:
        """Interactive as it comes (Poisson), offline in bursts."""
        interactive, batch = INTERACTIVE_SHARE * self.rate, (1 - INTERACTIVE_SHARE) * self.rate
        return (
            TierLoad("interactive", parse_arrivals(f"poisson:{interactive:g}"), prompt=Fixed(WORDS)),
            TierLoad("batch", parse_arrivals(f"gamma:{batch:g},{BATCH_CV:g}"), prompt=Fixed(WORDS)),
        )


@dataclass(frozen=True)
class Run:
    """One way under one load."""

    way: Way
    report: Report
    seen: tuple[Counters, ...]
    moves: tuple[str, ...] = ()

    @property
    def busy_fraction(self) -> float:
        """Share of time in forward passes."""
        first, last = self.seen[0], self.seen[-1]
        return (last.busy_s - first.busy_s) / (last.time_s - first.time_s)

    @property
    def work_per_busy_s(self) -> float:
        """Requests per second of forward passes."""
        first, last = self.seen[0], self.seen[-1]
        return (last.work - first.work) / (last.busy_s - first.busy_s)


def plan(tiers: tuple[TierLoad, ...], sla_ms: int, duration_s: float, seed: int, warmup_s: float = 2.0) -> Plan:
    """The load generator's plan; the clients hang up when the tier's timeout is over."""
    limits = {
        "interactive": Limits(sla_ms=sla_ms, timeout_ms=TIMEOUT_FACTOR * sla_ms),
        "batch": Limits(sla_ms=BATCH_FACTOR * sla_ms, timeout_ms=2 * BATCH_FACTOR * sla_ms),
    }
    # Sent on time or not is told apart by the report; two cores are shared with everything that is measured.
    return Plan(
        target=Target(instance.url(), model="minilm"),
        loads=tiers,
        limits={tier.tier: limits[tier.tier] for tier in tiers},
        duration_s=duration_s,
        warmup_s=warmup_s,
        seed=seed,
        max_send_lag_ms=50,
        probe=False,  # a first request alone would wait for its batch to fill
    )


async def run(way: Way, load: Load, sla_ms: int, duration_s: float, seed: int, show: bool) -> Run:
    """One way, applied and loaded."""
    instance.apply(way, sla_ms)
    watched = Watched()
    with instance.operator_log(show) as moves:
        async with watched.running():
            report = await run_load(plan(load.tiers(), sla_ms, duration_s, seed))
    return Run(way, report, tuple(watched.seen), tuple(move.text for move in moves))


async def unloaded_p99_ms(way: Way, sla_ms: int, duration_s: float) -> float:
    """The tail of requests that meet nobody: what an SLA is a multiple of. Two a second, evenly spaced."""
    instance.apply(way, sla_ms)
    tiers = (TierLoad("interactive", parse_arrivals("constant:5"), prompt=Fixed(WORDS)),)
    alone = plan(tiers, sla_ms, duration_s, seed=0)
    report = await run_load(replace(alone, limits={"interactive": Limits(timeout_ms=10_000)}))
    latency = report.tier("interactive").latency_ms
    assert latency is not None
    return latency.p99


def row(run: Run, saturated_per_busy_s: float) -> dict[str, Any]:
    """What is kept of one run. Milliseconds; ratios from 0 to 1."""
    interactive, batch = run.report.tier("interactive"), run.report.tier("batch")
    latency, waits = interactive.latency_ms, interactive.waits
    assert latency is not None
    return {
        "sent": interactive.sent,
        "mean_ms": latency.mean,
        "p95_ms": latency.p95,
        "p99_ms": latency.p99,
        "batch_wait_p99_ms": waits.hold_ms.p99 if waits else None,
        "waiting_p99_ms": waits.waiting_ms.p99 if waits else None,
        "late": interactive.late_ratio,
        "timeouts": interactive.timeout_ratio,
        "busy_fraction": round(run.busy_fraction, 3),
        "efficiency": round(run.work_per_busy_s / saturated_per_busy_s, 3),
        "batch_per_s": batch.answered_per_s,
        "batch_sent_per_s": batch.sent_per_s,
        "batch_timeouts": batch.timeout_ratio,
        "moves": len(run.moves),
        "kept_up": run.report.generator.kept_up,
    }
