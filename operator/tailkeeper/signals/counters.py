"""From metric names and labels to samples: the one place that knows both sides. Prometheus and the direct scrape meet
here, so that a decision cannot depend on which of the two was read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tailkeeper.control.samples import (
    CounterKey,
    Counts,
    Gauges,
    InstanceKey,
    PodSample,
    Unknown,
    UnknownReason,
)

PREFIX: Final = "tailkeeper_"
INSTANCE_LABELS: Final = ("policy_namespace", "policy", "model_instance")

REQUESTS: Final = PREFIX + "requests_total"
BUSY: Final = PREFIX + "engine_busy_seconds_total"
WORK: Final = PREFIX + "engine_work_total"
QUEUE: Final = PREFIX + "queue_length"
MODEL: Final = PREFIX + "latency_model"
GENERATION: Final = PREFIX + "settings_generation"

SPLIT: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    PREFIX + "late_total": (
        "objective",
        {
            "latency": "late",
            "first_token": "late_first_token",
            "inter_token": "late_inter_token",
            "timeout": "timeouts",
        },
    ),
    PREFIX + "late_wait_seconds_total": (
        "cause",
        {"hold": "hold_s", "busy": "busy_s", "slot": "slot_s", "exec": "exec_s"},
    ),
    PREFIX + "second_moments_total": ("moment", {"nn": "nn", "nk": "nk", "kk": "kk"}),
}
"""Counters by tier and generation that one more label splits: it, and its values with their field of `Counts`."""

GAUGES: Final[Mapping[str, str]] = {
    PREFIX + "window": "window",
    PREFIX + "window_cap": "window_cap",
    PREFIX + "window_ceiling": "ceiling",
    PREFIX + "efficiency": "efficiency",
    PREFIX + "arrival_cv": "arrival_cv",
}
"""With their field of `Gauges`."""

WANTED: Final = frozenset({REQUESTS, BUSY, WORK, QUEUE, MODEL, GENERATION, *SPLIT, *GAUGES})


@dataclass(frozen=True, slots=True)
class Point:
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


def instance_of(labels: Mapping[str, str]) -> InstanceKey | None:
    """Whose series it is; None when the labels do not say."""
    found = [labels.get(name, "") for name in INSTANCE_LABELS]
    return InstanceKey(*found) if all(found) else None


def pod_sample(pod: str, time_s: float, points: Iterable[Point]) -> PodSample | Unknown:
    """One worker's sample. `Unknown` when a counter is not a number or no request counter is there: neither is zero."""
    counts: dict[CounterKey, dict[str, float]] = {}
    totals = {BUSY: 0.0, WORK: 0.0}
    gauges: dict[str, float] = {}
    queue: dict[str, float] = {}
    model: dict[str, float] = {}
    for point in points:
        name, labels, value = point.name, point.labels, point.value
        if name in GAUGES or name in (QUEUE, MODEL):
            if not math.isfinite(value):
                continue  # a gauge may be undefined: the efficiency while idle, a model that nothing has taught yet
            if name in GAUGES:
                gauges[GAUGES[name]] = value
            elif name == QUEUE:
                queue[labels.get("tier", "")] = value
            else:
                model[labels.get("coefficient", "")] = value
            continue
        if name not in WANTED:
            continue
        if not math.isfinite(value):
            return Unknown(UnknownReason.NOT_FINITE, f"{name} of {pod} is {value}: what exports it is broken")
        if name in totals:
            totals[name] = value
        elif (field := _field(name, labels)) is not None and (key := _key(labels)) is not None:
            row = counts.setdefault(key, {})
            row[field] = row.get(field, 0.0) + value
    if not any("requests" in row for row in counts.values()):
        return Unknown(UnknownReason.ABSENT, f"{pod} exports no {REQUESTS}: has it no settings yet?")
    return PodSample(
        pod=pod,
        time_s=time_s,
        counts={key: Counts(**row) for key, row in counts.items()},
        busy_s=totals[BUSY],
        work=totals[WORK],
        gauges=Gauges(
            window=gauges.get("window"),
            window_cap=gauges.get("window_cap"),
            ceiling=gauges.get("ceiling"),
            efficiency=gauges.get("efficiency"),
            arrival_cv=gauges.get("arrival_cv"),
            queue=queue,
            latency_model=model,
        ),
    )


def _field(name: str, labels: Mapping[str, str]) -> str | None:
    if name == REQUESTS:
        return "requests"
    if name in SPLIT:
        label, fields = SPLIT[name]
        return fields.get(labels.get(label, ""))
    return None


def _key(labels: Mapping[str, str]) -> CounterKey | None:
    generation, tier = labels.get("generation", ""), labels.get("tier", "")
    return CounterKey(int(generation), tier) if generation.isdecimal() and tier else None
