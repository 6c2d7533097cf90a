"""Which key is reconciled next. Pure: time is an argument, so that tests run hours in milliseconds.

A key waits at most once, however often it is added (coalescing), and never runs twice at the same time: what is added
while it runs makes it run once more. A key that failed comes back after an exponential delay with jitter; news about
it may bring it forward, but not under `FLOOR_S` after the failure, or a broken object that changes all the time would
be retried all the time."""

import heapq
import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FLOOR_S = 1.0
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 120.0


@dataclass
class KeyQueue(Generic[K]):
    """Keys with the time at which each is due, in seconds of the caller's clock."""

    rng: random.Random = field(default_factory=random.Random)
    _due: dict[K, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, K]] = field(default_factory=list)
    _sequence: int = 0
    _running: set[K] = field(default_factory=set)
    _again: dict[K, float] = field(default_factory=dict)
    _failures: dict[K, int] = field(default_factory=dict)
    _not_before: dict[K, float] = field(default_factory=dict)

    def add(self, key: K, now_s: float, delay_s: float = 0.0) -> None:
        """Asks for the key to run; of several wishes the earliest counts."""
        due = max(now_s + delay_s, self._not_before.get(key, now_s))
        if key in self._running:
            self._again[key] = min(due, self._again.get(key, due))
        elif key not in self._due or due < self._due[key]:
            self._due[key] = due
            self._sequence += 1
            heapq.heappush(self._heap, (due, self._sequence, key))

    def take(self, now_s: float) -> K | None:
        """The key that has been due for longest, now running until `finish`; None when none is due."""
        while self._heap and self._heap[0][0] <= now_s:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._running.add(key)
                return key
        return None

    def finish(self, key: K, now_s: float, failed: bool) -> None:
        """The key ran."""
        self._running.remove(key)
        again = self._again.pop(key, None)
        if failed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 30))
            retry_s = longest * self.rng.uniform(0.5, 1.0)
            self._not_before[key] = now_s + min(FLOOR_S, retry_s)
            self.add(key, now_s, retry_s)
        else:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
        if again is not None:
            self.add(key, now_s, max(0.0, again - now_s))

    def next_due_s(self) -> float | None:
        """When `take` will have something, as far as is known now."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def waiting(self, now_s: float) -> int:
        """How many keys are due."""
        return sum(due <= now_s for due in self._due.values())

    @property
    def failing(self) -> int:
        """How many keys failed when they last ran."""
        return len(self._failures)
