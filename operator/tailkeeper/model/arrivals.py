"""What is known about the arrivals: two rates, the distribution of the gaps, and how bursty they are.

The gaps are a histogram with log-spaced buckets that forgets by count and by time. From it comes what the hold rule
asks: after a silence of s, how long until the next one? E[residual | s] = ∫ S(s+u)/S(s) du."""

import math
from bisect import bisect_left
from itertools import accumulate

FAST_TAU_S = 0.5
SLOW_TAU_S = 5.0
PER_OCTAVE = 4
"""Buckets per doubling of the gap, evenly spaced inside it: an upper edge is at most a quarter over the lower."""
SHORTEST = -16
"""Gaps under 2^-17 s (8 µs) are one bucket."""
MEMORY = 1_000
"""Gaps that the histogram remembers."""
TIME_TAU_S = 120.0
"""And how long."""
REBUILD_EVERY = 32
MANY = 24
MOST_WAITING = 64
"""Arrivals that are only noted before they are learnt from."""
RESCALE_AT = 1e100
COUNT_MEMORY = 200
"""Horizons that the index of dispersion remembers."""


class Rate:
    """Events per second, the newest counting most: an exponential of time constant `tau_s`."""

    __slots__ = ("_first_s", "_last_s", "_rate", "_tau_s")

    def __init__(self, tau_s: float) -> None:
        self._tau_s = tau_s
        self._rate = 0.0
        self._first_s = self._last_s = -math.inf

    def arrive(self, now_s: float) -> None:
        """Takes in one event. The time never goes back."""
        if self._first_s == -math.inf:
            self._first_s = self._last_s = now_s
        self._rate = self._rate * math.exp((self._last_s - now_s) / self._tau_s) + 1.0 / self._tau_s
        self._last_s = now_s

    def per_s(self, now_s: float) -> float:
        """The rate now; 0 before the first."""
        if self._first_s == -math.inf:
            return 0.0
        # a sum that started t ago reached only 1 − e^(−t/τ) of its height
        started = 1.0 - math.exp(-max(now_s - self._first_s, self._tau_s / 50.0) / self._tau_s)
        return self._rate * math.exp(min(0.0, self._last_s - now_s) / self._tau_s) / started


