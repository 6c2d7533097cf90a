"""Arrival processes: when requests are meant to be sent. Load generator and simulator draw from the same ones.

A process knows no clock and no random numbers of its own: it is given a source of randomness and yields rising times in
seconds from 0, without end; the caller cuts. The same seed gives the same times.

Written as text (`parse_arrivals`), rates in requests per second:

| text | meaning |
| --- | --- |
| `constant:RATE` | evenly spaced |
| `poisson:RATE` | independent users |
| `gamma:RATE,CV` | gaps of that coefficient of variation: 1.1 is chat, 3.7 is code completion |
| `mmpp:RATE[,FACTOR,BURST_S,QUIET_S]` | FACTOR (3) times the mean RATE for about BURST_S (1), low for QUIET_S (4) |
| `step:RATE,FACTOR,AT_S[,BACK_S]` | Poisson at RATE, from AT_S on FACTOR times that, from BACK_S on RATE again |
| `onoff:RATE,ON_S,OFF_S[,OFF_MAX_S]` | Poisson at RATE for ON_S, silence of OFF_S (up to OFF_MAX_S), and again |
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

RATE_MAX_PER_S: Final = 1e6
"""Beyond this a rate is a typing error, not a load."""


class LoadError(ValueError):
    """A load that cannot be: the message is one line that says what is wrong and where."""


class RandomSource(Protocol):
    """The part of `random.Random` that loads draw from."""

    def random(self) -> float: ...  # noqa: D102
    def expovariate(self, lambd: float, /) -> float: ...  # noqa: D102
    def gammavariate(self, alpha: float, beta: float, /) -> float: ...  # noqa: D102
    def uniform(self, a: float, b: float, /) -> float: ...  # noqa: D102
    def gauss(self, mu: float, sigma: float) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class ArrivalProcess(ABC):
    """What every process below offers; `rate_per_s` is what scaling changes, the shape in time stays."""

    rate_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= RATE_MAX_PER_S:
            raise LoadError(f"RATE must be above 0 and at most {RATE_MAX_PER_S:g} a second, not {self.rate_per_s:g}")

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run mean of arrivals per second."""
        return self.rate_per_s

    @abstractmethod
    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield rising arrival times in seconds from 0, without end."""

    def scaled(self, factor: float) -> Self:
        """Return the same shape in time with `factor` times the rate."""
        return replace(self, rate_per_s=self.rate_per_s * factor)


@dataclass(frozen=True)
class Constant(ArrivalProcess):
    """Evenly spaced arrivals, the first at 0."""

    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield i / rate: a product, so that no rounding error adds up over a long run."""
        i = 0
        while True:
            yield i / self.rate_per_s
            i += 1


@dataclass(frozen=True)
class Poisson(ArrivalProcess):
    """Independent users: exponential gaps."""

    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield rising arrival times in seconds."""
        return _poisson_between(rng, self.rate_per_s, 0.0, math.inf)


@dataclass(frozen=True)
class Gamma(ArrivalProcess):
    """Gamma-distributed gaps of mean 1/rate and coefficient of variation `cv` (1 is Poisson, more is bunched)."""

    cv: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("CV", self.cv)
        if self.cv > 100:
            raise LoadError(f"CV must be at most 100, not {self.cv:g}")

    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield rising arrival times in seconds."""
        shape = 1.0 / self.cv**2
        scale_s = self.cv**2 / self.rate_per_s
        now_s = 0.0
        while True:
            now_s += rng.gammavariate(shape, scale_s)
            yield now_s


