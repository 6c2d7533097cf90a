"""How sure one may be of a ratio of late requests: bounds, clustering, and whether two ratios differ.

Counts are floats: divided by the design effect they are no longer whole."""

import math
from dataclasses import dataclass
from typing import Final, Self

NOTHING: Final = 1e-9
"""Less than that was counted is nothing."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """`k` of `n`; n may be 0, then nothing is known."""

    k: float
    n: float

    @property
    def ratio(self) -> float:
        """k ÷ n; 0 when n is 0 (ask `n` first)."""
        return self.k / self.n if self.n > 0 else 0.0

    def lower(self, z: float) -> float:
        """One-sided lower Wilson bound with continuity correction.

        The correction matters where misses are few: without it one late request of five reads as "surely over 1 %"
        at z = 2.6, which happens by chance once in twenty."""
        if self.n < NOTHING:
            return 0.0
        return max(0.0, _wilson(max(0.0, self.k - 0.5), self.n, -z))

    def upper(self, z: float) -> float:
        """One-sided upper Wilson bound. At z = 1.645 and k = 0 it falls below 1 % from n = 268 on."""
        if self.n < NOTHING:
            return 1.0
        return min(1.0, _wilson(self.k, self.n, z))

    def thinned(self, design_effect: float) -> Self:
        """The same ratio with as much information as that many independent requests carry."""
        return type(self)(self.k / design_effect, self.n / design_effect)


def _wilson(k: float, n: float, z: float) -> float:
    p, zz = k / n, z * z
    spread = z * math.sqrt(max(0.0, p * (1 - p)) / n + zz / (4 * n * n))
    return (p + zz / (2 * n) + spread) / (1 + zz / n)


def design_effect(counted: Proportion, nn: float, nk: float, kk: float, clusters: float) -> float:
    """By how much clustered misses widen the error of k ÷ n, against independent ones; at least 1.

    nn, nk, kk are Σn², Σnk, Σk² over `clusters` clusters (seconds): the variance of a ratio of cluster totals (the
    linearised ratio estimator of survey sampling) over that of a binomial. 1 where it cannot be known (k 0 or n)."""
    p, n = counted.ratio, counted.n
    binomial = n * p * (1 - p)
    if binomial <= 0:
        return 1.0
    small_sample = clusters / (clusters - 1) if clusters >= 2 else 1.0
    clustered = (kk - 2 * p * nk + p * p * nn) * small_sample
    return max(1.0, clustered / binomial)


def difference_z(before: Proportion, after: Proportion) -> float:
    """How many standard errors `after` lies above `before` (two-proportion z with the pooled ratio); 0 if unknown."""
    if before.n <= 0 or after.n <= 0:
        return 0.0
    pooled = (before.k + after.k) / (before.n + after.n)
    error = math.sqrt(pooled * (1 - pooled) * (1 / before.n + 1 / after.n)) if 0 < pooled < 1 else 0.0
    return (after.ratio - before.ratio) / error if error > 0 else 0.0
