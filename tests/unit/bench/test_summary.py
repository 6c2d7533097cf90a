"""The report: percentiles over all requests sent, what is missing counts as its timeout, nothing unknown is zero."""

import array
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tailkeeper.bench.measured import ROW_TYPE, Generator, Measured
from tailkeeper.bench.outcome import ROW, Outcome, of_status
from tailkeeper.bench.plan import Api, Limits, Plan, Target
from tailkeeper.bench.report import Report
from tailkeeper.bench.summary import quantiles, summarize
from tailkeeper.bench.table import lines, show
from tailkeeper.bench.thresholds import crossed, metrics, parse_threshold
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError

NAN = math.nan


def row(
    index: int,
    latency_s: float = 0.01,
    outcome: Outcome = Outcome.ANSWERED,
    status: int = 200,
    lag_s: float = 0.0001,
    first_s: float = NAN,
    waits: Sequence[float] = (NAN,) * 4,
) -> bytes:
    return ROW.pack(index, lag_s, latency_s, first_s, *waits, 3, status, outcome, 1)


def run(
    rows: Sequence[bytes], tiers: str | None = None, spacing_s: float = 0.01, interrupted: bool = False, **change: Any
) -> Report:
    """Requests at even spacing; `tiers` gives each its tier by a letter."""
    tiers = tiers or "a" * len(rows)
    trace = tuple(LoadRequest(n * spacing_s, tier, 8, 8) for n, tier in enumerate(tiers))
    plan = Plan(
        Target("http://h/v1/embeddings"),
        trace=trace,
        limits={"a": Limits(sla_ms=50, timeout_ms=1000)},
        duration_s=len(trace) * spacing_s,
    )
    plan = replace(plan, **change)
    generator = Generator(processes=1, sent=len(rows), connections=2, cpu_fraction=0.1, realtime=True)
    measured = Measured(trace, b"".join(rows), {}, {}, generator, "mini", 0.0, interrupted, ())
    return summarize(plan, measured)


def test_rows_are_packed_as_they_are_read() -> None:
    assert ROW.size == ROW_TYPE.itemsize
    (found,) = np.frombuffer(row(7, 0.25, Outcome.SHED, 429, waits=(1, 2, 3, 4)), ROW_TYPE)
    assert (found["index"], found["latency_s"], found["status"], found["outcome"]) == (7, 0.25, 429, Outcome.SHED)
    assert (found["hold_ms"], found["exec_ms"], found["output_tokens"], found["attempts"]) == (1, 4, 3, 1)


def test_statuses_are_outcomes() -> None:
    assert [of_status(s) for s in (200, 204, 301, 400, 429, 500, 503, 504)] == [
        Outcome.ANSWERED,
        Outcome.ANSWERED,
        Outcome.ERROR,
        Outcome.ERROR,
        Outcome.SHED,
        Outcome.ERROR,
        Outcome.ERROR,
        Outcome.EXPIRED,
    ]


def test_quantiles_are_measured_values_at_their_rank() -> None:
    found = quantiles(np.arange(1, 1001, dtype=float)[::-1])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99, found.p999, found.max) == (500, 900, 950, 990, 999, 1000)
    assert found.mean == 500.5
    assert found.p99_low < 990 < (found.p99_high or 0)
    hundred = quantiles(np.arange(1, 101, dtype=float))
    assert hundred is not None
    assert hundred.p99 == 99
    assert hundred.p99_high is None
    assert quantiles(np.array([NAN])) is None


def test_a_missing_answer_counts_as_its_timeout() -> None:
    lost = [
        row(0, NAN, Outcome.SHED, 429),
        row(1, NAN, Outcome.EXPIRED, 504),
        row(2, NAN, Outcome.TIMEOUT, 0),
        row(3, NAN, Outcome.ERROR, 500),
    ]
    tier = run(lost + [row(n) for n in range(4, 100)]).tier("a")
    assert tier.latency_ms is not None
    assert tier.latency_ms.count == 100
    assert tier.latency_ms.p95 == pytest.approx(10, abs=0.01)
    assert tier.latency_ms.p99 == 1000
    assert tier.latency_ms.mean == pytest.approx((4 * 1000 + 96 * 10) / 100, abs=0.01)
    assert tier.late_ratio == 0.04
    assert tier.timeout_ratio == 0.03
    assert tier.error_ratio == 0.01
    assert tier.statuses == {"200": 96, "429": 1, "504": 1, "500": 1, "none": 1}
    outcomes = tier.outcomes
    assert (outcomes.ok, outcomes.shed, outcomes.expired, outcomes.timeout, outcomes.error) == (96, 1, 1, 1, 1)


