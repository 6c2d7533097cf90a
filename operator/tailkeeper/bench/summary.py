"""From what was measured to the report: percentiles over all requests sent, ratios, waits, time series, breaches."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import numpy as np

from tailkeeper.bench.breach import breaches
from tailkeeper.bench.measured import Columns, Floats, Measured, columns
from tailkeeper.bench.outcome import Outcome
from tailkeeper.bench.plan import Plan
from tailkeeper.bench.report import (
    BreachReport,
    ErrorCount,
    GeneratorReport,
    Outcomes,
    Point,
    Quantiles,
    Report,
    SendLag,
    Series,
    TierReport,
    Waits,
)

SERIES_BUCKETS_S: Final = (1.0, 5.0)
_WAITED: Final = (Outcome.ANSWERED, Outcome.EXPIRED)
_LOCAL_TROUBLE: Final = ("Too many open files", "Cannot assign requested address")
"""Errors of connecting that are the generator's machine's, not the target's."""


def summarize(plan: Plan, measured: Measured) -> Report:
    """Make the report. Warm-up is left out."""
    everything = columns(plan, measured)
    counted = everything.where(everything.intended_s >= plan.warmup_s)
    measured_s = _measured_s(plan, everything, measured.interrupted)
    tiers = tuple(
        _tier(tier, plan, counted.where(counted.tier == tier), _gaps_ms(measured.gaps_s, tier), measured_s)
        for tier in plan.tiers
    )
    every_gap = np.concatenate([_gaps_ms(measured.gaps_s, tier) for tier in plan.tiers])
    return Report(
        url=plan.target.url,
        api=plan.target.chosen_api,
        model=measured.model,
        started_at=datetime.fromtimestamp(measured.started_at, UTC).isoformat(timespec="milliseconds"),
        warmup_s=plan.warmup_s,
        duration_s=measured_s,
        seed=plan.seed,
        interrupted=measured.interrupted,
        generator=_generator(plan, measured, everything),
        total=_tier(None, plan, counted, every_gap, measured_s),
        tiers=tiers,
        errors=tuple(
            ErrorCount(what=what, count=count) for what, count in sorted(measured.errors.items(), key=lambda e: -e[1])
        ),
        warnings=measured.warnings,
    )


def quantiles(values: Floats) -> Quantiles | None:
    """Return the distribution of some values, NaN left out; None when there are none."""
    values = np.sort(values[~np.isnan(values)])
    count = len(values)
    if not count:
        return None
    # The rank of the true p99 is binomial: its normal approximation gives the ranks that bound it.
    middle, spread = 0.99 * count, 1.96 * math.sqrt(count * 0.99 * 0.01)
    low, high = math.floor(middle - spread), math.ceil(middle + spread) + 1
    return Quantiles(
        count=count,
        mean=_rounded(values.mean()),
        p50=_at(values, 0.5),
        p90=_at(values, 0.9),
        p95=_at(values, 0.95),
        p99=_at(values, 0.99),
        p999=_at(values, 0.999),
        max=_rounded(values[-1]),
        p99_low=_rounded(values[max(low, 1) - 1]),
        p99_high=_rounded(values[high - 1]) if high <= count else None,
    )


def _at(ordered: Floats, share: float) -> float:
    """The smallest value with at least that share of all at or below it. No interpolation: it was measured."""
    # 0.99 * 100 is 99.00000000000001 in floating point: the small step back keeps the rank where it belongs.
    return _rounded(ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)])


def _rounded(ms: float) -> float:
    return round(float(ms), 3)


def _tier(name: str | None, plan: Plan, every: Columns, gaps_ms: Floats, measured_s: float) -> TierReport:
    """Report on one tier, or with no name on all."""
    done = every.where(every.outcome != Outcome.UNFINISHED)
    count = {outcome: int(np.count_nonzero(every.outcome == outcome)) for outcome in Outcome}
    answered = done.outcome == Outcome.ANSWERED
    late_answers = int(np.count_nonzero(done.late & answered))
    limits = plan.limits_of(name) if name is not None else None
    has_sla = any(plan.limits_of(tier).sla_ms is not None for tier in ([name] if name else plan.tiers))
    timeouts = count[Outcome.SHED] + count[Outcome.EXPIRED] + count[Outcome.TIMEOUT]
    statuses, times = np.unique(done.status, return_counts=True)
    return TierReport(
        tier="all" if name is None else name,
        sla_ms=limits.sla_ms if limits else None,
        timeout_ms=limits.timeout_ms if limits else None,
        sent=len(every),
        sent_per_s=_per_s(len(every), measured_s),
        answered_per_s=_per_s(count[Outcome.ANSWERED], measured_s),
        outcomes=Outcomes(
            ok=count[Outcome.ANSWERED] - late_answers,
            late=late_answers,
            shed=count[Outcome.SHED],
            expired=count[Outcome.EXPIRED],
            timeout=count[Outcome.TIMEOUT],
            error=count[Outcome.ERROR],
            unfinished=count[Outcome.UNFINISHED],
        ),
        statuses={str(s) if s else "none": int(n) for s, n in zip(statuses, times, strict=True)},
        late_ratio=_ratio(int(np.count_nonzero(done.late)), len(done)) if has_sla else None,
        timeout_ratio=_ratio(timeouts, len(done)) or 0.0,
        error_ratio=_ratio(count[Outcome.ERROR], len(done)) or 0.0,
        latency_ms=quantiles(done.latency_ms),
        first_token_ms=quantiles(done.first_token_ms),
        inter_token_ms=quantiles(gaps_ms),
        output_tokens_per_s=_per_s(int(done.output_tokens.sum()), measured_s) if plan.target.streams else None,
        waits=_waits(done),
        breaches=tuple(
            BreachReport(first_late_s=b.first_late_s, inside_s=b.inside_s, lasted_s=b.lasted_s)
            for b in breaches(done.intended_s.tolist(), done.late.tolist(), plan.warmup_s)
        ),
        series=tuple(_series(done, bucket_s, plan.warmup_s, has_sla) for bucket_s in SERIES_BUCKETS_S),
    )


