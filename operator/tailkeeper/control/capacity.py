"""What an instance's workers could serve: their latency model as one line, and the windows that follow from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailkeeper.api.settings import Settings
from tailkeeper.control.observation import Value
from tailkeeper.model.windows import Line, saturation_window, sla_window, stable_window

USABLE: Final = 0.85
"""Share of W/T(W) that arrivals may use before waiting grows out of bounds."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """One worker's speed at whole requests, and the arrivals that it gets."""

    line: Line
    """Seconds to serve W requests together. Request mode: the batch. Continuous mode: the iterations that W requests
    of mean size take when they run side by side."""
    rate_per_s: float
    """Arrivals per worker."""
    pods: int
    longest_s: float
    """What a window may take without breaking the SLA: half of it where a request may have to wait for one batch and
    ride in the next; in continuous mode all but the margin."""
    widest: int
    """The best ceiling that there is: windowIdle, W_sla and the worker's memory, whichever is least."""

    def usable_per_s(self, window: float) -> float:
        """Arrivals per worker that a window keeps up with in practice."""
        return USABLE * self.line.rate(max(1, int(window)))

    def enough_window(self) -> int:
        """The smallest window that keeps up with the arrivals, at most the widest."""
        stable = stable_window(self.rate_per_s, self.line)
        return self.widest if stable is None else min(stable, self.widest)

    @property
    def short(self) -> bool:
        """Even the widest window cannot keep up."""
        return self.rate_per_s > self.line.rate(self.widest)

    @property
    def replicas_needed(self) -> int:
        """Workers at which the arrivals of all use 85 % of what the widest window can do."""
        return max(1, math.ceil(self.rate_per_s * self.pods / self.usable_per_s(self.widest)))

    @property
    def saturation(self) -> int:
        """W_sat."""
        return saturation_window(self.line, self.widest)


def capacity(value: Value, settings: Settings) -> Capacity | None:
    """None while the workers have no latency model yet, or a nonsensical one."""
    line = whole_request_line(value.gauges.latency_model)
    if line is None:
        return None
    sla_s = settings.sla_ms / 1000
    continuous = "alpha" in value.gauges.latency_model
    longest_s = (1 - settings.margin_percent / 100) * sla_s if continuous else sla_s / 2
    by_sla = max(1, math.floor((longest_s - line.c) / line.a)) if continuous else sla_window(sla_s, line)
    return Capacity(
        line=line,
        rate_per_s=value.short.rate_per_s / max(1, value.pods),
        pods=max(1, value.pods),
        longest_s=longest_s,
        widest=_widest(value, settings, by_sla),
    )


def whole_request_line(model: Mapping[str, float]) -> Line | None:
    """c and a of whole requests. Continuous mode: n̄ iterations of α + (γ + δ·KV)·W each, and one prefill of β·P."""
    if not model:
        return None
    if "alpha" in model:
        tokens, prompt = model.get("output_tokens", 0.0), model.get("prompt_tokens", 0.0)
        context = prompt + tokens / 2
        each = tokens * (model.get("gamma", 0.0) + model.get("delta", 0.0) * context) + model.get("beta", 0.0) * prompt
        line = Line(tokens * model["alpha"], each)
    else:
        line = Line(model.get("c", 0.0), model.get("a", 0.0))
    return line if line.c >= 0 and line.a > 0 and math.isfinite(line.c + line.a) else None


def _widest(value: Value, settings: Settings, by_sla: int) -> int:
    """A cap that the worker reports under its ceiling is bound by the SLA or by memory, which only the worker knows."""
    cap, ceiling = value.gauges.window_cap, value.gauges.ceiling
    known = [settings.window_idle, by_sla]
    if cap is not None and ceiling is not None and cap < ceiling:
        known.append(int(cap))
    return max(1, min(known))
