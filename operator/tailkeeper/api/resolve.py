"""Class → policy → instance: the one place that puts defaults in.

What is said nearer to the instance wins, tiers merge by name. At its level, `tailLatencySlaMs` is another name for
`deadlineMs` of the default tier, the policy's or the instance's own: saying both, differently, is refused.

Every refusal here has a twin in `rules`, so that the API server refuses the same policies when they are applied."""

from __future__ import annotations  # the models validate with this module: it may only name them

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tailkeeper.api.base import DAY_MS
from tailkeeper.api.defaults import CONTINUOUS_ENGINES, DEFAULTS, ClassDefaults
from tailkeeper.api.enums import Mode, TrafficClass
from tailkeeper.api.settings import MAX_RESERVED_PERCENT, Settings, TierSettings

if TYPE_CHECKING:
    from tailkeeper.api.batching import Batching, Tier
    from tailkeeper.api.policy import Instance, PolicySpec

T = TypeVar("T")


class InvalidPolicy(ValueError):
    """Settings that contradict each other once they are put together. `field` is the path inside the policy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


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


def initial_settings(
    effective: Effective, *, policy_namespace: str, policy: str, model_instance: str, generation: int
) -> Settings:
    """The settings document before any move: every lever at what the spec says, `ceiling` at `windowIdle`."""
    return Settings(
        generation=generation,
        policy_namespace=policy_namespace,
        policy=policy,
        model_instance=model_instance,
        traffic_class=effective.traffic_class,
        mode=effective.mode,
        window_dynamic=effective.window_dynamic,
        window_idle=effective.window_idle,
        window_busy=effective.window_busy,
        priority_queue=effective.priority_queue,
        first_token_sla_ms=effective.first_token_sla_ms,
        inter_token_sla_ms=effective.inter_token_sla_ms,
        timeout_target_per_mille=effective.timeout_target_per_mille,
        min_efficiency_percent=effective.min_efficiency_percent,
        tiers=list(effective.tiers),
        default_tier=effective.default_tier,
        ceiling=effective.window_idle,
    )


def resolve_all(spec: PolicySpec) -> dict[str, Effective]:
    """Every instance's effective settings by name. Raises InvalidPolicy for the first that contradicts itself."""
    return {instance.name: resolve(spec, instance) for instance in spec.instances}


def resolve(spec: PolicySpec, instance: Instance) -> Effective:
    """One instance's effective settings. Raises InvalidPolicy with the field that is at fault."""
    defaults = DEFAULTS[spec.traffic_class]
    own_path = f"spec.instances[{instance.name}]"
    known = [tier.name for tier in spec.tiers] if spec.tiers else list(defaults.tiers)
    class_choice = defaults.default_tier if defaults.default_tier in known else known[0]
    policy = _level("spec", spec, spec.default_tier or class_choice, known)
    own = _level(own_path, instance, instance.default_tier or policy.default_tier, known)
    batching = spec.batching_of(instance)
    window_idle, window_busy = _windows(batching, defaults, own_path)
    mode = _mode(batching, instance, own_path)
    return Effective(
        traffic_class=spec.traffic_class,
        mode=mode,
        window_dynamic=_first(batching.window_dynamic, True),
        window_idle=window_idle,
        window_busy=window_busy,
        priority_queue=_first(batching.priority_queue, True),
        first_token_sla_ms=batching.first_token_sla_ms,
        inter_token_sla_ms=batching.inter_token_sla_ms,
        timeout_target_per_mille=_first(batching.timeout_target_per_mille, defaults.timeout_target_per_mille),
        min_efficiency_percent=_first(batching.min_efficiency_percent, defaults.min_efficiency_percent),
        tiers=_tiers(own, policy, known, defaults, mode),
        default_tier=own.default_tier,
    )


@dataclass(frozen=True)
class _Level:
    """What the policy, or the instance, says of tiers."""

    path: str
    default_tier: str
    tiers: Mapping[str, Tier]
    sla_ms: int | None
    """Deadline of the default tier, said as `tailLatencySlaMs`."""

    def deadline_ms(self, name: str) -> int | None:
        """The deadline that this level gives a tier, under either of its two names."""
        if name == self.default_tier and self.sla_ms is not None:
            return self.sla_ms
        tier = self.tiers.get(name)
        return tier.deadline_ms if tier else None


