"""The report for people: one row a tier, what waiting was made of, and whether to believe it."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailkeeper.bench.breach import ALLOWED_LATE
from tailkeeper.bench.report import Quantiles, Report, TierReport

_WIDE: Final = 110


def show(report: Report, console: Console) -> None:
    """Print the report."""
    title = f"{report.model} · {report.api} · {report.url}"
    length = f"{report.duration_s:g} s" + (f" after {report.warmup_s:g} s of warm-up" if report.warmup_s else "")
    console.print(Text(f"{title} · {length}{' · stopped early' if report.interrupted else ''}", style="dim"))
    rows = [*report.tiers, report.total] if len(report.tiers) > 1 else [*report.tiers]
    console.print(_latencies(rows, console.width))
    if any(tier.first_token_ms for tier in rows):
        console.print(_tokens(rows))
    if any(tier.waits for tier in rows):
        console.print(_waits(rows))
    for line in _remarks(report):
        console.print(line)


def lines(report: Report) -> Iterator[str]:
    """Yield one line a tier, as `key=value`: for logs."""
    for tier in report.tiers:
        latency = tier.latency_ms
        if latency is None:
            continue
        breached = "unknown" if tier.late_ratio is None else str(tier.late_ratio > ALLOWED_LATE).lower()
        yield (
            f"tier={tier.tier} sent={tier.sent} avg={_ms(latency.mean)}ms p95={_ms(latency.p95)}ms "
            f"p99={_ms(latency.p99)}ms timeout_rate={tier.timeout_ratio:.2%} "
            f"sla_breached={breached} kept_up={str(report.generator.kept_up).lower()}"
        )


def _latencies(rows: list[TierReport], width: int) -> Table:
    table = _table("latency in ms, over all requests sent")
    every = [_latency_cells(tier) for tier in rows]
    # What a narrow terminal goes without first.
    names = [name for name in every[0] if width >= _WIDE or name not in ("per s", "p50", "max")]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for tier, cells in zip(rows, every, strict=True):
        table.add_row(tier.tier, *(cells[name] for name in names))
    return table


def _latency_cells(tier: TierReport) -> dict[str, Text]:
    mean, p50, p95, p99, most = _cells(tier.latency_ms, "mean", "p50", "p95", "p99", "max")
    late_style = "" if tier.late_ratio is None else "red" if tier.late_ratio > ALLOWED_LATE else "green"
    return {
        "sent": Text(str(tier.sent)),
        "per s": Text(f"{tier.sent_per_s:.1f}"),
        "mean": Text(mean),
        "p50": Text(p50),
        "p95": Text(p95),
        "p99": Text(p99, style="bold"),
        "max": Text(most),
        "SLA": Text(f"{tier.sla_ms:g}" if tier.sla_ms else "–"),
        "late": Text(_percent(tier.late_ratio), style=late_style),
        "timeouts": Text(_percent(tier.timeout_ratio), style="red" if tier.timeout_ratio > 0 else ""),
        "errors": Text(_percent(tier.error_ratio), style="red" if tier.error_ratio > 0 else ""),
    }


def _tokens(rows: list[TierReport]) -> Table:
    table = _table("tokens, ms")
    for name in ("first p50", "first p99", "between p50", "between p99", "tokens/s"):
        table.add_column(name, justify="right")
    for tier in rows:
        table.add_row(
            tier.tier,
            *_cells(tier.first_token_ms, "p50", "p99"),
            *_cells(tier.inter_token_ms, "p50", "p99"),
            f"{tier.output_tokens_per_s:.1f}" if tier.output_tokens_per_s is not None else "–",
        )
    return table


def _waits(rows: list[TierReport]) -> Table:
    table = _table("where requests waited, p99 in ms (mean)")
    for name in ("batch wait", "busy", "slot", "all waiting", "exec"):
        table.add_column(name, justify="right")
    for tier in rows:
        waits = tier.waits
        if waits is None:
            table.add_row(tier.tier, *["–"] * 5)
            continue
        every = (waits.hold_ms, waits.busy_ms, waits.slot_ms, waits.waiting_ms, waits.exec_ms)
        table.add_row(tier.tier, *(f"{_ms(q.p99)} ({_ms(q.mean)})" for q in every))
    return table


def _remarks(report: Report) -> Iterator[Text]:
    for tier in report.tiers:
        for breach in tier.breaches:
            text = f"{tier.tier}: over its SLA from {breach.first_late_s:.1f} s"
            end = "to the end" if breach.lasted_s is None else f"for {breach.lasted_s:.1f} s"
            yield Text(f"{text} {end}", style="yellow")
        if tier.latency_ms is not None and tier.latency_ms.p99_high is None:
            yield Text(
                f"{tier.tier}: {tier.latency_ms.count} requests are too few to bound the p99 from above", style="yellow"
            )
    for error in report.errors[:5]:
        yield Text(f"{error.count} × {error.what}", style="red")
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    generator, lag = report.generator, report.generator.send_lag_ms
    sent = f"sent on time: p99 {lag.p99:.2f} ms late, at most {lag.max:.1f} ms"
    if generator.kept_up:
        yield Text(f"{sent}; {generator.connections} connections", style="dim")
    else:
        yield Text(
            f"NOT THE LOAD ASKED FOR: {generator.why_not}. Do not quote these numbers; "
            "use more --processes or another machine.",
            style="bold red",
        )


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tier", no_wrap=True)
    return table


def _cells(distribution: Quantiles | None, *names: str) -> list[str]:
    if distribution is None:
        return ["–"] * len(names)
    return [_ms(getattr(distribution, name)) for name in names]


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2%}"
