"""The `Server-Timing` header of a worker's answers: where the request's time went, by cause."""

import math
from typing import NamedTuple


class Waits(NamedTuple):
    """Milliseconds by cause; NaN where the server did not say."""

    hold_ms: float = math.nan
    busy_ms: float = math.nan
    slot_ms: float = math.nan
    exec_ms: float = math.nan


UNKNOWN = Waits()


def parse_server_timing(value: str) -> Waits:
    """Read `hold;dur=1.5, busy;dur=0, …` (https://www.w3.org/TR/server-timing/). Other metrics are passed over."""
    found: dict[str, float] = {}
    for metric in value.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip().lower() == "dur":
                found[name.lower()] = _number(text.strip().strip('"'))
    return Waits(*(found.get(cause, math.nan) for cause in ("hold", "busy", "slot", "exec")))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and value >= 0 else math.nan