@dataclass(frozen=True)
class TwoState(ArrivalProcess):
    """Markov-modulated Poisson: bursts of `factor` times the mean rate, quiet between; dwell times exponential."""

    factor: float = 3.0
    burst_s: float = 1.0
    quiet_s: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("FACTOR", self.factor)
        _check_positive("BURST_S", self.burst_s)
        _check_positive("QUIET_S", self.quiet_s)
        if self.quiet_rate_per_s < 0:
            most = (self.burst_s + self.quiet_s) / self.burst_s
            raise LoadError(f"FACTOR {self.factor:g} leaves less than nothing for the quiet: at most {most:g}")

    @property
    def burst_rate_per_s(self) -> float:
        """Rate while in a burst."""
        return self.rate_per_s * self.factor

    @property
    def quiet_rate_per_s(self) -> float:
        """Rate outside bursts, such that the mean over both states is `rate_per_s`."""
        both_s = self.burst_s + self.quiet_s
        return self.rate_per_s * (both_s - self.factor * self.burst_s) / self.quiet_s

    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield rising arrival times in seconds; the state at 0 is drawn from the long-run shares of both."""
        bursting = rng.random() < self.burst_s / (self.burst_s + self.quiet_s)
        now_s = 0.0
        while True:
            until_s = now_s + rng.expovariate(1.0 / (self.burst_s if bursting else self.quiet_s))
            rate_per_s = self.burst_rate_per_s if bursting else self.quiet_rate_per_s
            yield from _poisson_between(rng, rate_per_s, now_s, until_s)
            now_s, bursting = until_s, not bursting


@dataclass(frozen=True)
class Step(ArrivalProcess):
    """Poisson whose rate jumps to `factor` times at `at_s`, and back at `back_s` if that is given."""

    factor: float
    at_s: float
    back_s: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("FACTOR", self.factor)
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise LoadError(f"AT_S must be a time from 0 on, not {self.at_s:g}")
        if not self.back_s > self.at_s:
            raise LoadError(f"BACK_S must be after AT_S ({self.at_s:g}), not {self.back_s:g}")

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run mean of arrivals per second: what the rate stays at in the end."""
        return self.rate_per_s * (self.factor if math.isinf(self.back_s) else 1.0)

    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield rising arrival times in seconds."""
        yield from _poisson_between(rng, self.rate_per_s, 0.0, self.at_s)
        yield from _poisson_between(rng, self.rate_per_s * self.factor, self.at_s, self.back_s)
        yield from _poisson_between(rng, self.rate_per_s, self.back_s, math.inf)


@dataclass(frozen=True)
class OnOff(ArrivalProcess):
    """Poisson at `rate_per_s` for `on_s`, then silence of between `off_s` and `off_max_s`, and again."""

    on_s: float
    off_s: float
    off_max_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("ON_S", self.on_s)
        _check_positive("OFF_S", self.off_s)
        if not (math.isfinite(self.longest_off_s) and self.longest_off_s >= self.off_s):
            raise LoadError(f"OFF_MAX_S must be at least OFF_S ({self.off_s:g}), not {self.longest_off_s:g}")

    @property
    def longest_off_s(self) -> float:
        """The longest silence."""
        return self.off_s if self.off_max_s is None else self.off_max_s

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run mean of arrivals per second."""
        return self.rate_per_s * self.on_s / (self.on_s + (self.off_s + self.longest_off_s) / 2)

    def times(self, rng: RandomSource) -> Iterator[float]:
        """Yield rising arrival times in seconds."""
        now_s = 0.0
        while True:
            yield from _poisson_between(rng, self.rate_per_s, now_s, now_s + self.on_s)
            now_s += self.on_s + rng.uniform(self.off_s, self.longest_off_s)


@dataclass(frozen=True)
class _Form:
    """How a process is written: the names of its numbers, the first `needed` of which must be there."""

    names: str
    needed: int
    build: Callable[[Sequence[float]], ArrivalProcess]


_FORMS: Final[dict[str, _Form]] = {
    "constant": _Form("RATE", 1, lambda n: Constant(*n)),
    "poisson": _Form("RATE", 1, lambda n: Poisson(*n)),
    "gamma": _Form("RATE,CV", 2, lambda n: Gamma(*n)),
    "mmpp": _Form("RATE,FACTOR,BURST_S,QUIET_S", 1, lambda n: TwoState(*n)),
    "step": _Form("RATE,FACTOR,AT_S,BACK_S", 3, lambda n: Step(*n)),
    "onoff": _Form("RATE,ON_S,OFF_S,OFF_MAX_S", 3, lambda n: OnOff(*n)),
}


def parse_arrivals(text: str) -> ArrivalProcess:
    """Read a process from its text (the table at the top of this module).

    Raises:
        LoadError: the text is not one of the forms, or its numbers make no load.
    """
    name, colon, rest = text.strip().partition(":")
    form = _FORMS.get(name)
    if form is None:
        raise LoadError(f"arrivals {text!r}: unknown process {name!r}; known: {', '.join(_FORMS)}")
    how = f"{name}:{form.names}"
    if not colon or not rest:
        raise LoadError(f"arrivals {text!r}: numbers are missing; write {how}")
    parts = rest.split(",")
    if not form.needed <= len(parts) <= form.names.count(",") + 1:
        raise LoadError(f"arrivals {text!r}: {len(parts)} numbers where {how} is wanted")
    try:
        return form.build([_number(part) for part in parts])
    except LoadError as error:
        raise LoadError(f"arrivals {text!r}: {error}") from None


def _poisson_between(rng: RandomSource, rate_per_s: float, start_s: float, end_s: float) -> Iterator[float]:
    """Exponential gaps from `start_s` up to `end_s`; memoryless, so a change of rate may cut anywhere."""
    if rate_per_s <= 0:
        return
    now_s = start_s + rng.expovariate(rate_per_s)
    while now_s < end_s:
        yield now_s
        now_s += rng.expovariate(rate_per_s)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise LoadError(f"{text.strip()!r} is not a number") from None
    if not math.isfinite(value):
        raise LoadError(f"{text.strip()!r} is not a finite number")
    return value


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise LoadError(f"{name} must be above 0, not {value:g}")
