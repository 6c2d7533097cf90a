"""One line that a person reads in an Event, in the log, and in `tailkeeper explain`.

`tier=interactive avg=820ms p95=1900ms p99=6020ms late=5.4% timeout_rate=5.1% … sla_breached=true action=window→16`"""

import re
from collections.abc import Iterable, Sequence

from tailkeeper.api.enums import Lever
from tailkeeper.api.levers import Move
from tailkeeper.api.settings import Settings
from tailkeeper.control.attribute import shares_of
from tailkeeper.control.judge import Finding, Objective
from tailkeeper.control.observation import Value


def line(
    value: Value, settings: Settings, findings: Sequence[Finding], action: str, reverted_in_s: float | None
) -> str:
    """The whole line, the worst objective first."""
    words = []
    if findings:
        worst = findings[0]
        of_tier = {each.objective: each for each in findings if each.tier == worst.tier}
        words += [f"tier={worst.tier}", *_latency(value, worst.tier)]
        words += [f"{word}={_percent(of_tier[kind].late.ratio)}" for kind, word in _RATIOS.items() if kind in of_tier]
        words += [f"requests={worst.late.n:.0f}", f"span={worst.span_s:.0f}s", *_cause(value, settings, worst.tier)]
    words.append(f"rate={value.short.rate_per_s:.3g}/s")
    if value.gauges.window is not None:
        words.append(f"window={value.gauges.window:.0f}/{settings.ceiling}")
    if value.gauges.efficiency is not None:
        words.append(f"efficiency={_percent(value.gauges.efficiency)}")
    words.append(f"sla_breached={str(any(each.broken for each in findings)).lower()}")
    words.append(f"action={action}")
    if reverted_in_s is not None:
        words.append(f"reverted_in={reverted_in_s:.0f}s")
    return " ".join(words)


def moves_text(moves: Iterable[Move]) -> str:
    """`window→16,boost.interactive→500ms`; the ceiling goes by the name of what it bounds."""
    texts = []
    for move in moves:
        name, _, value = str(move).partition("=")
        texts.append(f"{'window' if move.key.lever is Lever.CEILING else name}→{value}")
    return ",".join(texts)


def with_action(line: str, action: str) -> str:
    """The same line with another action: the way back inside the SLA is told with what led there."""
    return re.sub(r"action=\S+", f"action={action}", line)


_RATIOS = {
    Objective.LATENCY: "late",
    Objective.FIRST_TOKEN: "late_first_token",
    Objective.INTER_TOKEN: "late_inter_token",
    Objective.TIMEOUT: "timeout_rate",
}


def _latency(value: Value, tier: str) -> list[str]:
    for each in value.latencies:
        if each.tier == tier:
            return [f"avg={each.mean_s * 1000:.0f}ms", f"p95={each.p95.text()}", f"p99={each.p99.text()}"]
    return []


def _cause(value: Value, settings: Settings, tier: str) -> list[str]:
    shares = shares_of(value, settings, tier)
    return [f"cause={shares.name}:{_percent(getattr(shares, shares.name))}"] if shares.name else []


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.3g}%"
