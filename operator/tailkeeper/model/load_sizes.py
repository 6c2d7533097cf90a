"""How long prompts and answers are, in tokens.

Written as text (`parse_sizes`): `128` (all alike), `uniform:LOW,HIGH`, or `lognormal:P50,P99`, which is what chat
and code traffic look like (chat prompts: `lognormal:1020,4142`; chat answers: `lognormal:129,601`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from tailkeeper.model.load_trace import TOKENS_MAX
from tailkeeper.model.loads import LoadError, RandomSource

_Z99: Final = 2.3263478740408408
"""The 99th percentile of the standard normal."""


@dataclass(frozen=True)
class Sizes(ABC):
    """What every distribution below offers."""

    @abstractmethod
    def draw(self, rng: RandomSource) -> int:
        """Return one size in tokens, at least 1."""

    @property
    @abstractmethod
    def mean_tokens(self) -> float:
        """The mean size."""


@dataclass(frozen=True)
class Fixed(Sizes):
    """All alike."""

    tokens: int

    def __post_init__(self) -> None:
        _check("size", self.tokens)

    def draw(self, rng: RandomSource) -> int:
        """Return the one size."""
        return self.tokens

    @property
    def mean_tokens(self) -> float:
        """The mean size."""
        return self.tokens


@dataclass(frozen=True)
class Uniform(Sizes):
    """Every whole number from `low` to `high` alike."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check("LOW", self.low)
        _check("HIGH", self.high)
        if self.high < self.low:
            raise LoadError(f"HIGH must be at least LOW ({self.low}), not {self.high}")

    def draw(self, rng: RandomSource) -> int:
        """Return one size in tokens."""
        return self.low + int(rng.random() * (self.high - self.low + 1))

    @property
    def mean_tokens(self) -> float:
        """The mean size."""
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class LogNormal(Sizes):
    """Log-normal with that median and 99th percentile, both in tokens."""

    p50: int
    p99: int

    def __post_init__(self) -> None:
        _check("P50", self.p50)
        _check("P99", self.p99)
        if self.p99 < self.p50:
            raise LoadError(f"P99 must be at least P50 ({self.p50}), not {self.p99}")

    @property
    def _sigma(self) -> float:
        return math.log(self.p99 / self.p50) / _Z99

    def draw(self, rng: RandomSource) -> int:
        """Return one size in tokens."""
        return min(TOKENS_MAX, max(1, round(self.p50 * math.exp(rng.gauss(0.0, self._sigma)))))

    @property
    def mean_tokens(self) -> float:
        """The mean size."""
        return self.p50 * math.exp(self._sigma**2 / 2)


def parse_sizes(text: str) -> Sizes:
    """Read a distribution from its text (see the top of this module).

    Raises:
        LoadError: the text is not one of the forms.
    """
    name, colon, rest = text.strip().partition(":")
    try:
        if not colon:
            return Fixed(_whole(name))
        numbers = [_whole(part) for part in rest.split(",")]
        if name in ("uniform", "lognormal") and len(numbers) == 2:
            return Uniform(*numbers) if name == "uniform" else LogNormal(*numbers)
    except LoadError as error:
        raise LoadError(f"size {text!r}: {error}") from None
    raise LoadError(f"size {text!r}: write TOKENS, uniform:LOW,HIGH or lognormal:P50,P99")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise LoadError(f"{text.strip()!r} is not a whole number of tokens") from None


def _check(name: str, tokens: int) -> None:
    if not 1 <= tokens <= TOKENS_MAX:
        raise LoadError(f"{name} must be between 1 and {TOKENS_MAX} tokens, not {tokens}")
