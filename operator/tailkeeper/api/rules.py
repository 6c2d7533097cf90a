"""What the resolver refuses, said once more in CEL: the API server then refuses it when the policy is applied.

Each rule is evaluated on `spec` and loops over the instances, because a rule on an instance cannot see the policy. A
message that named the instance would exceed the API server's cost budget, so it names the field under `instances[]`.

CEL has no `let`: `[x].all(name, …)` binds one. What is optional is CEL's `optional`, so Kubernetes 1.29 is needed."""

from collections.abc import Callable

from tailkeeper.api.base import DAY_MS, Rule
from tailkeeper.api.defaults import CONTINUOUS_ENGINES, DEFAULTS, ClassDefaults
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import MAX_RESERVED_PERCENT


def _literal(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return f"'{value}'"
        case list() | tuple():
            return f"[{', '.join(_literal(item) for item in value)}]"
        case dict():
            return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    raise TypeError(type(value))


def _of_class(value: Callable[[ClassDefaults], object]) -> str:
    """What the policy's traffic class says."""
    table = {name.value: value(defaults) for name, defaults in DEFAULTS.items()}
    return f"{_literal(table)}[self.trafficClass]"


_CLASS_TIERS = _of_class(lambda defaults: list(defaults.tiers))
_CLASS_CHOICE = _of_class(lambda defaults: defaults.default_tier)
_KNOWN = f"(has(self.tiers) ? self.tiers.map(t, t.name) : {_CLASS_TIERS})"
_POLICY_DEFAULT_TIER = (
    f"self.?defaultTier.orValue(has(self.tiers) && !self.tiers.exists(t, t.name == {_CLASS_CHOICE})"
    f" ? self.tiers[0].name : {_CLASS_CHOICE})"
)


def _known(name: str) -> str:
    return f"(has(self.tiers) ? self.tiers.exists(t, t.name == {name}) : {name} in {_CLASS_TIERS})"


def _with_policy_default(rule: str) -> str:
    """`p` is the policy's default tier."""
    return f"[{_POLICY_DEFAULT_TIER}].all(p, {rule})"


def _every_instance(rule: str) -> str:
    """`i` is an instance, `d` its default tier."""
    return _with_policy_default(f"self.instances.all(i, [i.?defaultTier.orValue(p)].all(d, {rule}))")


def _tier(level: str, name: str) -> str:
    """The tier of that name at a level (`self` or `i`), an optional."""
    return f"(has({level}.tiers) ? {level}.tiers.filter(t, t.name == {name})[?0] : optional.none())"


def _said(level: str, default_tier: str, name: str) -> str:
    """The deadline that one level (`i` or `self`) gives a tier under either name; an optional."""
    as_sla = f"({name} == {default_tier} ? {level}.?batching.?tailLatencySlaMs : optional.none())"
    return f"{as_sla}.or({_tier(level, name)}.?deadlineMs)"


def _deadline(name: str) -> str:
    """The deadline that the instance, or else the policy, gives a tier; an optional."""
    return f"{_said('i', 'd', name)}.or({_said('self', 'p', name)})"


def _multiple(name: str) -> str:
    table = _of_class(lambda defaults: {name: tier.deadline_multiple for name, tier in defaults.tiers.items()})
    return f"{table}[?{name}].orValue(1)"


def _unit() -> str:
    """What the class's multiples are multiples of, as the resolver has it."""
    first, second, third = (
        f"{_said(level, default_tier, name)}.optMap(ms, [1, ms / {_multiple(name)}].max())"
        for level, default_tier, name in (("i", "d", "d"), ("self", "p", "p"), ("self", "p", "d"))
    )
    return f"{first}.or({second}).or({third}).orValue({_of_class(lambda defaults: defaults.sla_ms)})"


def _sla_is_deadline(level: str, default_tier: str) -> str:
    """At one level, both names of one value say the same."""
    return (
        f"!has({level}.batching) || !has({level}.batching.tailLatencySlaMs) || !has({level}.tiers) || "
        f"{level}.tiers.all(t, t.name != {default_tier} || !has(t.deadlineMs) || "
        f"t.deadlineMs == {level}.batching.tailLatencySlaMs)"
    )


_class_words = "; ".join(f"{name.value}: {', '.join(defaults.tiers)}" for name, defaults in DEFAULTS.items())
_ONE_OF = f"must name one of tiers or, where the policy has no tiers, one of its traffic class's ({_class_words})"

SPEC_RULES = (
    Rule(f"!has(self.defaultTier) || {_known('self.defaultTier')}", f"defaultTier {_ONE_OF}", field=".defaultTier"),
    Rule(
        f"self.instances.all(i, !has(i.defaultTier) || {_known('i.defaultTier')})",
        f"instances[].defaultTier {_ONE_OF}",
        field=".instances",
    ),
    Rule(
        f"self.instances.all(i, !has(i.tiers) || i.tiers.all(o, {_known('o.name')}))",
        f"instances[].tiers[].name {_ONE_OF}: an instance changes tiers, it adds none",
        field=".instances",
    ),
    Rule(
        _with_policy_default(_sla_is_deadline("self", "p")),
        "batching.tailLatencySlaMs is the deadlineMs of the default tier: give one of them, or both the same value",
        field=".batching.tailLatencySlaMs",
    ),
    Rule(
        _every_instance(_sla_is_deadline("i", "d")),
        "instances[].batching.tailLatencySlaMs is the deadlineMs of the instance's default tier: give one of them, or "
        "both the same value",
        field=".instances",
    ),
    Rule(
        _every_instance(
            f"!has(self.tiers) || self.tiers.all(o, o.name in {_CLASS_TIERS} || {_deadline('o.name')}.hasValue())"
        ),
        f"tiers[].deadlineMs is needed for a tier that the traffic class does not know ({_class_words})",
        field=".tiers",
    ),
    Rule(
        _every_instance(
            f"[{_unit()}].all(u, {_KNOWN}.all(n, "
            f"{_tier('i', 'n')}.?timeoutMs.or({_tier('self', 'n')}.?timeoutMs).optMap(timeout, "
            f"timeout >= {_deadline('n')}.orValue([u * {_multiple('n')}, {DAY_MS}].min())).orValue(true)))"
        ),
        "timeoutMs must not be under deadlineMs of the same tier, once instances[].tiers, tiers, tailLatencySlaMs and "
        "the traffic class's defaults are put together: raise timeoutMs or leave it out",
        field=".instances",
    ),
    Rule(
        f"self.instances.all(i, {_KNOWN}.map(n, {_tier('i', 'n')}.?reservePercent"
        f".or({_tier('self', 'n')}.?reservePercent).orValue("
        + _of_class(lambda defaults: {name: tier.reserve_percent for name, tier in defaults.tiers.items()})
        + f"[?n].orValue(0))).sum() <= {MAX_RESERVED_PERCENT})",
        f"reservePercent of an instance's tiers must not add up to more than {MAX_RESERVED_PERCENT}: lower some",
        field=".instances",
    ),
    Rule(
        "self.instances.all(i, i.?batching.?windowBusy.or(self.?batching.?windowBusy).orValue(0) <= "
        "i.?batching.?windowIdle.or(self.?batching.?windowIdle).orValue(2147483647))",
        "windowBusy must not exceed windowIdle, once instances[].batching is laid over batching: lower windowBusy or "
        "raise windowIdle",
        field=".instances",
    ),
    Rule(
        "self.instances.all(i, "
        f"i.model.engine in {_literal([engine.value for engine in CONTINUOUS_ENGINES])} || "
        f"i.?batching.?mode.or(self.?batching.?mode).orValue('') != '{Mode.CONTINUOUS.value}')",
        "batching.mode continuous needs an engine that iterates "
        f"({', '.join(engine.value for engine in CONTINUOUS_ENGINES)}): use request or fixed for the others, "
        "in instances[].batching.mode",
        field=".instances",
    ),
)