class ArrivalModel:
    """Learns from one call of `arrive` per request. `clip_s` bounds a gap (4·SLA): one silence of minutes must not
    forbid holding for the next ones. `horizon_s` is the span over which counts are compared for the dispersion.

    Arrivals are noted at once and learnt from when somebody asks: while the engine is busy nobody does."""

    __slots__ = (
        "_counts",
        "_edges",
        "_fast",
        "_first_s",
        "_gap_total",
        "_horizon_count",
        "_horizon_end_s",
        "_horizon_s",
        "_horizons",
        "_increment",
        "_last_s",
        "_mean_count",
        "_moment2",
        "_noted",
        "_rebuilt_at",
        "_residual",
        "_rising",
        "_seen",
        "_slow",
        "_sums",
        "_total",
        "_var_count",
        "clip_s",
    )

    def __init__(self, clip_s: float, horizon_s: float) -> None:
        self.clip_s = clip_s
        buckets = _index(clip_s) + 1
        self._edges = [_edge(index) for index in range(buckets)]
        self._counts = [0.0] * buckets
        self._sums = [0.0] * buckets
        self._residual = [0.0] * buckets
        self._rising = [0.0] * buckets
        self._increment = 1.0
        self._total = self._gap_total = self._moment2 = 0.0
        self._seen = self._rebuilt_at = 0
        self._noted: list[float] = []
        self._first_s = self._last_s = -math.inf
        self._fast = self._slow = 0.0
        self._horizon_s = horizon_s
        self._horizon_end_s = -math.inf
        self._horizon_count = self._horizons = 0
        self._mean_count = self._var_count = 0.0

    @property
    def seen(self) -> int:
        """Requests learnt from."""
        return self._seen + len(self._noted)

    @property
    def last_s(self) -> float:
        """When the newest one arrived; -inf before the first."""
        return self._noted[-1] if self._noted else self._last_s

    def arrive(self, now_s: float) -> None:
        """Takes in one arrival. The time never goes back."""
        noted = self._noted
        noted.append(now_s)
        if len(noted) >= MOST_WAITING:
            self._learn()

    def rate_per_s(self, now_s: float) -> float:
        """λ over the last seconds (τ 5 s)."""
        if self._noted:
            self._learn()
        since = now_s - self._last_s
        if since == math.inf:
            return 0.0
        # a sum that started t ago reached only 1 − e^(−t/τ) of its height
        started = 1.0 - math.exp(-max(now_s - self._first_s, 0.1) / SLOW_TAU_S)
        return self._slow * math.exp(-max(since, 0.0) / SLOW_TAU_S) / started

    def fast_rate_per_s(self, now_s: float) -> float:
        """λ_f, τ .5 s: falls at once when the line goes quiet."""
        if self._noted:
            self._learn()
        since = now_s - self._last_s
        return 0.0 if since == math.inf else self._fast * math.exp(-max(since, 0.0) / FAST_TAU_S)

    def rate_over_s(self, horizon_s: float, now_s: float) -> float:
        """Of the two rates the one that remembers about that long."""
        return self.fast_rate_per_s(now_s) if horizon_s <= 2.0 * FAST_TAU_S else self.rate_per_s(now_s)

    def quiet_at_s(self, rate_per_s: float) -> float:
        """When λ_f will have fallen to that rate, if nobody arrives; in the past when it already has."""
        if self._noted:
            self._learn()
        if self._fast <= 0.0:
            return -math.inf
        return math.inf if rate_per_s <= 0.0 else self._last_s + FAST_TAU_S * math.log(self._fast / rate_per_s)

    def residual_s(self, silence_s: float) -> float:
        """E[time to the next arrival | a silence so far]; infinite past the last bucket or before two arrivals."""
        self._look()
        if self._total <= 0.0 or silence_s >= self.clip_s:
            return math.inf
        return self._residual[_index(silence_s)]

    def silence_until_s(self, residual_s: float, silence_s: float) -> float:
        """The first silence, from this one on, after which the expected residual is at least that long.

        Bucket edges only; the clip when the residual never gets there."""
        self._look()
        if self._total <= 0.0:
            return silence_s
        edges = self._edges
        if silence_s <= 0.0:
            first = bisect_left(self._rising, residual_s)
            return edges[first] if first < len(edges) else self.clip_s
        start = _index(silence_s)
        residual = self._residual
        if silence_s >= self.clip_s or residual[start] >= residual_s:
            return silence_s
        for index in range(start + 1, len(edges)):
            if residual[index] >= residual_s:
                return edges[index]
        return self.clip_s

    @property
    def mean_gap_s(self) -> float:
        """Mean of the clipped gaps; infinite before two arrivals."""
        if self._noted:
            self._learn()
        return self._gap_total / self._total if self._total > 0.0 else math.inf

    @property
    def cv(self) -> float:
        """Coefficient of variation of the clipped gaps; 0 before two arrivals."""
        if self._noted:
            self._learn()
        if self._total <= 0.0 or self._gap_total <= 0.0:
            return 0.0
        mean = self._gap_total / self._total
        return math.sqrt(max(0.0, self._moment2 / self._total - mean * mean)) / mean

    @property
    def dispersion(self) -> float:
        """Index of dispersion: variance ÷ mean of the counts per horizon; 1 (Poisson) while not yet known."""
        if self._noted:
            self._learn()
        return self._var_count / self._mean_count if self._horizons >= 20 and self._mean_count > 0.0 else 1.0

    def gaps(self) -> list[tuple[float, float]]:
        """(upper edge in seconds, share) of the buckets with anything in them."""
        if self._noted:
            self._learn()
        if self._total <= 0.0:
            return []
        uppers = [*self._edges[1:], self.clip_s]
        return [(upper, count / self._total) for upper, count in zip(uppers, self._counts, strict=True) if count > 0.0]

    def _learn(self) -> None:
        """Learns from what was noted. The rates decay once for all of a span under a fiftieth of their memory."""
        noted, self._noted = self._noted, []
        last_s = self._last_s
        if last_s == -math.inf:
            last_s = self._first_s = noted[0]
            self._fast, self._slow = 1.0 / FAST_TAU_S, 1.0 / SLOW_TAU_S
            self._horizon_end_s = last_s + self._horizon_s
            self._horizon_count = self._seen = 1
            del noted[0]
        # when many came at once every fourth gap stands for four: the engine is busy, nobody waits for the rest
        every = 4 if len(noted) > MANY else 1
        counts, sums, clip_s, most = self._counts, self._sums, self.clip_s, len(self._counts) - 1
        increment = self._increment
        total = gap_total = moment2 = 0.0
        decayed_s, fresh, skip = last_s, 0, 0
        for at_s in noted:
            gap = at_s - last_s
            if gap > 0.0:
                last_s = at_s
            fresh += 1
            if at_s - decayed_s > FAST_TAU_S / 50.0:
                increment *= self._decay(at_s - decayed_s, fresh)
                decayed_s, fresh = at_s, 0
            if at_s < self._horizon_end_s:
                self._horizon_count += 1
            else:
                self._next_horizon(at_s)
            if (skip := skip + 1) % every:
                continue
            gap = min(gap, clip_s)
            mantissa, exponent = math.frexp(gap)
            # `_index`, written out: this is the one line that every arrival pays for
            index = (exponent - SHORTEST) * PER_OCTAVE + int(8.0 * mantissa) - 3 if exponent >= SHORTEST else 0
            index = min(index, most) if gap > 0.0 else 0
            weight = increment * every
            weighted = weight * gap
            counts[index] += weight
            sums[index] += weighted
            total += weight
            gap_total += weighted
            moment2 += weighted * gap
        if fresh:
            increment *= self._decay(last_s - decayed_s, fresh)
        self._last_s, self._increment = last_s, increment
        self._total += total
        self._gap_total += gap_total
        self._moment2 += moment2
        self._seen += len(noted)

    def _decay(self, span_s: float, fresh: int) -> float:
        """Moves the rates on by a span with so many arrivals; returns by what newer gaps weigh more than older ones."""
        self._fast = self._fast * math.exp(-span_s / FAST_TAU_S) + fresh / FAST_TAU_S
        self._slow = self._slow * math.exp(-span_s / SLOW_TAU_S) + fresh / SLOW_TAU_S
        return (1.0 + fresh / MEMORY) * math.exp(min(span_s, 600.0) / TIME_TAU_S)

    def _next_horizon(self, now_s: float) -> None:
        self._close_horizon(self._horizon_count)
        empty = int((now_s - self._horizon_end_s) / self._horizon_s)
        for _ in range(min(empty, COUNT_MEMORY)):
            self._close_horizon(0)
        self._horizon_end_s += self._horizon_s * (empty + 1)
        self._horizon_count = 1

    def _close_horizon(self, count: int) -> None:
        self._horizons = min(self._horizons + 1, COUNT_MEMORY)
        step = 1.0 / self._horizons
        delta = count - self._mean_count
        self._mean_count += step * delta
        self._var_count = (1.0 - step) * (self._var_count + step * delta * delta)

    def _look(self) -> None:
        """Brings the table of residuals up to date, when enough has come since."""
        if self._noted:
            self._learn()
        if self._seen - self._rebuilt_at >= REBUILD_EVERY or self._rebuilt_at < self._seen < REBUILD_EVERY:
            self._rebuild()

    def _rebuild(self) -> None:
        """Mean residual at every bucket's lower edge, and its running maximum (what a silence from 0 first reaches)."""
        self._rebuilt_at = self._seen
        if self._increment > RESCALE_AT:
            self._rescale()
        beyond = beyond_sum = 0.0
        counts, sums, edges, residual = self._counts, self._sums, self._edges, self._residual
        for index in range(len(counts) - 1, -1, -1):
            beyond += counts[index]
            beyond_sum += sums[index]
            # past the longest gap seen nothing speaks for another arrival
            residual[index] = beyond_sum / beyond - edges[index] if beyond > 0.0 else math.inf
        self._rising = list(accumulate(residual, max))

    def _rescale(self) -> None:
        factor = 1.0 / self._increment
        self._counts = [count * factor for count in self._counts]
        self._sums = [total * factor for total in self._sums]
        self._total *= factor
        self._gap_total *= factor
        self._moment2 *= factor
        self._increment = 1.0


def _index(gap_s: float) -> int:
    """The bucket of a gap: 0 up to 2^-17 s, then four to a doubling."""
    mantissa, exponent = math.frexp(gap_s)
    if gap_s <= 0.0 or exponent < SHORTEST:
        return 0
    return (exponent - SHORTEST) * PER_OCTAVE + int(2.0 * PER_OCTAVE * mantissa) - PER_OCTAVE + 1


def _edge(index: int) -> float:
    """The lower edge of a bucket, seconds."""
    if index == 0:
        return 0.0
    octave, quarter = divmod(index - 1, PER_OCTAVE)
    return math.ldexp((PER_OCTAVE + quarter) / (2.0 * PER_OCTAVE), octave + SHORTEST)