def _waits(done: Columns) -> Waits | None:
    # The expired count: without them waiting would look shorter the more of it there was. The shed did not wait at all.
    waited = done.where(np.isin(done.outcome, _WAITED))
    hold, busy, slot = quantiles(waited.hold_ms), quantiles(waited.busy_ms), quantiles(waited.slot_ms)
    execution = quantiles(done.exec_ms[done.outcome == Outcome.ANSWERED])
    waiting = quantiles(waited.waiting_ms)
    if hold is None or busy is None or slot is None or execution is None or waiting is None:
        return None
    return Waits(hold_ms=hold, busy_ms=busy, slot_ms=slot, exec_ms=execution, waiting_ms=waiting)


def _series(done: Columns, bucket_s: float, start_s: float, has_sla: bool) -> Series:
    number = ((done.intended_s - start_s) // bucket_s).astype(int)
    # In order of intended time, so each bucket is one slice.
    edges = np.searchsorted(number, np.arange((number[-1] + 2) if len(number) else 1))
    points = []
    for n, (begin, end) in enumerate(pairwise(edges)):
        part = slice(begin, end)
        sent = int(end - begin)
        latency = quantiles(done.latency_ms[part])
        hold = quantiles(done.hold_ms[part][np.isin(done.outcome[part], _WAITED)])
        lost = np.isin(done.outcome[part], (Outcome.SHED, Outcome.EXPIRED, Outcome.TIMEOUT))
        points.append(
            Point(
                start_s=start_s + n * bucket_s,
                sent=sent,
                late_ratio=_ratio(int(np.count_nonzero(done.late[part])), sent) if has_sla else None,
                timeout_ratio=_ratio(int(np.count_nonzero(lost)), sent),
                p50_ms=latency.p50 if latency else None,
                p99_ms=latency.p99 if latency else None,
                hold_p99_ms=hold.p99 if hold else None,
            )
        )
    return Series(bucket_s=bucket_s, points=tuple(points))


def _generator(plan: Plan, measured: Measured, every: Columns) -> GeneratorReport:
    lag = quantiles(every.lag_ms)
    why_not: str | None = None
    trouble = [what for what in measured.errors if any(local in what for local in _LOCAL_TROUBLE)]
    if trouble:
        why_not = f"this machine ran out of what connections need ({trouble[0]})"
    elif lag is not None and lag.p99 > plan.max_send_lag_ms:
        why_not = f"1 % of requests left more than {lag.p99:.3g} ms late; {plan.max_send_lag_ms:g} ms are allowed"
    return GeneratorReport(
        kept_up=why_not is None,
        why_not=why_not,
        send_lag_ms=SendLag(p50=lag.p50, p99=lag.p99, max=lag.max) if lag else SendLag(p50=0, p99=0, max=0),
        max_send_lag_ms=plan.max_send_lag_ms,
        processes=measured.generator.processes,
        connections=measured.generator.connections,
        cpu_fraction=round(measured.generator.cpu_fraction, 4),
        realtime=measured.generator.realtime,
    )


def _measured_s(plan: Plan, every: Columns, interrupted: bool) -> float:
    if not interrupted:
        return plan.duration_s
    last_s = float(every.intended_s[-1]) if len(every) else plan.warmup_s
    return round(max(0.0, last_s - plan.warmup_s), 3)


def _gaps_ms(gaps_s: Mapping[str, object], tier: str) -> Floats:
    return np.asarray(gaps_s.get(tier, ()), dtype=np.float32).astype(float) * 1e3


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _per_s(count: int, measured_s: float) -> float:
    return round(count / measured_s, 3) if measured_s > 0 else 0.0
