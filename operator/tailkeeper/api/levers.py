"""Levers: reading them, moving them within the bounds of the spec, and keeping them when the spec changes.

Two documents play together. `settings` is what an instance runs with; `spec` is what its policy alone gives
(`resolve.initial_settings`). A lever whose values differ was moved, and `settings.moved` says so, because when the spec
changes the old one is no longer there to compare with: then moved levers keep their value as far as the new bounds
allow, the others follow the spec. A lever that is back at the spec's value counts as never moved.

In text (`ceiling=4 maxHold.interactive=5ms`) units may be left out; they are milliseconds and percent."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from tailkeeper.api.base import LABEL
from tailkeeper.api.enums import Lever, Mode
from tailkeeper.api.settings import (
    MAX_MARGIN_PERCENT,
    MAX_RESERVED_PERCENT,
    MAX_TOKEN_BUDGET,
    MIN_MARGIN_PERCENT,
    Settings,
)
from tailkeeper.api.status import Change

Value = int | bool | None
"""A whole number in the lever's unit; whether, for preemption; None for a token budget that does not bind."""


class InvalidMove(ValueError):
    """A move that cannot be made; the message names the lever and says what would do."""


@dataclass(frozen=True, order=True)
class Key:
    """One value that a move may change. In text `ceiling`, or `maxHold.interactive` where every tier has its own."""

    lever: Lever
    tier: str | None = None

    def __str__(self) -> str:
        return self.lever.value if self.tier is None else f"{self.lever.value}.{self.tier}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Raises InvalidMove when there is no such lever, or its tier is missing or too much."""
        name, _, tier = text.partition(".")
        if name not in list(Lever):
            raise InvalidMove(f"{name}: there is no such lever; there are {', '.join(Lever)}")
        lever = Lever(name)
        if lever not in _OF_TIER:
            if tier:
                raise InvalidMove(f"{text}: {name} belongs to the instance, not to a tier: write {name}")
            return cls(lever)
        if not re.fullmatch(LABEL.strip("^$"), tier):
            raise InvalidMove(f"{text}: {name} belongs to a tier: write {name}.TIER")
        return cls(lever, tier)


@dataclass(frozen=True)
class Move:
    """A lever and its new value."""

    key: Key
    value: Value

    def __str__(self) -> str:
        return f"{self.key}={_text(self.key, self.value)}"


def parse_moves(text: str) -> tuple[Move, ...]:
    """Reads `ceiling=4, maxHold.interactive=5ms`, parted by commas or blanks. Raises InvalidMove."""
    moves = []
    for part in filter(None, re.split(r"[\s,]+", text)):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidMove(f"{part}: write LEVER=VALUE")
        key = Key.parse(name)
        moves.append(Move(key, _value(key, value)))
    if not moves:
        raise InvalidMove("nothing to set: write LEVER=VALUE, for example ceiling=8")
    return tuple(moves)


def move(settings: Settings, moves: Iterable[Move], spec: Settings) -> Settings:
    """The settings with these levers moved, of the same generation. Raises InvalidMove beyond the bounds of `spec`."""
    values = values_of(settings)
    asked: set[Key] = set()
    for each in moves:
        if each.key in asked:
            raise InvalidMove(f"{each.key} is set twice")
        if each.key not in values:
            raise InvalidMove(
                f"{each.key}: there is no such tier; there are {', '.join(t.name for t in settings.tiers)}"
            )
        asked.add(each.key)
        _check(each, spec)
        values[each.key] = each.value
    if (reserved := _reserved(values)) > MAX_RESERVED_PERCENT:
        raise InvalidMove(f"reserve adds up to {reserved}%, over {MAX_RESERVED_PERCENT}%: lower another tier's first")
    return _with_values(settings, values, spec)


def carry(settings: Settings, spec: Settings) -> Settings:
    """The new spec with the moved levers kept, as far as its bounds allow; generation and latency prior stay."""
    values = values_of(spec)
    kept = {Key.parse(text) for text in settings.moved if text.partition(".")[0] in list(Lever)} & values.keys()
    for key, value in values_of(settings).items():
        if key in kept:
            values[key] = _clamped(key, value, spec)
    if _reserved(values) > MAX_RESERVED_PERCENT:
        values |= {key: value for key, value in values_of(spec).items() if key.lever is Lever.RESERVE}
    base = spec.but(
        generation=settings.generation, latency_prior=spec.latency_prior or settings.latency_prior, moved=[]
    )
    return _with_values(base, values, spec)


