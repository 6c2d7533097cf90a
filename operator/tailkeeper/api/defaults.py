"""What a traffic class says where the user says nothing. The resolver and the rules of the schema both read it here."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailkeeper.api.enums import Engine, TrafficClass


@dataclass(frozen=True)
class TierDefaults:
    """How a class's tier follows from the SLA of the class's default tier."""

    deadline_multiple: int
    """Its deadline is this many times that SLA."""
    max_hold_percent: int | None = None
    """Of its own deadline; None: the deadline itself, no limit of its own."""
    preempts: bool = False
    reserve_percent: int = 0


@dataclass(frozen=True)
class ClassDefaults:
    """Defaults of one traffic class."""

    window_idle: int
    window_busy: int
    sla_ms: int
    default_tier: str
    timeout_multiple: int | None
    """Every tier's timeout in multiples of its deadline; None: deadline + 2·T(W), which only the worker knows."""
    timeout_target_per_mille: int
    min_efficiency_percent: int
    tiers: Mapping[str, TierDefaults]


CONTINUOUS_ENGINES = (Engine.CAUSAL_LM, Engine.UPSTREAM)
"""Engines that can change their running set between iterations."""

DEFAULTS: Mapping[TrafficClass, ClassDefaults] = {
    TrafficClass.ONLINE: ClassDefaults(
        window_idle=64,
        window_busy=16,
        sla_ms=1_000,
        default_tier="interactive",
        timeout_multiple=2,
        timeout_target_per_mille=5,
        min_efficiency_percent=70,
        tiers={
            "interactive": TierDefaults(1, max_hold_percent=2, preempts=True),
            "standard": TierDefaults(5),
            "batch": TierDefaults(60, reserve_percent=10),
        },
    ),
    TrafficClass.OFFLINE: ClassDefaults(
        window_idle=256,
        window_busy=64,
        sla_ms=60_000,
        default_tier="batch",
        timeout_multiple=None,
        timeout_target_per_mille=5,
        min_efficiency_percent=90,
        tiers={"batch": TierDefaults(1)},
    ),
}
