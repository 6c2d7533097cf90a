"""`--fail-if`: what a run must not show, such as `interactive.p99>1000` or `timeout_ratio>0.005`."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tailkeeper.bench.report import Quantiles, Report, TierReport
from tailkeeper.model.loads import LoadError

Compare = Callable[[float, float], bool]
_COMPARE: Final[dict[str, Compare]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

_QUANTILES: Final = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
_DISTRIBUTIONS: Final[Mapping[str, Callable[[TierReport], Quantiles | None]]] = {
    "": lambda t: t.latency_ms,
    "first_token_": lambda t: t.first_token_ms,
    "inter_token_": lambda t: t.inter_token_ms,
    "hold_": lambda t: t.waits.hold_ms if t.waits else None,
    "busy_": lambda t: t.waits.busy_ms if t.waits else None,
    "slot_": lambda t: t.waits.slot_ms if t.waits else None,
    "exec_": lambda t: t.waits.exec_ms if t.waits else None,
    "waiting_": lambda t: t.waits.waiting_ms if t.waits else None,
}
_NUMBERS: Final[Mapping[str, Callable[[TierReport], float | None]]] = {
    "late_ratio": lambda t: t.late_ratio,
    "timeout_ratio": lambda t: t.timeout_ratio,
    "error_ratio": lambda t: t.error_ratio,
    "answered_per_s": lambda t: t.answered_per_s,
    "output_tokens_per_s": lambda t: t.output_tokens_per_s,
    "longest_breach_s": lambda t: max(
        (math.inf if b.lasted_s is None else b.lasted_s for b in t.breaches),
        default=0.0,
    ),
}
_FORM: Final = re.compile(r"(?:(?P<tier>[^<>=\s]+)\.)?(?P<metric>[a-z0-9_]+)\s*(?P<sign>[<>]=?)\s*(?P<limit>[-+.\w]+)")


@dataclass(frozen=True)
class Threshold:
    """One condition under which the run has failed."""

    text: str
    tier: str | None
    """None: any of the tiers."""
    metric: str
    fails: Compare
    limit: float


@dataclass(frozen=True)
class Crossed:
    """A threshold that a run crossed, or that it could not be held against."""

    threshold: Threshold
    tier: str
    value: float | None

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.threshold.text}: {self.tier} has no {self.threshold.metric}"
        return f"{self.threshold.text}: {self.tier} {self.threshold.metric} = {self.value:.6g}"


def metrics() -> list[str]:
    """Names of all that a threshold can be on."""
    return [f"{of}{q}" for of in _DISTRIBUTIONS for q in _QUANTILES] + list(_NUMBERS)


def parse_threshold(text: str, tiers: Sequence[str]) -> Threshold:
    """Read `[TIER.]METRIC>NUMBER` (or <, >=, <=); milliseconds, ratios from 0 to 1.

    Raises:
        LoadError: it is none, or names a tier or metric that there is not.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise LoadError(f"threshold {text!r}: write [TIER.]METRIC>NUMBER, such as p99>1000 or batch.late_ratio>0.01")
    tier, metric = found["tier"], found["metric"]
    if metric not in metrics():
        known = "[first_token_|inter_token_|hold_|busy_|slot_|exec_|waiting_]" + "|".join(_QUANTILES)
        raise LoadError(f"threshold {text!r}: no metric {metric!r}; known: {known}, {', '.join(_NUMBERS)}")
    if tier is not None and tier not in tiers:
        raise LoadError(f"threshold {text!r}: no tier {tier!r}; there are {', '.join(tiers)}")
    try:
        limit = float(found["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise LoadError(f"threshold {text!r}: {found['limit']!r} is not a number")
    return Threshold(text.strip(), tier, metric, _COMPARE[found["sign"]], limit)


def crossed(report: Report, thresholds: Sequence[Threshold]) -> list[Crossed]:
    """Return the thresholds that the run crossed. What is not known counts as crossed: nothing was shown."""
    found = []
    for threshold in thresholds:
        for tier in report.tiers:
            if threshold.tier in (None, tier.tier):
                value = _value(tier, threshold.metric)
                if value is None or threshold.fails(value, threshold.limit):
                    found.append(Crossed(threshold, tier.tier, value))
    return found


def _value(tier: TierReport, metric: str) -> float | None:
    if metric in _NUMBERS:
        return _NUMBERS[metric](tier)
    of, _, quantile = metric.rpartition("_") if "_" in metric else ("", "", metric)
    distribution = _DISTRIBUTIONS[f"{of}_" if of else ""](tier)
    return None if distribution is None else float(getattr(distribution, quantile))