def _level(path: str, said: PolicySpec | Instance, default_tier: str, known: list[str]) -> _Level:
    tiers = {tier.name: tier for tier in said.tiers or []}
    for name in tiers:
        if name not in known:
            raise InvalidPolicy(f"{path}.tiers", f"tier {name} is not one of {', '.join(known)}")
    if default_tier not in known:
        raise InvalidPolicy(f"{path}.defaultTier", f"tier {default_tier} is not one of {', '.join(known)}")
    sla_ms = said.batching.tail_latency_sla_ms if said.batching else None
    deadline_ms = tiers[default_tier].deadline_ms if default_tier in tiers else None
    if sla_ms is not None and deadline_ms is not None and sla_ms != deadline_ms:
        raise InvalidPolicy(
            f"{path}.batching.tailLatencySlaMs",
            f"{sla_ms} differs from deadlineMs {deadline_ms} of default tier {default_tier}: they are one value",
        )
    return _Level(path, default_tier, tiers, sla_ms)


def _mode(batching: Batching, instance: Instance, path: str) -> Mode:
    engine = instance.model.engine
    if batching.mode is None:
        return Mode.CONTINUOUS if engine in CONTINUOUS_ENGINES else Mode.REQUEST
    if batching.mode is Mode.CONTINUOUS and engine not in CONTINUOUS_ENGINES:
        raise InvalidPolicy(f"{path}.batching.mode", f"engine {engine} has no mode continuous: use request or fixed")
    return batching.mode


def _windows(batching: Batching, defaults: ClassDefaults, path: str) -> tuple[int, int]:
    """A bound given alone draws the other's default along: `windowIdle: 8` must not need a `windowBusy` as well."""
    idle, busy = batching.window_idle, batching.window_busy
    if idle is None:
        idle = max(defaults.window_idle, busy or 1)
    if busy is None:
        busy = min(defaults.window_busy, idle)
    if busy > idle:
        raise InvalidPolicy(f"{path}.batching.windowBusy", f"windowBusy ({busy}) must not exceed windowIdle ({idle})")
    return idle, busy


def _tiers(
    own: _Level, policy: _Level, known: list[str], defaults: ClassDefaults, mode: Mode
) -> tuple[TierSettings, ...]:
    unit_ms = _unit_ms(own, policy, defaults)
    tiers = [_tier(name, own, policy, unit_ms, defaults, mode) for name in known]
    reserved = sum(tier.reserve_percent for tier in tiers)
    if reserved > MAX_RESERVED_PERCENT:
        raise InvalidPolicy(
            f"{own.path}.tiers", f"reservePercent adds up to {reserved}, over {MAX_RESERVED_PERCENT}: lower some"
        )
    return tuple(sorted(tiers, key=lambda tier: tier.deadline_ms))


def _unit_ms(own: _Level, policy: _Level, defaults: ClassDefaults) -> int:
    """What the class's multiples are multiples of: drawn from the SLA that the instance says, or else the policy."""
    for level, name in ((own, own.default_tier), (policy, policy.default_tier), (policy, own.default_tier)):
        deadline_ms = level.deadline_ms(name)
        if deadline_ms is not None:
            multiple = defaults.tiers[name].deadline_multiple if name in defaults.tiers else 1
            return max(1, deadline_ms // multiple)
    return defaults.sla_ms


def _tier(name: str, own: _Level, policy: _Level, unit_ms: int, defaults: ClassDefaults, mode: Mode) -> TierSettings:
    of_class = defaults.tiers.get(name)
    layers = [level.tiers[name] for level in (own, policy) if name in level.tiers]

    deadline_ms = _said(level.deadline_ms(name) for level in (own, policy))
    if deadline_ms is None:
        if of_class is None:
            raise InvalidPolicy(f"{own.path}.tiers", f"tier {name} needs deadlineMs: its traffic class has none for it")
        deadline_ms = min(unit_ms * of_class.deadline_multiple, DAY_MS)

    timeout_ms = _said(layer.timeout_ms for layer in layers)
    if timeout_ms is not None and timeout_ms < deadline_ms:
        raise InvalidPolicy(
            f"{own.path}.tiers", f"tier {name}: timeoutMs ({timeout_ms}) is under its deadlineMs ({deadline_ms})"
        )
    if timeout_ms is None and defaults.timeout_multiple is not None:
        timeout_ms = min(deadline_ms * defaults.timeout_multiple, DAY_MS)

    max_hold_ms = _said(layer.max_hold_ms for layer in layers)
    if max_hold_ms is None:
        # `fixed` waits until the batch is full unless a limit is said: the class's would make it something else.
        percent = of_class.max_hold_percent if of_class and mode is not Mode.FIXED else None
        max_hold_ms = deadline_ms if percent is None else deadline_ms * percent // 100

    return TierSettings(
        name=name,
        deadline_ms=deadline_ms,
        timeout_ms=timeout_ms,
        max_hold_ms=max_hold_ms,
        preempts=_first(_said(layer.preempts for layer in layers), of_class is not None and of_class.preempts),
        reserve_percent=_first(
            _said(layer.reserve_percent for layer in layers), of_class.reserve_percent if of_class else 0
        ),
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def _said(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)
