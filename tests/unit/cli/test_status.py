"""What `tailkeeper status` makes of a policy's status and of workers' pages."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tailkeeper.cli import worker_pages as pages
from tailkeeper.cli.status_rows import remarks, rows, table
from tailkeeper.cli.worker_reads import At
from tailkeeper.model.quantile import Quantile

AT = At("team", "chat", "small")
NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def page(requests: float, slow: float, busy_s: float, window: float = 16, timeouts: float = 0) -> str:
    """`slow` of the requests took .1 to .2 s, the rest under .1 s."""
    who = 'policy_namespace="team",policy="chat",model_instance="small"'
    return f"""# TYPE tailkeeper_request_seconds histogram
tailkeeper_request_seconds_bucket{{{who},tier="interactive",le="0.1"}} {requests - slow}
tailkeeper_request_seconds_bucket{{{who},tier="interactive",le="0.2"}} {requests}
tailkeeper_request_seconds_bucket{{{who},tier="interactive",le="+Inf"}} {requests}
tailkeeper_batch_wait_seconds_bucket{{{who},tier="interactive",le="0.004"}} {requests}
tailkeeper_batch_wait_seconds_bucket{{{who},tier="interactive",le="+Inf"}} {requests}
tailkeeper_requests_total{{{who},tier="interactive",generation="1",outcome="ok"}} {requests}
tailkeeper_late_total{{{who},tier="interactive",generation="1",objective="latency"}} 77
tailkeeper_late_total{{{who},tier="interactive",generation="1",objective="timeout"}} {timeouts}
tailkeeper_engine_busy_seconds_total{{{who}}} {busy_s}
tailkeeper_window{{{who}}} {window}
tailkeeper_efficiency{{{who}}} NaN
tailkeeper_queue_length{{{who},tier="interactive"}} 3
tailkeeper_another_total{{{who}}} 5
not a line of that format
"""


def reading(*arguments: float, **more: float) -> pages.Reading:
    return pages.read(pages.parse(page(*arguments, **more)))


def test_quantiles_of_two_workers_are_those_of_all_their_requests() -> None:
    both = {"a": reading(100, 0, 1), "b": reading(100, 20, 1, timeouts=2)}
    found = pages.summarise(both, both, {"a": 0.5, "b": 0.7})
    tier = found.tiers["interactive"]
    assert tier.p95 == Quantile(pytest.approx(0.15))
    assert tier.hold_p99 == Quantile(pytest.approx(0.00396))
    assert (found.timeout_ratio, found.busy_fraction, found.queue, found.window) == (0.01, 0.6, 6, 16)
    assert found.efficiency is None


def test_two_reads_tell_how_busy_and_what_came_between() -> None:
    growth = pages.grown({"a": reading(200, 100, 4)}, {"a": reading(100, 0, 2), "gone": reading(9, 9, 9)})
    assert pages.busy_shares(growth, 4.0) == {"a": 0.5}
    between = pages.summarise(growth, growth, {})
    assert between.tiers["interactive"].p95 == Quantile(pytest.approx(0.195))


def test_a_worker_that_began_anew_counts_from_then() -> None:
    growth = pages.grown({"a": reading(10, 0, 1)}, {"a": reading(100, 0, 2)})
    assert growth["a"].requests == 10


def test_nothing_counted_is_not_zero() -> None:
    empty = pages.summarise({}, {}, {})
    assert (empty.timeout_ratio, empty.busy_fraction, empty.window) == (None, None, None)
    idle = {"a": reading(0, 0, 0)}
    assert pages.summarise(idle, idle, {}).tiers["interactive"].p99 is None


def policy(**status: Any) -> dict[str, Any]:
    effective = {
        "mode": "request",
        "windowIdle": 64,
        "windowBusy": 16,
        "ceiling": 8,
        "defaultTier": "interactive",
        "tiers": [{"name": "interactive", "deadlineMs": 200}],
    }
    move = {
        "time": "2026-11-01T11:57:00Z",
        "cause": "Capacity",
        "generation": 4,
        "changes": [{"lever": "maxHold", "tier": "interactive", "before": "20ms", "after": "5ms"}],
        "outcome": "Kept",
    }
    instance = {
        "name": "small",
        "ready": True,
        "reason": "AllReady",
        "readyReplicas": 2,
        "desiredReplicas": 2,
        "settingsGeneration": 4,
        "appliedGeneration": 3,
        "effective": effective,
        "lastMove": move,
        **status,
    }
    conditions = [
        {"type": "SlaMet", "status": "True", "reason": "Met"},
        {"type": "CapacityShort", "status": "True", "reason": "TooFewWorkers", "message": "3 would do"},
    ]
    return {
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {"instances": [{"name": "small"}, {"name": "new"}]},
        "status": {"instances": [instance], "conditions": conditions},
    }


def test_a_row_for_people() -> None:
    both = {"a": reading(100, 0, 1), "b": reading(100, 20, 1, timeouts=2)}
    found = rows(policy(), {AT: pages.summarise(both, both, {"a": 0.6})})
    head, small, new = table(found, NOW, with_namespace=True).splitlines()
    assert head.split()[:3] == ["NAMESPACE", "INSTANCE", "READY"]
    assert " ".join(small.split()) == (
        "team chat/small 2/2 200ms True 150ms 190ms 4.0ms 16 16…64 ≤8 60% 1.00% 4 (applied 3) request/Auto "
        "Capacity: maxHold.interactive 20ms→5ms (Kept, 3m ago)"
    )
    assert " ".join(new.split()) == "team chat/new 0/0 - True - - - - - - - 0 -/Auto -"
    said = remarks(policy(), found)
    assert said == [
        "chat/new: NotSeen: the operator has not seen it: is it running?",
        "chat: CapacityShort=True TooFewWorkers: 3 would do",
    ]


def test_a_policy_that_nobody_has_seen_yet() -> None:
    fresh = {"metadata": {"name": "chat", "namespace": "team"}, "spec": {"instances": [{"name": "small"}]}}
    (row,) = rows(fresh, {})
    assert (row["ready"], row["slaMet"], row["p99Ms"], row["paused"]) == (False, "Unknown", None, False)
