"""The step itself: from a cause, or from room to recover, to new values of levers, inside the bounds of the spec.

Steps are asymmetric: ×.7 towards safety at once, 5 % back after two clean look-backs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tailkeeper.api.enums import Lever, Mode, MoveCause
from tailkeeper.api.levers import Key, Move
from tailkeeper.api.settings import (
    MAX_MARGIN_PERCENT,
    MAX_RESERVED_PERCENT,
    MIN_MARGIN_PERCENT,
    Settings,
    TierSettings,
)
from tailkeeper.control.attribute import BINDING, Diagnosis
from tailkeeper.control.capacity import Capacity, batch_window, ceiling_moves_window
from tailkeeper.control.judge import Finding, Verdict
from tailkeeper.control.observation import Value

SHRINK: Final = 0.7
LEAST_STEP: Final = 0.1
"""A ceiling that would move by less is not worth a generation: the load behind it is not known better than that."""
MARGIN_STEP_PERCENT: Final = 10
HOLD_SHRINK: Final = 0.5
RESERVE_STEP_PERCENT: Final = 10
RECOVER: Final = 0.05
LEAST_BUDGET_TOKENS: Final = 16
"""Tokens of prompt that an iteration may take in beside one for every stream: with none no prompt would ever begin."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the tuner may go."""

    spec: Settings
    """What the policy alone gives, before any move."""
    pinned: tuple[Lever, ...] = ()
    """Levers that the tuner must leave alone."""


def mend(
    cause: MoveCause,
    finding: Finding,
    diagnosis: Diagnosis,
    value: Value,
    settings: Settings,
    capacity: Capacity | None,
) -> tuple[Move, ...]:
    """What to change for that cause; empty when every lever of it is at its bound. Pins and bars are not looked at."""
    severe = finding.verdict is Verdict.SEVERE
    tier = settings.tier(finding.tier)
    match cause:
        case MoveCause.CAPACITY:
            return tuple(_open(settings, capacity, severe))
        case MoveCause.HOLD:
            return tuple(_hold_less(tier, settings, value, capacity, severe))
        case MoveCause.LONG_BATCHES:
            lower = tuple(_shorter_batches(settings, value, capacity, severe))
            if lower and severe and diagnosis.lower_served:
                return (*lower, *_boost(tier))
            return lower
        case MoveCause.PRIORITY:
            return next(_raise_priority(tier, settings, diagnosis.lower_served), ())
        case MoveCause.FIRST_TOKEN:
            return next(_first_token(tier, settings, value, capacity, diagnosis), ())
        case MoveCause.INTER_TOKEN:
            return tuple(_smaller_budget(settings, value))
        case _:
            return ()


def toward_efficiency(
    value: Value, settings: Settings, spec: Settings, capacity: Capacity | None
) -> Iterator[tuple[Move, ...]]:
    """Single 5 % steps toward larger batches, the most telling first."""
    widest = capacity.widest if capacity else settings.window_idle
    if ceiling_moves_window(settings) and settings.ceiling < widest and _ceiling_binds(value, settings):
        yield (Move(Key(Lever.CEILING), min(widest, settings.ceiling + _five_percent(settings.ceiling))),)
    for tier in settings.tiers:
        most = spec.tier(tier.name).max_hold_ms
        if tier.max_hold_ms < most:
            longer = min(most, tier.max_hold_ms + _five_percent(most))
            yield (Move(Key(Lever.MAX_HOLD, tier.name), longer),)
    if settings.margin_percent > MIN_MARGIN_PERCENT and any(
        tier.max_hold_ms > _hold_by_deadline_ms(tier, settings, value, capacity)
        for tier in settings.tiers
        if value.long.counts(settings.generation, tier.name).requests > 0
    ):
        yield (Move(Key(Lever.MARGIN), settings.margin_percent - 1),)
    if settings.token_budget is not None:
        yield (Move(Key(Lever.TOKEN_BUDGET), settings.token_budget + _five_percent(settings.token_budget)),)


def toward_lower_tiers(settings: Settings, spec: Settings) -> Iterator[tuple[Move, ...]]:
    """Single steps that give lower tiers back what was taken from them, the last taken first."""
    for tier in settings.tiers:
        usual = spec.tier(tier.name)
        if tier.reserve_percent > usual.reserve_percent:
            yield (Move(Key(Lever.RESERVE, tier.name), tier.reserve_percent - 1),)
        if tier.preempts and not usual.preempts:
            yield (Move(Key(Lever.PREEMPTION, tier.name), False),)
        if tier.boost_ms > 0:
            less = max(0, tier.boost_ms - _five_percent(tier.deadline_ms))
            yield (Move(Key(Lever.BOOST, tier.name), less),)


def _ceiling_binds(value: Value, settings: Settings) -> bool:
    window = value.gauges.window
    return window is None or window >= BINDING * settings.ceiling


def _open(settings: Settings, capacity: Capacity | None, severe: bool) -> Iterator[Move]:
    """A ceiling only bounds: the worker goes no wider than the arrivals need, so there is no harm in the whole way."""
    if capacity is None:
        wider = min(settings.window_idle, math.ceil(settings.ceiling / SHRINK))
    elif severe or not capacity.keeps_up(settings.ceiling):
        wider = capacity.widest
    else:
        wider = min(capacity.widest, math.ceil(settings.ceiling / SHRINK))
    if wider > settings.ceiling * (1 + LEAST_STEP):
        yield Move(Key(Lever.CEILING), wider)


