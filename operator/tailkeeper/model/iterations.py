"""How long an iteration takes, learnt from those that ran (continuous mode), and the windows that follow.

T = α + β·prefill tokens + γ·decoding sequences + δ·KV tokens. As in request mode what is fitted are means of bins,
here of (prefill, sequences, KV) on log scales; every coefficient is at least 0. Errors count relative to T, or the few
long prefills would drown what decoding teaches."""

import math
from dataclasses import dataclass

MEMORY = 50
FADE = 0.98
"""Factor of the weight of a bin per refit in which it was not seen."""
LEAST_WEIGHT = 0.02
OUTLIER = 4.0
DRIFT_STEP = 1.0 / 16.0
DRIFTED = 0.25
"""Off by this much on average over the last sixteen or so: another speed, which averages would follow too slowly."""
BELIEVED_AFTER = 8
"""So many outliers in a row are the new speed."""
REFIT_EVERY = 64
EAGER = 64
"""Until so many iterations were seen every new bin refits."""
MOST_BINS = 128
RIDGE = (1e-5, 1e-5, 1e-5, 1e-2)
"""Pull towards the prior, relative to the data: decides what they leave open. KV tokens grow with prefill and with
sequences, so at first all of it could be theirs; a δ of 1 ms from 50 tokens would make 1600 take more than a second."""
RESIDUALS = 256
ENOUGH_RESIDUALS = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Coefficients in seconds: per iteration, prefill token, decoding sequence, KV token."""

    alpha: float
    beta: float
    gamma: float
    delta: float = 0.0

    def at(self, prefill: float, decoding: float, kv: float) -> float:
        """Seconds of one iteration."""
        return self.alpha + self.beta * prefill + self.gamma * decoding + self.delta * kv

    def per_request(self, window: float, prompt: float, output: float) -> float:
        """Engine time of one request when `window` sequences run: prompt prefilled once, a share of every iteration."""
        return self.beta * prompt + output * (self.sequence(prompt, output) + self.alpha / window)

    def sequence(self, prompt: float, output: float) -> float:
        """One decoding sequence's own share of an iteration, its KV memory half grown: γ + δ·(P + n̄/2)."""
        return self.gamma + self.delta * (prompt + output / 2.0)


class _Bin:
    __slots__ = ("count", "decoding", "kv", "prefill", "seconds", "weight")

    def __init__(self) -> None:
        self.count = 0
        self.prefill = self.decoding = self.kv = self.seconds = 0.0
        self.weight = 1.0

    def add(self, prefill: int, decoding: int, kv: int, seconds: float) -> None:
        self.count = min(self.count + 1, MEMORY)
        step = 1.0 / self.count
        self.prefill += (prefill - self.prefill) * step
        self.decoding += (decoding - self.decoding) * step
        self.kv += (kv - self.kv) * step
        self.seconds += (seconds - self.seconds) * step
        self.weight = 1.0


