"""What an instance's workers could serve: their latency model as one line, and the windows that follow from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import Settings
from tailkeeper.control.observation import Value
from tailkeeper.model.windows import Line, peak_rate, sla_window, stable_window

STEP_Z: Final = 3.0
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
    dispersion: float
    """Of the arrivals: the variance of their counts over the mean; 1 is Poisson."""
    sla_s: float
    pods: int
    longest_s: float
    """What a window may take without breaking the SLA: all but the margin, and half of that where a request may
    have to wait for one batch and ride in the next."""
    widest: int
    """The best ceiling that there is: windowIdle, W_sla and the worker's memory, whichever is least."""

    @property
    def peak_per_s(self) -> float:
        """What arrives per worker within one SLA now and then: a burst of that length must be served, not the mean."""
        return peak_rate(self.rate_per_s, self.dispersion, self.sla_s)

    def keeps_up(self, window: int) -> bool:
        """Whether that window serves the arrivals and their bursts."""
        served = self.line.rate(max(1, window))
        return self.rate_per_s <= USABLE * served and self.peak_per_s <= served

    def enough_window(self) -> int:
        """The smallest window that keeps up with the bursts; the widest when none does."""
        stable = stable_window(self.peak_per_s, self.line)
        return self.widest if stable is None else min(stable, self.widest)

    @property
    def short(self) -> bool:
        """Even the widest window cannot serve the mean."""
        return self.rate_per_s > self.line.rate(self.widest)

    @property
    def replicas_needed(self) -> int:
        """Workers among which the present arrivals would keep up at the widest window."""
        served = self.line.rate(self.widest)
        # λ + √(I·λ/SLA) = served, solved for the √λ that one worker may get
        burst = math.sqrt(self.dispersion / self.sla_s)
        root = (math.sqrt(burst * burst + 4 * served) - burst) / 2
        return max(1, math.ceil(self.rate_per_s * self.pods / min(USABLE * served, root * root) - 1e-9))


def ceiling_moves_window(settings: Settings) -> bool:
    """With `windowDynamic: false` the window is exactly windowBusy, and in mode fixed windowIdle: no ceiling counts."""
    return settings.window_dynamic and settings.mode is not Mode.FIXED


def batch_window(value: Value, settings: Settings, capacity: Capacity | None) -> int:
    """What a batch of these workers holds at most: the window that they say they use, or need, under its bounds."""
    most = min(settings.ceiling, int(value.gauges.window_cap or settings.ceiling))
    used = int(value.gauges.window or most)
    return max(1, min(most, max(used, capacity.enough_window() if capacity else 1)))


def capacity(value: Value, settings: Settings) -> Capacity | None:
    """None while the workers have no latency model yet, or a nonsensical one."""
    line = whole_request_line(value.gauges.latency_model)
    if line is None:
        return None
    sla_s = settings.sla_ms / 1000
    dispersion = max(1.0, (value.gauges.arrival_cv or 1.0) ** 2)
    continuous = "alpha" in value.gauges.latency_model
    usable_s = (1 - settings.margin_percent / 100) * sla_s
    longest_s = usable_s if continuous else usable_s / 2
    by_sla = max(1, math.floor((longest_s - line.c) / line.a)) if continuous else sla_window(usable_s, line)
    return Capacity(
        line=line,
        rate_per_s=_rate_per_s(value, dispersion) / max(1, value.pods),
        dispersion=dispersion,
        sla_s=sla_s,
        pods=max(1, value.pods),
        longest_s=longest_s,
        widest=_widest(value, settings, by_sla),
    )


def _rate_per_s(value: Value, dispersion: float) -> float:
    """Of the short look-back; of the newest seconds when these are surely busier: a step must not be averaged away."""
    usual, newest = value.short.rate_per_s, value.newest
    if newest.span_s <= 0:
        return usual
    spread = math.sqrt(dispersion * max(usual, 1 / newest.span_s) / newest.span_s)
    return newest.rate_per_s if newest.rate_per_s > usual + STEP_Z * spread else usual


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
    if not ceiling_moves_window(settings):
        return max(1, int(cap)) if cap is not None else settings.window_busy
    known = [settings.window_idle, by_sla]
    if cap is not None and ceiling is not None and cap < ceiling:
        known.append(int(cap))
    return max(1, min(known))