def _shorter_batches(settings: Settings, value: Value, capacity: Capacity | None, severe: bool) -> Iterator[Move]:
    """Down to what the SLA allows at once, a step further where that is so already, to windowBusy when it is severe;
    never under the window that keeps up with the arrivals and their bursts."""
    if not ceiling_moves_window(settings):
        return
    base = batch_window(value, settings, capacity)
    lower = math.floor(base * SHRINK)
    if severe and settings.window_busy < base:
        lower = settings.window_busy
    if capacity is not None:
        lower = max(min(lower, capacity.widest), capacity.enough_window())
    lower = max(lower, 1)
    if lower < settings.ceiling * (1 - LEAST_STEP):
        yield Move(Key(Lever.CEILING), lower)


def _hold_less(
    tier: TierSettings, settings: Settings, value: Value, capacity: Capacity | None, severe: bool
) -> Iterator[Move]:
    """Whichever ends the hold first is what binds: the tier's maxHold, or its deadline less a batch and the margin."""
    if not ceiling_moves_window(settings):
        return  # a static window starts at once, mode fixed waits without limit
    shorter = math.floor(tier.max_hold_ms * HOLD_SHRINK)
    more = min(MAX_MARGIN_PERCENT, settings.margin_percent + MARGIN_STEP_PERCENT)
    hold_binds = tier.max_hold_ms <= _hold_by_deadline_ms(tier, settings, value, capacity)
    if (hold_binds or severe) and shorter < tier.max_hold_ms:
        yield Move(Key(Lever.MAX_HOLD, tier.name), shorter)
    if (not hold_binds or severe) and more > settings.margin_percent:
        yield Move(Key(Lever.MARGIN), more)


def _hold_by_deadline_ms(tier: TierSettings, settings: Settings, value: Value, capacity: Capacity | None) -> float:
    """How long a request may be held before its deadline, less a batch and the margin, ends it."""
    batch_s = capacity.line.at(value.gauges.window or 1.0) if capacity else 0.0
    return tier.deadline_ms - batch_s * 1000 - settings.margin_percent / 100 * settings.sla_ms


def _raise_priority(tier: TierSettings, settings: Settings, lower_served: bool) -> Iterator[tuple[Move, ...]]:
    """Boost first: it only reorders. Then preemption, which costs memory; then a reserve, which costs places."""
    if not settings.priority_queue:
        return
    if lower_served:
        boost = _boost(tier)
        if boost:
            yield boost
        if settings.mode is Mode.CONTINUOUS and not tier.preempts:
            yield (Move(Key(Lever.PREEMPTION, tier.name), True),)
    reserved = sum(other.reserve_percent for other in settings.tiers)
    step = min(RESERVE_STEP_PERCENT, MAX_RESERVED_PERCENT - reserved)
    if step > 0:
        yield (Move(Key(Lever.RESERVE, tier.name), tier.reserve_percent + step),)


def _boost(tier: TierSettings) -> tuple[Move, ...]:
    """Half the deadline per step, the whole of it at most: then the tier is ordered as if it were due on arrival."""
    boost = min(tier.deadline_ms, tier.boost_ms + math.ceil(tier.deadline_ms / 2))
    return (Move(Key(Lever.BOOST, tier.name), boost),) if boost > tier.boost_ms else ()


def _first_token(
    tier: TierSettings, settings: Settings, value: Value, capacity: Capacity | None, diagnosis: Diagnosis
) -> Iterator[tuple[Move, ...]]:
    """Preemption gives a place at once, boost the next free one; else fewer streams share the engine."""
    if diagnosis.lower_served and settings.priority_queue:
        if settings.mode is Mode.CONTINUOUS and not tier.preempts:
            yield (Move(Key(Lever.PREEMPTION, tier.name), True),)
        boost = _boost(tier)
        if boost:
            yield boost
    if diagnosis.shares.batch > diagnosis.shares.slot:
        shorter = tuple(_shorter_batches(settings, value, capacity, False))
        if shorter:
            yield shorter


def _smaller_budget(settings: Settings, value: Value) -> Iterator[Move]:
    """Where there was none: what leaves a full window's step inside the inter-token SLA, by the workers' model."""
    if settings.mode is not Mode.CONTINUOUS:
        return
    window = min(settings.ceiling, int(value.gauges.window_cap or settings.ceiling))
    floor = window + LEAST_BUDGET_TOKENS
    if settings.token_budget is not None:
        budget = math.floor(settings.token_budget * SHRINK)
    else:
        model, limit_s = value.gauges.latency_model, (settings.inter_token_sla_ms or 0) / 1000
        beta = model.get("beta", 0.0)
        if beta <= 0:
            return
        spare_s = limit_s * (1 - settings.margin_percent / 100) - model.get("alpha", 0.0)
        budget = window + math.floor((spare_s - model.get("gamma", 0.0) * window) / beta)
    budget = max(budget, floor)
    if settings.token_budget is None or budget < settings.token_budget:
        yield Move(Key(Lever.TOKEN_BUDGET), budget)


def _five_percent(of: int) -> int:
    return max(1, round(of * RECOVER))