def changes(before: Settings, after: Settings) -> list[Change]:
    """What moved between the two, as people read it. Tiers that only one of them has are no moves."""
    old, new = values_of(before), values_of(after)
    return [
        Change(lever=key.lever, tier=key.tier, before=_text(key, old[key]), after=_text(key, new[key]))
        for key in old
        if key in new and old[key] != new[key]
    ]


def values_of(settings: Settings) -> dict[Key, Value]:
    """Every lever's value now."""
    values: dict[Key, Value] = {Key(lever): getattr(settings, field) for lever, field in _OF_INSTANCE.items()}
    for tier in settings.tiers:
        values |= {Key(lever, tier.name): getattr(tier, field) for lever, field in _OF_TIER.items()}
    return values


_OF_INSTANCE: Mapping[Lever, str] = {
    Lever.CEILING: "ceiling",
    Lever.MARGIN: "margin_percent",
    Lever.TOKEN_BUDGET: "token_budget",
}
_OF_TIER: Mapping[Lever, str] = {
    Lever.MAX_HOLD: "max_hold_ms",
    Lever.BOOST: "boost_ms",
    Lever.RESERVE: "reserve_percent",
    Lever.PREEMPTION: "preempts",
}
_UNITS: Mapping[Lever, str] = {Lever.MARGIN: "%", Lever.RESERVE: "%", Lever.MAX_HOLD: "ms", Lever.BOOST: "ms"}
_WORDS: Mapping[str, bool] = {"on": True, "off": False}


def _with_values(settings: Settings, values: Mapping[Key, Value], spec: Settings) -> Settings:
    own = {field: values[Key(lever)] for lever, field in _OF_INSTANCE.items()}
    tiers = [
        tier.but(**{field: values[Key(lever, tier.name)] for lever, field in _OF_TIER.items()})
        for tier in settings.tiers
    ]
    usual = values_of(spec)
    moved = sorted(str(key) for key, value in values.items() if usual.get(key, value) != value)
    return settings.but(**own, tiers=tiers, moved=moved)


def _value(key: Key, text: str) -> Value:
    if key.lever is Lever.PREEMPTION:
        if text not in _WORDS:
            raise InvalidMove(f"{key}={text}: write on or off")
        return _WORDS[text]
    if key.lever is Lever.TOKEN_BUDGET and text == "off":
        return None
    number = text.removesuffix(_UNITS.get(key.lever, ""))
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise InvalidMove(f"{key}={text}: write a whole number")
    return int(number)


def _text(key: Key, value: Value) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value}{_UNITS.get(key.lever, '')}"


def _bounds(key: Key, spec: Settings) -> tuple[int, int]:
    """Least and most that a lever may be. A hold or a boost past the deadline would mean nothing more."""
    match key.lever:
        case Lever.CEILING:
            return 1, spec.window_idle
        case Lever.MARGIN:
            return MIN_MARGIN_PERCENT, MAX_MARGIN_PERCENT
        case Lever.TOKEN_BUDGET:
            return 1, MAX_TOKEN_BUDGET
        case Lever.RESERVE:
            return 0, MAX_RESERVED_PERCENT
        case Lever.MAX_HOLD | Lever.BOOST:
            return 0, spec.tier(cast("str", key.tier)).deadline_ms
        case Lever.PREEMPTION:
            return 0, 1


def _check(asked: Move, spec: Settings) -> None:
    if asked.key.lever is Lever.TOKEN_BUDGET and asked.value is not None and spec.mode is not Mode.CONTINUOUS:
        raise InvalidMove(f"{asked}: mode {spec.mode.value} has no token budget, only mode continuous has")
    if asked.value is None or isinstance(asked.value, bool):
        return
    least, most = _bounds(asked.key, spec)
    if not least <= asked.value <= most:
        unit = _UNITS.get(asked.key.lever, "")
        raise InvalidMove(f"{asked} is out of bounds: {least}{unit} to {most}{unit}")


def _clamped(key: Key, value: Value, spec: Settings) -> Value:
    if key.lever is Lever.TOKEN_BUDGET and spec.mode is not Mode.CONTINUOUS:
        return None
    if value is None or isinstance(value, bool):
        return value
    least, most = _bounds(key, spec)
    return min(max(value, least), most)


def _reserved(values: Mapping[Key, Value]) -> int:
    return sum(cast("int", value) for key, value in values.items() if key.lever is Lever.RESERVE)
