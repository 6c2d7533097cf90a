"""How many tokens requests bring and produce, learnt from those that ended.

Log-bucket histogram of the outputs that forgets by count. What scheduling asks: having produced g tokens, how many more
may come (a quantile)? A stream that has gone on for long is likely to go on."""

import math

PER_OCTAVE = 4
MEMORY = 1_000
REBUILD_EVERY = 32
RESCALE_AT = 1e100


class OutputLengths:
    """Learns from one call of `learn` per ended request."""

    __slots__ = ("_counts", "_increment", "_longest", "_total", "_total_output", "_total_prompt", "_typical", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self._increment = 1.0
        self._total = self._total_output = self._total_prompt = 0.0
        self._counts: list[float] = []
        self._typical: dict[float, list[float]] = {}
        self._longest = 0.0

    @property
    def mean_output(self) -> float:
        """n̄ in tokens; 1 before anything ended."""
        return self._total_output / self._total if self._total else 1.0

    @property
    def mean_prompt(self) -> float:
        """P in tokens; 1 before anything ended."""
        return self._total_prompt / self._total if self._total else 1.0

    @property
    def longest(self) -> float:
        """The 99th percentile of the outputs, tokens: n*, because an SLA is a p99."""
        if not self._longest:
            self._longest = self.remaining(0, 0.99)
        return self._longest

    def learn(self, prompt: int, output: int) -> None:
        """Takes in one request that ended of itself."""
        self.seen += 1
        index = _bucket(output)
        while index >= len(self._counts):
            self._counts.append(0.0)
        increment = self._increment = self._increment * (1.0 + 1.0 / MEMORY)
        self._counts[index] += increment
        self._total += increment
        self._total_output += increment * output
        self._total_prompt += increment * prompt
        if self.seen < REBUILD_EVERY or self.seen % REBUILD_EVERY == 0:
            self._typical.clear()
            self._longest = 0.0
            if increment > RESCALE_AT:
                self._rescale()

    def remaining(self, produced: int, quantile: float) -> float:
        """So many more tokens that this share of requests which got this far need no more; 1 when nothing is known."""
        if not self._total:
            return 1.0
        table = self._typical.get(quantile)
        if table is None:
            table = self._typical[quantile] = self._quantiles(quantile)
        index = _bucket(produced) if produced > 0 else 0
        # past all that was seen: as long again as the last bucket is wide
        total = table[index] if index < len(table) else produced * 2.0 ** (1.0 / PER_OCTAVE)
        return max(1.0, total - produced)

    def _quantiles(self, quantile: float) -> list[float]:
        """For every bucket: the quantile of the whole length, given that it reaches that bucket."""
        counts = self._counts
        table = [0.0] * len(counts)
        beyond = 0.0
        for index in range(len(counts) - 1, -1, -1):
            beyond += counts[index]
            left = (1.0 - quantile) * beyond
            at, above = len(counts) - 1, 0.0
            while at > index and above + counts[at] <= left:
                above += counts[at]
                at -= 1
            share = 1.0 - (left - above) / counts[at] if counts[at] > 0.0 else 1.0
            low, high = _edge(at), _edge(at + 1)
            table[index] = low + (high - low) * min(max(share, 0.0), 1.0)
        return table

    def _rescale(self) -> None:
        factor = 1.0 / self._increment
        self._counts = [count * factor for count in self._counts]
        self._total *= factor
        self._total_output *= factor
        self._total_prompt *= factor
        self._increment = 1.0


def _bucket(tokens: int) -> int:
    return int(PER_OCTAVE * math.log2(tokens)) if tokens > 0 else 0


def _edge(index: int) -> float:
    return float(2.0 ** (index / PER_OCTAVE))
