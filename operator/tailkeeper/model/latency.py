"""How long a batch takes, learnt from the batches that ran: T(b) = c + a·b per shape bucket (request mode).

Plain least squares with forgetting loses the slope when batches are always full, so what is fitted are the means of
log-spaced bins of b, each over its last fifty or so batches: a size seen an hour ago still holds its end of the
line."""

import math

from tailkeeper.model.windows import Line

MEMORY = 50
"""Batches that a bin's mean remembers."""
FADE = 0.998
"""Factor of every other bin's weight per batch: after a change of speed the bins in use win within some hundred."""
LEAST_WEIGHT = 0.02
OUTLIER = 4.0
"""A batch over this multiple of what was expected does not teach: it was the machine's pause, not the model's time."""
DRIFT_STEP = 1.0 / 16.0
DRIFTED = 0.25
"""Off by this much on average over the last sixteen or so: another speed, which averages would follow too slowly."""
BELIEVED_AFTER = 8
"""So many outliers in a row are the new speed."""
RESIDUALS = 256
REFIT_EVERY = 8
UNSEEN_SPREAD = 0.1
"""Share added for the 99th percentile until enough residuals were seen."""
ENOUGH_RESIDUALS = 20


class _Bin:
    __slots__ = ("count", "seconds", "size", "weight")

    def __init__(self, size: float, seconds: float) -> None:
        self.count = 1
        self.size = size
        self.seconds = seconds
        self.weight = 1.0

    def add(self, size: float, seconds: float) -> None:
        self.count = min(self.count + 1, MEMORY)
        step = 1.0 / self.count
        self.size += (size - self.size) * step
        self.seconds += (seconds - self.seconds) * step
        self.weight = 1.0


class BatchLatency:
    """One line T(b) = c + a·b with its spread. `line` is None until a first batch (or a prior) is known."""

    __slots__ = ("_bins", "_drift", "_last_bin", "_outliers", "_prior", "_residuals", "_seen", "line", "spread")

    def __init__(self, prior: Line | None = None) -> None:
        self.line: Line | None = prior
        self.spread = UNSEEN_SPREAD
        """99th percentile of (T − T̂)/T̂, at least 0."""
        self._prior = prior
        self._bins: dict[int, _Bin] = {}
        self._residuals: list[float] = []
        self._seen = 0
        self._outliers = 0
        self._drift = 0.0
        self._last_bin = -1

    @property
    def seen(self) -> int:
        """Batches learnt from."""
        return self._seen

    def at(self, size: int) -> float:
        """Expected seconds of a batch; 0 while nothing is known."""
        line = self.line
        return line.c + line.a * size if line is not None else 0.0

    def high(self, size: int) -> float:
        """Tq: its 99th percentile; 0 while nothing is known."""
        line = self.line
        return (line.c + line.a * size) * (1.0 + self.spread) if line is not None else 0.0

    def largest(self, seconds: float) -> int:
        """The largest batch whose 99th percentile fits into that time; 0 when not even one does."""
        line = self.line
        if line is None:
            return 1 << 30
        return max(0, math.floor((seconds / (1.0 + self.spread) - line.c) / line.a + 1e-9))

    def learn(self, size: int, seconds: float) -> None:
        """Takes in one batch. Raises nothing: what cannot be true (not positive, not finite) is left out."""
        if size < 1 or not 0.0 < seconds < math.inf:
            return
        line = self.line
        if line is not None and self._seen:
            expected = line.c + line.a * size
            if seconds > OUTLIER * expected:
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
        index = int(4.0 * math.log2(size))
        bin_ = self._bins.get(index)
        if bin_ is None:
            self._bins[index] = _Bin(size, seconds)
        else:
            bin_.add(size, seconds)
        new = bin_ is None or self._seen < 4 * REFIT_EVERY
        if new or self._seen % REFIT_EVERY == 0:
            for other, faded in self._bins.items():
                if other != index:
                    faded.weight = max(LEAST_WEIGHT, faded.weight * FADE**REFIT_EVERY)
            self.line = self._fit()

    def _forget(self) -> None:
        self._drift = 0.0
        self._bins.clear()
        self._residuals.clear()
        self._outliers = 0
        self._seen = 0
        self.spread = UNSEEN_SPREAD
        self._prior = self.line  # its shape, a or c alone, is still the best guess while one size is known

    def _remember_residual(self, residual: float) -> None:
        residuals = self._residuals
        if len(residuals) < RESIDUALS:
            residuals.append(residual)
        else:
            residuals[self._seen % RESIDUALS] = residual
        known = len(residuals)
        if known >= ENOUGH_RESIDUALS and self._seen % REFIT_EVERY == 0:
            self.spread = max(0.0, sorted(residuals)[math.ceil(0.99 * known) - 1])

    def _fit(self) -> Line:
        bins = self._bins.values()
        if len(bins) == 1:
            (only,) = bins
            return _through(only.size, only.seconds, self._prior)
        weight = x = y = 0.0
        for one in bins:
            weight += one.weight
            x += one.weight * one.size
            y += one.weight * one.seconds
        x /= weight
        y /= weight
        xx = xy = x2 = 0.0
        for one in bins:
            xx += one.weight * (one.size - x) ** 2
            xy += one.weight * (one.size - x) * (one.seconds - y)
            x2 += one.weight * one.size**2
        least = 1e-3 * y / x  # a > 0, or a window's bound would divide by it
        slope = max(xy / xx if xx > 0.0 else 0.0, least)
        offset = y - slope * x
        if offset < 0.0:
            # on the edge c = 0 the best slope is the regression through the origin
            slope = sum(one.weight * one.size * one.seconds for one in bins) / x2
            offset = 0.0
        return Line(offset, slope)


def _through(size: float, seconds: float, prior: Line | None) -> Line:
    """The line through the one point known: the prior's shape, or half fixed and half per request."""
    if prior is None:
        return Line(seconds / 2.0, seconds / (2.0 * size))
    scale = seconds / prior.at(size)
    return Line(prior.c * scale, prior.a * scale)


class ShapedLatency:
    """`BatchLatency` per shape bucket (powers of two of the input's length), and over all for the window's bounds.

    A batch is as slow as its longest input, so its bucket is that of its longest. A bucket not seen yet answers with
    the line over all."""

    __slots__ = ("_buckets", "_prior", "overall")

    def __init__(self, prior: Line | None = None) -> None:
        self._prior = prior
        self.overall = BatchLatency(prior)
        self._buckets: dict[int, BatchLatency] = {}

    def of(self, bucket: int) -> BatchLatency:
        """The model for a batch whose longest input is in that bucket."""
        buckets = self._buckets
        if len(buckets) < 2:
            return self.overall
        known = buckets.get(bucket)
        return known if known is not None and known.seen >= ENOUGH_RESIDUALS else self.overall

    def learn(self, size: int, bucket: int, seconds: float) -> None:
        """Takes in one batch of that size and bucket."""
        self.overall.learn(size, seconds)
        model = self._buckets.get(bucket)
        if model is None:
            model = self._buckets[bucket] = BatchLatency(self._prior)
        model.learn(size, seconds)


def shape_bucket(tokens: int) -> int:
    """The bucket of an input's length: its power of two."""
    return tokens.bit_length()