class IterationLatency:
    """One `Cost` with its spread. `cost` is None until iterations (or a prior) were seen."""

    __slots__ = ("_bins", "_drift", "_outliers", "_prior", "_residuals", "_seen", "cost", "spread")

    def __init__(self, prior: Cost | None = None) -> None:
        self.cost = prior
        self.spread = 0.1
        """99th percentile of (T − T̂)/T̂, at least 0."""
        self._prior = prior
        self._bins: dict[tuple[int, int, int], _Bin] = {}
        self._residuals: list[float] = []
        self._seen = 0
        self._outliers = 0
        self._drift = 0.0

    @property
    def seen(self) -> int:
        """Iterations learnt from."""
        return self._seen

    def learn(self, prefill: int, decoding: int, kv: int, seconds: float) -> None:
        """Takes in one iteration. What cannot be true (empty, not positive, not finite) is left out."""
        if prefill + decoding < 1 or not 0.0 < seconds < math.inf:
            return
        cost = self.cost
        if cost is not None and self._seen:
            expected = cost.at(prefill, decoding, kv)
            if seconds > OUTLIER * expected and self._seen >= EAGER:
                self._outliers += 1
                if self._outliers < BELIEVED_AFTER:
                    return
                self._forget()
            else:
                self._outliers = 0
                residual = seconds / expected - 1.0
                self._drift += (residual - self._drift) * DRIFT_STEP
                if abs(self._drift) > DRIFTED:
                    self._forget()
                else:
                    self._remember_residual(residual)
        self._seen += 1
        key = (_half_octave(prefill), _half_octave(decoding), _octave(kv))
        bin_ = self._bins.get(key)
        new = bin_ is None
        if bin_ is None:
            bin_ = self._bins[key] = _Bin()
        bin_.add(prefill, decoding, kv, seconds)
        if self._seen % REFIT_EVERY == 0 or (new and self._seen < EAGER):
            self._refit()

    def _refit(self) -> None:
        bins = self._bins
        if len(bins) > MOST_BINS:
            for key, _ in sorted(bins.items(), key=lambda item: item[1].weight)[: MOST_BINS // 4]:
                del bins[key]
        fitted = fit(list(bins.values()), self._prior)
        for one in bins.values():
            one.weight = max(LEAST_WEIGHT, one.weight * FADE)
        if fitted is not None:
            self.cost = fitted

    def _forget(self) -> None:
        self._drift = 0.0
        self._bins.clear()
        self._residuals.clear()
        self._outliers = self._seen = 0
        self._prior = self.cost

    def _remember_residual(self, residual: float) -> None:
        residuals = self._residuals
        if len(residuals) < RESIDUALS:
            residuals.append(residual)
        else:
            residuals[self._seen % RESIDUALS] = residual
        known = len(residuals)
        if known >= ENOUGH_RESIDUALS and self._seen % REFIT_EVERY == 0:
            self.spread = max(0.0, sorted(residuals)[math.ceil(0.99 * known) - 1])


def fit(bins: list[_Bin], prior: Cost | None) -> Cost | None:
    """Non-negative least squares of relative errors; None when there is nothing to fit."""
    if not bins:
        return None
    start = (0.0, 0.0, 0.0, 0.0)
    if prior is not None:
        scale = _scale(bins, prior)
        start = (scale * prior.alpha, scale * prior.beta, scale * prior.gamma, scale * prior.delta)
    gram, right = _normal_equations(bins)
    for i in range(4):
        ridge = RIDGE[i] * gram[i][i] or 1.0  # what no iteration had (no prefill yet) stays as the prior says
        gram[i][i] += ridge
        right[i] += ridge * start[i]
    alpha, beta, gamma, delta = _non_negative(gram, right)
    least = 1e-6 * max(one.seconds for one in bins)
    # α and γ above 0, or a window's bound would divide by them
    return Cost(max(alpha, least), beta, max(gamma, least), delta)


def _normal_equations(bins: list[_Bin]) -> tuple[list[list[float]], list[float]]:
    gram = [[0.0] * 4 for _ in range(4)]
    right = [0.0] * 4
    for one in bins:
        seconds = one.seconds
        weight = one.weight / (seconds * seconds)
        row = (1.0, one.prefill, one.decoding, one.kv)
        for i in range(4):
            scaled = weight * row[i]
            right[i] += scaled * seconds
            for j in range(i + 1):
                gram[i][j] += scaled * row[j]
    for i in range(4):
        for j in range(i):
            gram[j][i] = gram[i][j]
    return gram, right


def _non_negative(gram: list[list[float]], right: list[float]) -> list[float]:
    """The least squares solution with the most negative coefficient taken out (held at 0) until none is left."""
    active = [0, 1, 2, 3]
    while True:
        values = _solve([[gram[i][j] for j in active] for i in active], [right[i] for i in active])
        lowest = min(range(len(active)), key=values.__getitem__)
        if values[lowest] >= 0.0 or len(active) == 1:
            solution = [0.0] * 4
            for index, value in zip(active, values, strict=True):
                solution[index] = max(0.0, value)
            return solution
        del active[lowest]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination of a small symmetric positive definite system (the ridge makes it so)."""
    size = len(right)
    scale = [matrix[i][i] ** -0.5 for i in range(size)]  # coefficients differ by orders of magnitude
    rows = [[matrix[i][j] * scale[i] * scale[j] for j in range(size)] + [right[i] * scale[i]] for i in range(size)]
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    values = [0.0] * size
    for i in range(size - 1, -1, -1):
        known = sum([rows[i][j] * values[j] for j in range(i + 1, size)])
        values[i] = (rows[i][size] - known) / rows[i][i]
    return [value * scale[i] for i, value in enumerate(values)]


def _scale(bins: list[_Bin], prior: Cost) -> float:
    """By how much the machine is slower than the prior says: the median ratio."""
    ratios = sorted(one.seconds / prior.at(one.prefill, one.decoding, one.kv) for one in bins)
    return ratios[len(ratios) // 2]


def _half_octave(count: int) -> int:
    return int(2.0 * math.log2(count)) + 1 if count > 0 else 0


def _octave(count: int) -> int:
    return count.bit_length()


def pace_window(sla_s: float, margin: float, cost: Cost, prompt: float, output: float, typical: float) -> int:
    """W_sla = ⌊((1 − margin)·SLA/n* − α)/(γ + β·P/n̄)⌋, at least 1: so many sequences that one of n* = `typical` tokens
    still ends inside the SLA, each iteration prefilling for the sequences that take the place of those that end."""
    pace_s = (1.0 - margin) * sla_s / max(typical, 1.0)
    share = cost.sequence(prompt, output) + cost.beta * prompt / max(output, 1.0)
    return max(1, math.floor((pace_s - cost.alpha) / share))


SATURATED = 0.95


def saturation(cost: Cost, prompt: float, output: float, widest: int) -> int:
    """W_sat: the smallest window with 95 % of the throughput at the widest one, prefill included."""
    own = cost.sequence(prompt, output) + cost.beta * prompt / max(output, 1.0)
    target_s = (own + cost.alpha / widest) / SATURATED
    return min(widest, max(1, math.ceil(cost.alpha / (target_s - own) - 1e-9)))


def efficient_window(cost: Cost, prompt: float, output: float, widest: int, efficiency: float) -> int:
    """The smallest window at which work takes at most 1/efficiency of the time that it takes at W_sat."""
    own = cost.sequence(prompt, output) + cost.beta * prompt / max(output, 1.0)
    saturated = saturation(cost, prompt, output, widest)
    target_s = (own + cost.alpha / saturated) / efficiency
    return min(saturated, max(1, math.ceil(cost.alpha / (target_s - own) - 1e-9)))


def keeping_up(rate_per_s: float, cost: Cost, prompt: float, output: float) -> int | None:
    """W_stable = ⌈n̄·α / (1/(1.1·λ) − n̄·γ − β·P)⌉; None when no window keeps up."""
    if rate_per_s <= 0.0:
        return 1
    spare = 1.0 / (1.1 * rate_per_s) - output * cost.sequence(prompt, output) - cost.beta * prompt
    return max(1, math.ceil(output * cost.alpha / spare)) if spare > 0.0 else None
