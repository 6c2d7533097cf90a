"""Class → policy → instance: the one place that knows the defaults.

What is said nearer to the instance wins. Tiers merge by name. `tailLatencySlaMs` and the default tier's `deadlineMs`
are one value with two names: saying both, differently, at the same level is refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tailkeeper.api.enums import Engine, Mode, TrafficClass
from tailkeeper.api.policy import Batching, Instance, PolicySpec, Tier
from tailkeeper.api.settings import TierSettings

T = TypeVar("T")


class InvalidPolicy(ValueError):
    """Settings that contradict each other once they are put together. `field` is the path inside `spec`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True)
class TierDefaults:
    """How a class's tier follows from the SLA of the default tier; all are multiples or shares."""

    deadline_multiple: int
    timeout_multiple: int | None = None
    """Of the tier's own deadline; None: deadline + 2·T(W), which only the worker knows."""
    max_hold_percent: int | None = None
    """Of the tier's deadline; None: the deadline itself, no limit of its own."""
    preempts: bool = False
    reserve_percent: int = 0


@dataclass(frozen=True)
class ClassDefaults:
    """Defaults of one traffic class."""

    window_idle: int
    window_busy: int
    sla_ms: int
    default_tier: str
    timeout_target_per_mille: int
    min_efficiency_percent: int
    tiers: Mapping[str, TierDefaults]


DEFAULTS: Mapping[TrafficClass, ClassDefaults] = {
    TrafficClass.ONLINE: ClassDefaults(
        window_idle=64,
        window_busy=16,
        sla_ms=1_000,
        default_tier="interactive",
        timeout_target_per_mille=5,
        min_efficiency_percent=70,
        tiers={
            "interactive": TierDefaults(1, timeout_multiple=2, max_hold_percent=2, preempts=True),
            "standard": TierDefaults(5, timeout_multiple=2),
            "batch": TierDefaults(60, timeout_multiple=2, reserve_percent=10),
        },
    ),
    TrafficClass.OFFLINE: ClassDefaults(
        window_idle=256,
        window_busy=64,
        sla_ms=60_000,
        default_tier="batch",
        timeout_target_per_mille=5,
        min_efficiency_percent=90,
        tiers={"batch": TierDefaults(1)},
    ),
}


@dataclass(frozen=True)
class Effective:
    """The settings of one instance with nothing left to default; what the spec gives, before any move."""

    traffic_class: TrafficClass
    mode: Mode
    window_dynamic: bool
    window_idle: int
    window_busy: int
    priority_queue: bool
    first_token_sla_ms: int | None
    inter_token_sla_ms: int | None
    timeout_target_per_mille: int
    min_efficiency_percent: int
    tiers: tuple[TierSettings, ...]
    """From the highest (shortest deadline) to the lowest."""
    default_tier: str

    @property
    def sla_ms(self) -> int:
        """SLA of the instance: the deadline of its default tier, in milliseconds."""
        return next(tier.deadline_ms for tier in self.tiers if tier.name == self.default_tier)


def resolve_all(spec: PolicySpec) -> dict[str, Effective]:
    """Every instance's effective settings by name. Raises InvalidPolicy for the first that contradicts itself."""
    return {instance.name: resolve(spec, instance) for instance in spec.instances}