def test_a_refusal_counts_as_its_timeout_however_fast_it_came() -> None:
    tier = run([row(0, 0.001, Outcome.SHED, 429), row(1)]).tier("a")
    assert tier.latency_ms is not None
    assert tier.latency_ms.max == 1000


def test_late_is_over_the_sla_of_its_own_tier() -> None:
    report = run([row(n, 0.06) for n in range(10)], tiers="aaaaabbbbb")
    assert report.tier("a").late_ratio == 1.0
    assert report.tier("a").outcomes.late == 5
    assert report.tier("b").late_ratio is None
    assert report.tier("b").outcomes.ok == 5
    assert report.total.sent == 10
    assert report.total.late_ratio == 0.5


def test_warm_up_is_not_counted() -> None:
    tier = run([row(n, 0.5 if n < 50 else 0.01) for n in range(100)], warmup_s=0.5, duration_s=0.5).tier("a")
    assert tier.sent == 50
    assert tier.late_ratio == 0
    assert tier.sent_per_s == 100
    assert tier.series[0].points[0].start_s == 0.5


def test_the_unfinished_are_counted_and_in_no_percentile() -> None:
    rows = [row(n) for n in range(50)] + [row(n, NAN, Outcome.UNFINISHED, 0) for n in range(50, 60)]
    report = run(rows, tiers="a" * 100, interrupted=True)
    tier = report.tier("a")
    assert report.interrupted
    assert report.duration_s == pytest.approx(0.59)
    assert tier.outcomes.unfinished == 10
    assert tier.sent == 60
    assert tier.latency_ms is not None
    assert tier.latency_ms.count == 50
    assert tier.late_ratio == 0


def test_waits_are_of_those_that_said_them() -> None:
    report = run([row(0, waits=(1, 2, 3, 4)), row(1), row(2, waits=(3, 0, 0, 4))])
    waits = report.tier("a").waits
    assert waits is not None
    assert (waits.hold_ms.count, waits.hold_ms.max, waits.waiting_ms.max, waits.exec_ms.p50) == (2, 3, 6, 4)
    assert run([row(0)]).tier("a").waits is None


def test_who_expired_waited_and_who_was_shed_did_not() -> None:
    rows = [
        row(0, waits=(1, 1, 1, 4)),
        row(1, NAN, Outcome.EXPIRED, 504, waits=(5, 20, 30, 0)),
        row(2, NAN, Outcome.SHED, 429, waits=(0, 0, 0, 0)),
    ]
    waits = run(rows).tier("a").waits
    assert waits is not None
    assert (waits.waiting_ms.count, waits.waiting_ms.max) == (2, 55)
    assert (waits.exec_ms.count, waits.exec_ms.max) == (1, 4)


def test_a_series_has_a_point_a_bucket_and_no_number_for_silence() -> None:
    rows = [row(n, 0.06 if n >= 6 else 0.01) for n in range(8)]
    tiers = "aaaa" + "b" * 2 + "aa"
    points = run(rows, tiers=tiers, spacing_s=0.5).tier("a").series[0].points
    assert [(p.start_s, p.sent, p.late_ratio) for p in points] == [(0, 2, 0), (1, 2, 0), (2, 0, None), (3, 2, 1)]
    assert points[2].p99_ms is None


def test_streams_that_never_began_count_as_their_timeout_for_the_first_token_too() -> None:
    target = Target("http://h", Api.CHAT)
    rows = [row(0, 0.1, first_s=0.02), row(1, NAN, Outcome.TIMEOUT, 0)]
    tier = run(rows, target=target).tier("a")
    assert tier.first_token_ms is not None
    assert (tier.first_token_ms.p50, tier.first_token_ms.max) == (pytest.approx(20), 1000)
    assert run([row(0)]).tier("a").first_token_ms is None


