"""A picture of a run: p99 over time against the SLA, and what was sent and late."""

from pathlib import Path
from typing import Final

from tailkeeper.bench.report import Point, Report, TierReport

_FINE_UP_TO_S: Final = 120.0
"""Runs up to here are drawn in the finest buckets; longer ones would be a fringe."""


def plot(report: Report, path: Path) -> None:
    """Draw the run into a file; its ending says the format (png, svg, pdf).

    Raises:
        OSError: the file cannot be written.
        ValueError: no such format.
    """
    # Imported here: it takes most of a second.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(10, 6), height_ratios=(2, 1))
    for n, tier in enumerate(report.tiers):
        color = f"C{n}"
        points = _points(tier, report.duration_s)
        times_s = [p.start_s for p in points]
        above.plot(times_s, [p.p99_ms for p in points], color=color, label=f"{tier.tier} p99")
        above.plot(times_s, [p.p50_ms for p in points], color=color, linewidth=0.7, linestyle=":")
        if tier.sla_ms is not None:
            above.axhline(tier.sla_ms, color=color, linewidth=0.9, linestyle="--")
            below.plot(times_s, [100 * (p.late_ratio or 0.0) for p in points], color=color, label=f"{tier.tier} late")
        for breach in tier.breaches:
            end_s = breach.inside_s if breach.inside_s is not None else report.warmup_s + report.duration_s
            above.axvspan(breach.first_late_s, end_s, color=color, alpha=0.08)
    sent = _points(report.total, report.duration_s)
    rate = below.twinx()
    bucket_s = _bucket_s(report.duration_s)
    rate.fill_between(
        [p.start_s for p in sent], [p.sent / bucket_s for p in sent], step="post", color="grey", alpha=0.2
    )
    rate.set_ylabel("sent per s")
    above.set_yscale("log")
    above.set_ylabel("latency, ms")
    above.legend(loc="upper left")
    above.set_title(f"{report.model}: p99 by intended send time (dotted: p50, dashed: SLA)", loc="left", fontsize=10)
    below.set_ylabel("late, %")
    below.set_ylim(bottom=0)
    below.set_xlabel("seconds from the start")
    if not report.generator.kept_up:
        figure.text(0.5, 0.5, "NOT THE LOAD ASKED FOR", fontsize=32, color="red", alpha=0.4, ha="center", rotation=20)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bucket_s(duration_s: float) -> float:
    return 1.0 if duration_s <= _FINE_UP_TO_S else 5.0


def _points(tier: TierReport, duration_s: float) -> list[Point]:
    wanted = _bucket_s(duration_s)
    return [p for series in tier.series if series.bucket_s == wanted for p in series.points]