def resolve(spec: PolicySpec, instance: Instance) -> Effective:
    """One instance's effective settings. Raises InvalidPolicy with the field that is at fault."""
    where = f"spec.instances[{instance.name}]"
    defaults = DEFAULTS[spec.traffic_class]
    default_tier = _default_tier(spec, instance, defaults, where)
    batching = _overlay(spec.batching, instance.batching)
    window_idle, window_busy = _windows(batching, defaults, where)
    tiers = _tiers(spec, instance, defaults, default_tier, where)
    continuous = instance.model.engine in (Engine.CAUSAL_LM, Engine.UPSTREAM)
    return Effective(
        traffic_class=spec.traffic_class,
        mode=batching.mode or (Mode.CONTINUOUS if continuous else Mode.REQUEST),
        window_dynamic=_first(batching.window_dynamic, True),
        window_idle=window_idle,
        window_busy=window_busy,
        priority_queue=_first(batching.priority_queue, True),
        first_token_sla_ms=batching.first_token_sla_ms,
        inter_token_sla_ms=batching.inter_token_sla_ms,
        timeout_target_per_mille=_first(batching.timeout_target_per_mille, defaults.timeout_target_per_mille),
        min_efficiency_percent=_first(batching.min_efficiency_percent, defaults.min_efficiency_percent),
        tiers=tiers,
        default_tier=default_tier,
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def _said(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _overlay(base: Batching | None, over: Batching | None) -> Batching:
    base, over = base or Batching(), over or Batching()
    given = {name: value for name in type(over).model_fields if (value := getattr(over, name)) is not None}
    return base.model_copy(update=given)


def _windows(batching: Batching, defaults: ClassDefaults, where: str) -> tuple[int, int]:
    """A bound given alone draws the other's default along: `windowIdle: 8` must not need a `windowBusy` as well."""
    idle, busy = batching.window_idle, batching.window_busy
    if idle is None:
        idle = max(defaults.window_idle, busy or 1)
    if busy is None:
        busy = min(defaults.window_busy, idle)
    if busy > idle:
        raise InvalidPolicy(f"{where}.batching.windowBusy", f"windowBusy ({busy}) must not exceed windowIdle ({idle})")
    return idle, busy


def _default_tier(spec: PolicySpec, instance: Instance, defaults: ClassDefaults, where: str) -> str:
    known = _names(spec.tiers) if spec.tiers else list(defaults.tiers)
    if len(set(known)) != len(known):
        raise InvalidPolicy("spec.tiers", "names must be unique")
    overrides = _names(instance.tiers or [])
    if len(set(overrides)) != len(overrides):
        raise InvalidPolicy(f"{where}.tiers", "names must be unique")
    for name in overrides:
        if name not in known:
            raise InvalidPolicy(f"{where}.tiers", f"tier {name} is not one of {', '.join(known)}")
    chosen = instance.default_tier or spec.default_tier
    if chosen is None:
        chosen = defaults.default_tier if defaults.default_tier in known else known[0]
    if chosen not in known:
        field = f"{where}.defaultTier" if instance.default_tier else "spec.defaultTier"
        raise InvalidPolicy(field, f"tier {chosen} is not one of {', '.join(known)}")
    return chosen


def _names(tiers: Iterable[Tier]) -> list[str]:
    return [tier.name for tier in tiers]


def _sla_ms(spec: PolicySpec, instance: Instance, default_tier: str, where: str) -> int | None:
    """The default tier's SLA as given at the nearest level that gives it, by either of its two names."""
    for field, batching, tiers in (
        (where, instance.batching, instance.tiers),
        ("spec", spec.batching, spec.tiers),
    ):
        as_sla = batching.tail_latency_sla_ms if batching else None
        as_deadline = next((tier.deadline_ms for tier in tiers or [] if tier.name == default_tier), None)
        if as_sla is not None and as_deadline is not None and as_sla != as_deadline:
            raise InvalidPolicy(
                f"{field}.batching.tailLatencySlaMs",
                f"{as_sla} differs from deadlineMs {as_deadline} of default tier {default_tier}: they are one value",
            )
        if as_sla is not None or as_deadline is not None:
            return as_sla if as_sla is not None else as_deadline
    return None


def _tiers(
    spec: PolicySpec, instance: Instance, defaults: ClassDefaults, default_tier: str, where: str
) -> tuple[TierSettings, ...]:
    given_sla = _sla_ms(spec, instance, default_tier, where)
    shape = defaults.tiers.get(default_tier)
    if given_sla is None and default_tier != defaults.default_tier and shape is None:
        raise InvalidPolicy("spec.tiers", f"tier {default_tier} needs deadlineMs: the traffic class has no such tier")
    multiple = shape.deadline_multiple if shape else 1
    sla = given_sla if given_sla is not None else defaults.sla_ms * multiple
    unit = max(1, sla // multiple)
    policy_tiers = spec.tiers or [Tier(name=name) for name in defaults.tiers]
    overrides = {tier.name: tier for tier in instance.tiers or []}
    tiers = [
        _tier(tier, overrides.get(tier.name), defaults, unit, sla if tier.name == default_tier else None, where)
        for tier in policy_tiers
    ]
    reserved = sum(tier.reserve_percent for tier in tiers)
    if reserved > 90:
        raise InvalidPolicy(f"{where}.tiers", f"reserves add up to {reserved} %, over 90 %")
    return tuple(sorted(tiers, key=lambda tier: tier.deadline_ms))


def _tier(
    base: Tier, over: Tier | None, defaults: ClassDefaults, unit_ms: int, sla_ms: int | None, where: str
) -> TierSettings:
    shape = defaults.tiers.get(base.name)
    layers = [layer for layer in (over, base) if layer is not None]

    deadline = sla_ms if sla_ms is not None else _said(layer.deadline_ms for layer in layers)
    if deadline is None:
        if shape is None:
            raise InvalidPolicy(
                f"{where}.tiers", f"tier {base.name} needs deadlineMs: the traffic class has no such tier"
            )
        deadline = unit_ms * shape.deadline_multiple
    timeout = _said(layer.timeout_ms for layer in layers)
    if timeout is None:
        times = shape.timeout_multiple if shape else 2
        timeout = deadline * times if times else None
    elif timeout < deadline:
        raise InvalidPolicy(f"{where}.tiers", f"tier {base.name}: timeoutMs ({timeout}) under deadlineMs ({deadline})")
    hold = _said(layer.max_hold_ms for layer in layers)
    if hold is None:
        share = shape.max_hold_percent if shape else None
        hold = deadline * share // 100 if share is not None else deadline
    return TierSettings(
        name=base.name,
        deadline_ms=min(deadline, 86_400_000),
        timeout_ms=min(timeout, 86_400_000) if timeout is not None else None,
        max_hold_ms=min(hold, 86_400_000),
        preempts=_first(_said(layer.preempts for layer in layers), bool(shape and shape.preempts)),
        reserve_percent=_first(_said(layer.reserve_percent for layer in layers), shape.reserve_percent if shape else 0),
    )