def test_a_sender_that_is_late_is_not_believed() -> None:
    generator = run([row(n, lag_s=0.05 if n < 3 else 0) for n in range(100)]).generator
    assert not generator.kept_up
    assert "50 ms late" in str(generator.why_not)
    assert run([row(n, lag_s=0.05 if n < 1 else 0) for n in range(100)]).generator.kept_up


def test_gaps_between_tokens_are_reported_by_tier() -> None:
    trace = (LoadRequest(0, "a", 8, 8),)
    plan = Plan(Target("http://h", Api.CHAT), trace=trace, duration_s=1)
    gaps = {"a": array.array("f", [0.02] * 99 + [0.5])}
    generator = Generator(1, 1, 1, 0.1, True)
    report = summarize(plan, Measured(trace, row(0, 1.0, first_s=0.2), gaps, {}, generator, "m", 0.0, False, ()))
    inter = report.tier("a").inter_token_ms
    assert inter is not None
    assert (inter.count, inter.p99, inter.max) == (100, pytest.approx(20), pytest.approx(500))


def test_nothing_sent_is_a_report_too() -> None:
    report = run([], tiers="a", interrupted=True)
    assert report.tier("a").latency_ms is None
    assert report.to_json()


def failures(text: str, report: Report) -> list[str]:
    names = [tier.tier for tier in report.tiers]
    return [str(c) for c in crossed(report, [parse_threshold(text, names)])]


def test_thresholds_hold_for_every_tier_or_for_one() -> None:
    report = run([row(n, 0.2 if n % 2 else 0.01) for n in range(10)], tiers="ab" * 5)
    assert failures("p99>100", report) == ["p99>100: b p99 = 200"]
    assert failures("a.p99>100", report) == []
    assert failures("b.mean >= 200", report) == ["b.mean >= 200: b mean = 200"]
    assert failures("answered_per_s<1", report) == []
    assert len(failures("late_ratio>0.01", report)) == 1  # b has no SLA: nothing was shown of it


@pytest.mark.parametrize("metric", metrics())
def test_every_metric_can_be_judged_or_is_said_to_be_unknown(metric: str) -> None:
    for text in failures(f"{metric}>1e9", run([row(0)])):
        assert text.endswith(f"a has no {metric}")


@pytest.mark.parametrize("text", ["", "p99", "p99>", "p99>x", "p99>nan", "p98>3", "c.p99>3", "p99=3", "a.p99>3>4"])
def test_a_threshold_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LoadError):
        parse_threshold(text, ["a", "b"])


def test_a_breach_without_end_is_longer_than_any_bound() -> None:
    report = run([row(n, 0.06) for n in range(100)])
    assert failures("longest_breach_s>3600", report) == ["longest_breach_s>3600: a longest_breach_s = inf"]
    assert failures("longest_breach_s>0", run([row(n) for n in range(100)])) == []


def test_one_line_a_tier_for_logs() -> None:
    (line,) = lines(run([row(n) for n in range(100)]))
    assert line == (
        "tier=a sent=100 avg=10.0ms p95=10.0ms p99=10.0ms timeout_rate=0.00% sla_breached=false kept_up=true"
    )


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_its_terminal_and_cuts_no_number(width: int) -> None:
    report = run([row(n, 12.3456, waits=(1, 2, 3, 4)) for n in range(4000)], tiers="a" * 4000)
    out = io.StringIO()
    show(report, Console(file=out, width=width))
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "12346" in out.getvalue()


def test_an_answer_after_the_callers_own_deadline_is_late_also_without_an_sla() -> None:
    trace = tuple(LoadRequest(0.01 * n, "b", 8, 8, deadline_ms=20 if n else None) for n in range(3))
    rows = [row(0, 0.5), row(1, 0.019), row(2, 0.021)]
    generator = Generator(processes=1, sent=3, connections=2, cpu_fraction=0.1, realtime=True)
    plan = Plan(Target("http://h/v1/embeddings"), trace=trace, duration_s=0.03)
    tier = summarize(plan, Measured(trace, b"".join(rows), {}, {}, generator, "mini", 0.0, False, ())).tier("b")
    assert (tier.outcomes.ok, tier.outcomes.late, tier.late_ratio) == (2, 1, None)
