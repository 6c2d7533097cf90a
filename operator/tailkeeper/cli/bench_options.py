"""What is written on the command line of `tailkeeper bench`, read into the parts of a plan."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tailkeeper.bench.plan import Limits
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_sizes import parse_sizes
from tailkeeper.model.load_trace import LoadRequest, read_trace, rescaled
from tailkeeper.model.loads import LoadError, parse_arrivals

DEFAULT_DURATION_S: Final = 30.0

_TIME: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?(e[0-9]+)?)(?P<unit>ms|s|m|h)?")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_T = TypeVar("_T")


def loads(
    tiers: Sequence[str],
    prompt_tokens: Sequence[str] | None,
    output_tokens: Sequence[str] | None,
    deadline_ms: Sequence[str] | None,
    tenant: Sequence[str] | None,
) -> tuple[TierLoad, ...]:
    """Return the tiers that are made up."""
    named = [_tier_and_arrivals(text) for text in tiers]
    names = [name for name, _ in named]
    prompts = _by_tier("--prompt-tokens", prompt_tokens, names, parse_sizes)
    outputs = _by_tier("--output-tokens", output_tokens, names, parse_sizes)
    deadlines = _by_tier("--deadline-ms", deadline_ms, names, _whole_ms)
    tenants = _by_tier("--tenant", tenant, names, str)
    return tuple(
        TierLoad(
            name,
            parse_arrivals(arrivals),
            prompts.get(name, TierLoad.prompt),
            outputs.get(name, TierLoad.output),
            deadlines.get(name),
            tenants.get(name),
        )
        for name, arrivals in named
    )


def _tier_and_arrivals(text: str) -> tuple[str, str]:
    name, colon, arrivals = text.partition(":")
    if not colon or not name:
        raise LoadError(f"tier {text!r}: write NAME:ARRIVALS, such as interactive:poisson:40")
    return name, arrivals


def limits(names: Sequence[str], sla_ms: Sequence[str] | None, timeout_ms: Sequence[str] | None) -> dict[str, Limits]:
    """Return what each tier is held against."""
    slas = _by_tier("--sla-ms", sla_ms, names, _number)
    timeouts = _by_tier("--timeout-ms", timeout_ms, names, _number)
    # An answer must be able to come late without being given up.
    return {
        name: Limits(slas.get(name), timeouts.get(name, max(Limits.timeout_ms, 2 * slas.get(name, 0.0))))
        for name in dict.fromkeys(names)
    }


def _by_tier(
    option: str, values: Sequence[str] | None, names: Sequence[str], read: Callable[[str], _T]
) -> Mapping[str, _T]:
    """Read `TIER=VALUE`s, and `VALUE`s that hold for all tiers not named."""
    found: dict[str, _T] = {}
    everywhere: _T | None = None
    for text in values or ():
        name, equals, value = text.rpartition("=")
        if equals and name not in names:
            raise LoadError(f"{option} {text}: no tier {name!r}; there are {', '.join(dict.fromkeys(names)) or 'none'}")
        try:
            if equals:
                found[name] = read(value)
            else:
                everywhere = read(value)
        except LoadError as error:
            raise LoadError(f"{option} {text}: {error}") from None
    if everywhere is not None:
        found = {name: found.get(name, everywhere) for name in names}
    return found


def duration_s(text: str | None, loads: Sequence[TierLoad], requests: Sequence[LoadRequest]) -> float:
    """Return how long to measure: as said, else the whole trace, else 30 s."""
    if text is not None:
        return seconds(text)
    if requests and not loads:
        # Just past the last one: the end is exclusive.
        return requests[-1].arrival_s + 0.001
    return DEFAULT_DURATION_S


def seconds(text: str) -> float:
    """Read `90`, `90s`, `5m`, `1h`."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise LoadError(f"time {text!r}: write seconds, or 90s, 5m, 1h")
    return float(found["number"]) * _UNITS_S[found["unit"] or "s"]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LoadError(f"{text!r} is not a number") from None


def _whole_ms(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise LoadError(f"{text!r} is not a whole number of milliseconds") from None


def headers(texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Read `NAME:VALUE`s."""
    found = []
    for text in texts or ():
        name, colon, value = text.partition(":")
        if not colon:
            raise LoadError(f"header {text!r}: write NAME:VALUE")
        found.append((name.strip(), value.strip()))
    return tuple(found)


def trace(path: Path, speed: float, scale_tokens: float) -> tuple[LoadRequest, ...]:
    """Read a trace file, sped up and scaled."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return tuple(rescaled(read_trace(file, str(path)), speed, scale_tokens))
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None


def inputs(path: Path) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
    """Return texts and whole bodies, one of which is empty."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LoadError(f"{path}: not UTF-8 text") from None
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise LoadError(f"{path}: empty")
    if path.suffix != ".jsonl":
        return tuple(line for _, line in numbered), ()
    return (), tuple(_body(line, f"{path}:{n}") for n, line in numbered)


def _body(line: str, where: str) -> bytes:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise LoadError(f"{where}: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise LoadError(f"{where}: a request body is an object, in braces")
    return json.dumps(body).encode()
