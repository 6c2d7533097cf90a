"""One line per instance: what its policy's status and its workers tell, as data and as a table. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tailkeeper.api.enums import ConditionType, RetuneMode
from tailkeeper.cli.kube_client import Manifest
from tailkeeper.cli.policies import condition, status_of
from tailkeeper.cli.worker_pages import Summary, TierSummary
from tailkeeper.cli.worker_reads import At
from tailkeeper.model.quantile import Quantile

Row = dict[str, Any]
"""As `-o json` prints it: names are API, what is not known is null."""

TELLING = {
    ConditionType.ACCEPTED: "False",
    ConditionType.METRICS_AVAILABLE: "False",
    ConditionType.SETTINGS_APPLIED: "False",
    ConditionType.CAPACITY_SHORT: "True",
    ConditionType.DRIFT_DETECTED: "True",
}
"""Conditions that are told when they are so. Ready is told by the instances."""


def rows(policy: Manifest, summaries: Mapping[At, Summary]) -> list[Row]:
    """In the order of the spec."""
    namespace, name = policy["metadata"]["namespace"], policy["metadata"]["name"]
    found = []
    for instance in policy["spec"]["instances"]:
        at = At(namespace, name, instance["name"])
        found.append(_row(policy, at, status_of(policy, instance["name"]), summaries.get(at)))
    return found


def _row(policy: Manifest, at: At, status: Mapping[str, Any], summary: Summary | None) -> Row:
    effective = status.get("effective", {})
    deadlines = {tier["name"]: tier["deadlineMs"] for tier in effective.get("tiers", [])}
    tier = effective.get("defaultTier", "")
    known = summary.tiers.get(tier) if summary else None
    return {
        "namespace": at.namespace,
        "policy": at.policy,
        "instance": at.instance,
        "ready": status.get("ready", False),
        "readyReplicas": status.get("readyReplicas", 0),
        "desiredReplicas": status.get("desiredReplicas", 0),
        "reason": status.get("reason", "") or "NotSeen",
        "message": status.get("message", "") or ("" if status else "the operator has not seen it: is it running?"),
        "slaMs": deadlines.get(tier),
        "slaMet": condition(policy, ConditionType.SLA_MET).get("status", "Unknown"),
        "mode": effective.get("mode"),
        "retune": policy["spec"].get("retune", {}).get("mode", RetuneMode.AUTO.value),
        "paused": status.get("paused", False),
        "windowIdle": effective.get("windowIdle"),
        "windowBusy": effective.get("windowBusy"),
        "ceiling": effective.get("ceiling"),
        "generationWritten": status.get("settingsGeneration", 0),
        "generationApplied": status.get("appliedGeneration", 0),
        "lastMove": status.get("lastMove"),
        "defaultTier": tier or None,
        "p95Ms": _ms(known.p95 if known else None),
        "p99Ms": _ms(known.p99 if known else None),
        "batchWaitP99Ms": _ms(known.hold_p99 if known else None),
        "tiers": {name: _tier(each) for name, each in summary.tiers.items()} if summary else None,
        "window": summary.window if summary else None,
        "busyFraction": _rounded(summary.busy_fraction if summary else None),
        "timeoutRatio": _rounded(summary.timeout_ratio if summary else None),
        "efficiency": _rounded(summary.efficiency if summary else None),
        "queue": summary.queue if summary else None,
        "workersRead": summary.workers if summary else 0,
    }


def table(found: Sequence[Row], now: datetime, with_namespace: bool) -> str:
    """For people."""
    heads = ["INSTANCE", "READY", "SLA", "MET", "P95", "P99", "HOLD P99", "WINDOW", "BOUNDS", "BUSY", "TIMEOUTS"]
    heads += ["GENERATION", "MODE", "LAST MOVE"]
    lines = [heads, *(_cells(row, now) for row in found)]
    if with_namespace:
        lines = [
            ["NAMESPACE", *heads],
            *([row["namespace"], *cells] for row, cells in zip(found, lines[1:], strict=True)),
        ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def remarks(policy: Manifest, found: Sequence[Row]) -> list[str]:
    """What needs a sentence: who is not ready, and the conditions that tell of trouble."""
    name = policy["metadata"]["name"]
    said = [
        f"{name}/{row['instance']}: {row['reason']}" + (f": {row['message']}" if row["message"] else "")
        for row in found
        if not row["ready"]
    ]
    for kind, status in TELLING.items():
        one = condition(policy, kind)
        refused = kind is ConditionType.ACCEPTED and one.get("reason") == "ManualValueRefused"
        if one.get("status") == status or refused:
            said.append(f"{name}: {kind.value}={one['status']} {one.get('reason', '')}: {one.get('message', '')}")
    return said


def _cells(row: Row, now: datetime) -> list[str]:
    window = row["window"]
    written, applied = row["generationWritten"], row["generationApplied"]
    bounds = f"{row['windowBusy']}…{row['windowIdle']}" if row["windowIdle"] else "-"
    if row["ceiling"] is not None and row["ceiling"] != row["windowIdle"]:
        bounds += f" ≤{row['ceiling']}"
    return [
        f"{row['policy']}/{row['instance']}",
        f"{row['readyReplicas']}/{row['desiredReplicas']}",
        f"{row['slaMs']}ms" if row["slaMs"] else "-",
        row["slaMet"],
        _text(row["p95Ms"]),
        _text(row["p99Ms"]),
        _text(row["batchWaitP99Ms"]),
        f"{window:.0f}" if window is not None else "-",
        bounds,
        _percent(row["busyFraction"], 0),
        _percent(row["timeoutRatio"], 2),
        str(written) if written == applied else f"{written} (applied {applied or 'none'})",
        f"{row['mode'] or '-'}/{'Paused' if row['paused'] else row['retune']}",
        _move(row["lastMove"], now),
    ]


def _move(move: Mapping[str, Any] | None, now: datetime) -> str:
    if not move:
        return "-"
    words = []
    for change in move.get("changes", []):
        lever = change["lever"] + (f".{change['tier']}" if change.get("tier") else "")
        words.append(f"{lever} {change['before']}→{change['after']}")
    return f"{move['cause']}: {', '.join(words) or 'nothing'} ({move.get('outcome', '?')}, {_ago(move['time'], now)})"


def _ago(time: str, now: datetime) -> str:
    seconds = max(0, int((now - datetime.fromisoformat(time)).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit} ago"
    return f"{seconds}s ago"


def _tier(tier: TierSummary) -> Row:
    return {"p95Ms": _ms(tier.p95), "p99Ms": _ms(tier.p99), "batchWaitP99Ms": _ms(tier.hold_p99)}


def _ms(value: Quantile | None) -> Row | None:
    """`beyond`: the true value lies somewhere above."""
    return None if value is None else {"value": round(1000 * value.seconds, 3), "beyond": value.beyond}


def _text(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    ms = value["value"]
    return f"{'>' if value['beyond'] else ''}{ms:.0f}ms" if ms >= 10 else f"{ms:.1f}ms"


def _percent(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
