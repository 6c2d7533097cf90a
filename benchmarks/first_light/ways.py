"""The five ways to batch that are compared, as what stands in the policy's spec. Only the batching differs: same tiers,
same deadlines, same timeouts, same instance, same pod."""

from dataclasses import dataclass, field
from typing import Any, Final

WINDOW: Final = 32
"""`windowIdle`: the largest batch."""
BUSY: Final = 8
TIMEOUT_FACTOR: Final = 6
"""A caller of the interactive tier is gone after this many SLAs."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to batch."""

    key: str
    title: str
    batching: Object
    retune: str = "Off"
    max_hold_ms: int | None = None
    """Of every tier; None: what the traffic class gives."""
    tiers: Object = field(default_factory=dict)


def _still(window: int) -> Object:
    """Nothing of ours: a window that does not move, one first-in first-out queue, nobody refused."""
    return {
        "mode": "fixed",
        "windowDynamic": False,
        "windowIdle": window,
        "windowBusy": window,
        "priorityQueue": False,
    }


_OURS: Final = {
    "mode": "request",
    "windowDynamic": True,
    "windowIdle": WINDOW,
    "windowBusy": BUSY,
    "priorityQueue": True,
}

ONE: Final = Way("one", "one at a time", _still(1), max_hold_ms=0)
GREEDY: Final = Way("greedy", f"greedy, W = {WINDOW}", _still(WINDOW), max_hold_ms=0)
FIXED: Final = Way("fixed", f"fixed, waits for {WINDOW}", _still(WINDOW))
OURS_OFF: Final = Way("ours_off", "ours, retune Off", _OURS)
OURS: Final = Way("ours", "ours", _OURS, retune="Auto")
WAYS: Final = (ONE, GREEDY, FIXED, OURS_OFF, OURS)


def spec(way: Way, sla_ms: int, instances: list[Object]) -> Object:
    """The policy's spec: two tiers on one engine."""
    hold = {} if way.max_hold_ms is None else {"maxHoldMs": way.max_hold_ms}
    return {
        "trafficClass": "online",
        "batching": way.batching | {"tailLatencySlaMs": sla_ms},
        "tiers": [
            {"name": "interactive", "timeoutMs": TIMEOUT_FACTOR * sla_ms} | hold,
            {"name": "batch"} | hold,
        ],
        "retune": {"mode": way.retune, "intervalSeconds": 1},
        "instances": instances,
        "drainSeconds": 20,
    }
