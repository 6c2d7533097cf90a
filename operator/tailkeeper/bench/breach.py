"""When a tier left its SLA, and when it was inside again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BUCKET_S: Final = 5.0
ALLOWED_LATE: Final = 0.01
CALM_BUCKETS: Final = 3


@dataclass(frozen=True)
class Breach:
    """One stretch outside the SLA; seconds from the start of the load, by intended send time."""

    first_late_s: float
    inside_s: float | None
    """None: not inside again before the load ended."""

    @property
    def lasted_s(self) -> float | None:
        """From the first late request to being inside again."""
        return None if self.inside_s is None else self.inside_s - self.first_late_s


def breaches(
    intended_s: Sequence[float],
    late: Sequence[bool],
    start_s: float = 0.0,
    bucket_s: float = BUCKET_S,
    allowed: float = ALLOWED_LATE,
    calm: int = CALM_BUCKETS,
) -> list[Breach]:
    """Find the stretches outside the SLA.

    A breach begins with the first late request of a bucket of intended send times in which more than `allowed` are
    late, and ends at the first of `calm` buckets in a row with at most that. Buckets without requests are passed over:
    silence proves nothing.

    Args:
        intended_s: intended send times, rising.
        late: whether that request was late.
        start_s: where the first bucket begins.
        bucket_s: length of a bucket.
        allowed: share of late requests that the SLA allows.
        calm: how many buckets make it inside again.
    """
    found: list[Breach] = []
    outside_since_s: float | None = None
    calm_since: list[float] = []
    for begin_s, first_late_s, ratio in _buckets(intended_s, late, start_s, bucket_s):
        if ratio > allowed:
            calm_since.clear()
            outside_since_s = first_late_s if outside_since_s is None else outside_since_s
        elif outside_since_s is not None:
            calm_since.append(begin_s)
            if len(calm_since) == calm:
                found.append(Breach(outside_since_s, calm_since[0]))
                outside_since_s = None
                calm_since.clear()
    if outside_since_s is not None:
        found.append(Breach(outside_since_s, None))
    return found


def _buckets(
    intended_s: Sequence[float], late: Sequence[bool], start_s: float, bucket_s: float
) -> list[tuple[float, float, float]]:
    """Per bucket that has requests: its begin, its first late request (or its begin), its share of late ones."""
    sent: dict[int, int] = {}
    lates: dict[int, list[float]] = {}
    for at_s, is_late in zip(intended_s, late, strict=True):
        number = int((at_s - start_s) // bucket_s)
        sent[number] = sent.get(number, 0) + 1
        if is_late:
            lates.setdefault(number, []).append(at_s)
    return [
        (start_s + n * bucket_s, lates.get(n, [start_s + n * bucket_s])[0], len(lates.get(n, ())) / count)
        for n, count in sorted(sent.items())
    ]
