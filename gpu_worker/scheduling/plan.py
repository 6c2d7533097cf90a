"""Settings compiled for the scheduler: seconds instead of milliseconds, tiers by index, weights worked out."""

import math
from dataclasses import dataclass

from tailkeeper.api.enums import Mode, TrafficClass
from tailkeeper.api.settings import LatencyPrior, Settings, TierSettings
from tailkeeper.model.iterations import Cost
from tailkeeper.model.windows import Line

ONLINE_SLA_S = 1.0
"""What an offline tier's patience is measured against: the SLA that online traffic has unless said otherwise."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine can do. `iterates`: a step forwards one token per sequence, not whole requests."""

    iterates: bool = False
    max_batch: int | None = None
    """Most requests of one step, by memory; None: no bound of its own."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, prompts and outputs together; None: no bound of its own."""


@dataclass(frozen=True, slots=True)
class TierPlan:
    """One tier. Times in seconds."""

    name: str
    index: int
    """0 is the highest."""
    deadline_s: float
    timeout_s: float | None
    max_hold_s: float
    preempts: bool
    reserve: float
    """Share of a batch, 0 to .9."""
    boost_s: float
    weight: float
    """w = SLA_online / D: what a second of waiting is worth, against the default tier's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation of settings."""

    generation: int
    mode: Mode
    dynamic: bool
    idle: int
    busy: int
    ceiling: int
    priority: bool
    """False: one first-in first-out queue, tiers are labels."""
    margin_s: float
    sla_s: float
    first_token_sla_s: float | None
    inter_token_sla_s: float | None
    margin: float
    efficiency: float
    """The least that is wanted, 0 to 1."""
    token_budget: int | None
    tiers: tuple[TierPlan, ...]
    default: TierPlan
    shortest_deadline_s: float
    longest_deadline_s: float
    prior: LatencyPrior | None


def compile_plan(settings: Settings) -> Plan:
    """Settings → plan."""
    sla_s = settings.sla_ms / 1000
    online_s = sla_s if settings.traffic_class is TrafficClass.ONLINE else min(ONLINE_SLA_S, sla_s)
    tiers = tuple(_tier(tier, index, online_s, settings.mode) for index, tier in enumerate(settings.tiers))
    margin = settings.margin_percent / 100
    return Plan(
        generation=settings.generation,
        mode=settings.mode,
        dynamic=settings.window_dynamic,
        idle=settings.window_idle,
        busy=settings.window_busy,
        ceiling=settings.ceiling,
        priority=settings.priority_queue,
        margin_s=margin * sla_s,
        sla_s=sla_s,
        first_token_sla_s=_seconds(settings.first_token_sla_ms),
        inter_token_sla_s=_seconds(settings.inter_token_sla_ms),
        margin=margin,
        efficiency=settings.min_efficiency_percent / 100,
        token_budget=settings.token_budget,
        tiers=tiers,
        default=next(tier for tier in tiers if tier.name == settings.default_tier),
        shortest_deadline_s=min(tier.deadline_s for tier in tiers),
        longest_deadline_s=max(tier.deadline_s for tier in tiers),
        prior=settings.latency_prior,
    )


def prior_line(prior: LatencyPrior | None) -> Line | None:
    """The request-mode part of a prior; None when there is none."""
    if prior is None or prior.per_request_ns <= 0:
        return None
    return Line(prior.fixed_ns * 1e-9, prior.per_request_ns * 1e-9)


def _tier(tier: TierSettings, index: int, online_s: float, mode: Mode) -> TierPlan:
    deadline_s = tier.deadline_ms / 1000
    # In the mode `fixed` the deadline moves nothing: a hold that is not shorter has no limit.
    unlimited = mode is Mode.FIXED and tier.max_hold_ms >= tier.deadline_ms
    return TierPlan(
        name=tier.name,
        index=index,
        deadline_s=deadline_s,
        timeout_s=_seconds(tier.timeout_ms),
        max_hold_s=math.inf if unlimited else tier.max_hold_ms / 1000,
        preempts=tier.preempts,
        reserve=tier.reserve_percent / 100,
        boost_s=tier.boost_ms / 1000,
        weight=online_s / deadline_s,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def prior_cost(prior: LatencyPrior | None) -> Cost | None:
    """The continuous part of a prior; None when there is none."""
    if prior is None or prior.per_sequence_ns <= 0:
        return None
    return Cost(
        alpha=prior.fixed_ns * 1e-9,
        beta=prior.per_prefill_token_ns * 1e-9,
        gamma=prior.per_sequence_ns * 1e-9,
        delta=prior.per_kv_token_ns * 1e-9,
    )
