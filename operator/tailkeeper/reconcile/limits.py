"""How often something may be done for one object: a burst, then one at a time. Pure; time is an argument."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass
class _Bucket:
    tokens: float
    at_s: float


@dataclass
class TokenBuckets(Generic[K]):
    """A budget for each key: `burst` at once, then one every `refill_s` seconds of the caller's clock."""

    burst: float
    refill_s: float
    _of: dict[K, _Bucket] = field(default_factory=dict)

    def take(self, key: K, now_s: float) -> bool:
        """Whether there is something left for this key; uses it up."""
        if not self.has(key, now_s):
            return False
        self._of[key].tokens -= 1.0
        return True

    def has(self, key: K, now_s: float) -> bool:
        """Whether there is something left for this key."""
        bucket = self._of.setdefault(key, _Bucket(self.burst, now_s))
        bucket.tokens = min(self.burst, bucket.tokens + (now_s - bucket.at_s) / self.refill_s)
        bucket.at_s = now_s
        return bucket.tokens >= 1.0

    def forget(self, key: K) -> None:
        """The key is gone."""
        self._of.pop(key, None)
