"""Everybody who waits: the tier queues together, who expires when, and which of them make up the next batch."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from gpu_worker.scheduling.entries import E, State
from gpu_worker.scheduling.plan import Plan
from gpu_worker.scheduling.queues import TierQueue

QUEUED, RUNNING, GONE = State.QUEUED, State.RUNNING, State.GONE


class Backlog(Generic[E]):
    """The waiting requests of one instance."""

    __slots__ = (
        "_deadline_s",
        "_hold_end_s",
        "_stale",
        "n",
        "next_expiry_s",
        "priority",
        "queues",
        "weight",
    )

    def __init__(self, plan: Plan) -> None:
        self.queues: list[TierQueue[E]] = [TierQueue(tier) for tier in plan.tiers]
        self.priority = plan.priority
        self.n = 0
        self.weight = 0.0
        """Σ w of the waiting."""
        self.next_expiry_s = math.inf
        """Nobody expires before; when nobody does then, ask again."""
        self._deadline_s = self._hold_end_s = math.inf
        self._stale = False

    def __iter__(self) -> Iterator[E]:
        for queue in self.queues:
            yield from queue

    def add(self, entry: E, service_s: float) -> None:
        """Takes a request in."""
        tier = entry.tier
        self.queues[tier.index].add(entry, service_s)
        self.n += 1
        self.weight += tier.weight
        if entry.deadline_s < self._deadline_s:
            self._deadline_s = entry.deadline_s
        hold_end_s = entry.arrival_s + tier.max_hold_s
        if hold_end_s < self._hold_end_s:
            self._hold_end_s = hold_end_s
        if entry.hard_s < self.next_expiry_s:
            self.next_expiry_s = entry.hard_s

    def put_back(self, entry: E) -> None:
        """A request waits again, with the key that it had."""
        entry.state = QUEUED
        self.queues[entry.tier.index].put_back(entry)
        self.n += 1
        self.weight += entry.tier.weight
        self._stale = True
        if entry.hard_s < self.next_expiry_s:
            self.next_expiry_s = entry.hard_s

    def remove(self, entry: E, state: State) -> None:
        """A request leaves, for the engine or for good."""
        entry.state = state
        tier = entry.tier
        self.queues[tier.index].left(entry)
        self.n -= 1
        self._left(tier.weight)

    def latest_start_s(self, batch_s: float) -> float:
        """min over the waiting of min(arrival + maxHold, deadline − batch_s): when a batch of that length must start.

        Kept as the requests come; walked through again only after some have left."""
        return min(self.hold_end_s(), self._deadline_s - batch_s)

    def hold_end_s(self) -> float:
        """min over the waiting of arrival + maxHold."""
        if self._stale:
            self._deadline_s = min((entry.deadline_s for entry in self), default=math.inf)
            self._hold_end_s = min((entry.arrival_s + entry.tier.max_hold_s for entry in self), default=math.inf)
            self._stale = False
        return self._hold_end_s

    def expired(self, now_s: float) -> list[E]:
        """Takes out those whose time is up."""
        gone: list[E] = []
        if self.next_expiry_s > now_s:
            return gone
        for queue in self.queues:
            while queue.n and (entry := queue.expired(now_s)) is not None:
                self.remove(entry, GONE)
                gone.append(entry)
        self.next_expiry_s = min([queue.next_expiry_s() for queue in self.queues])
        return gone

    def head(self) -> E | None:
        """The first in order over all tiers, of those that have not stepped aside as late."""
        best: E | None = None
        for queue in self.queues:
            if queue.n:
                entry = queue.head()
                if entry is not None and (best is None or entry.key < best.key):
                    best = entry
        return best

    def newest_of_lowest(self) -> E | None:
        """The one to shed first: of the lowest tier that waits, the one that came last."""
        for queue in reversed(self.queues):
            if queue.n:
                return queue.newest()
        return None

    def take(self, size: int, finish_s: float, due_by_s: float, fits: Callable[[E], bool] | None = None) -> list[E]:
        """Takes the next batch out, at most `size`. `finish_s`: when it would end; `due_by_s`: who is due. The first
        that does not fit ends it: nobody overtakes by being small.

        Four rules. In general by key, over all tiers. A tier's reserve goes to its due requests first. While a higher
        tier waits, that reserve is all that due requests of lower tiers get: their keys are old, and without this a
        flood of them would fill every batch. Whoever is late anyhow comes after all of its tier who are not, and before
        lower tiers, which have the time."""
        batch: list[E] = []
        waiting = [queue for queue in self.queues if queue.n]
        if len(waiting) > 1 and self.priority:
            for queue in waiting[1:]:
                if queue.plan.reserve:
                    self._take_reserve(queue, size, finish_s, due_by_s, fits, batch)
        while waiting and len(batch) < size:
            chosen, until_key = self._next_queue(waiting, finish_s, due_by_s)
            if chosen is None:
                highest = waiting.pop(0)
                if self.priority and not self._take_late([highest], size, fits, batch):
                    return batch
                continue
            before = len(batch)
            fitted = chosen.take(size, finish_s, until_key, fits, batch)
            self._count_out(chosen, len(batch) - before)
            if not fitted:
                return batch
        self._take_late(self.queues, size, fits, batch)
        return batch

    def _take_late(
        self, queues: Sequence[TierQueue[E]], size: int, fits: Callable[[E], bool] | None, batch: list[E]
    ) -> bool:
        """Those that stepped aside, by key; False when it was one that does not fit."""
        while len(batch) < size and (entry := _late_head(queues)) is not None:
            if fits is not None and not fits(entry):
                return False
            self.remove(entry, RUNNING)
            batch.append(entry)
        return True

    def _next_queue(
        self, waiting: list[TierQueue[E]], finish_s: float, due_by_s: float
    ) -> tuple[TierQueue[E] | None, float]:
        """Whose turn it is, and until which key; None when the highest has only late ones left."""
        chosen, until_key = waiting[0], math.inf
        if len(waiting) == 1:
            return (chosen, until_key) if chosen.head(finish_s) is not None else (None, until_key)
        first = chosen.head(finish_s)
        if first is None:
            return None, until_key
        key = first.key
        for queue in waiting[1:]:
            other = queue.head(finish_s)
            if other is None or (self.priority and other.deadline_s <= due_by_s):
                continue
            if other.key < key:
                chosen, until_key, key = queue, key, other.key
            elif other.key < until_key:
                until_key = other.key
        return chosen, until_key

    def _count_out(self, queue: TierQueue[E], taken: int) -> None:
        self.n -= taken
        self._left(taken * queue.plan.weight)

    def _left(self, weight: float) -> None:
        if self.n:
            self.weight -= weight
            self._stale = True
        else:
            self.weight = 0.0
            self._deadline_s = self._hold_end_s = self.next_expiry_s = math.inf
            self._stale = False

    def _take_reserve(
        self,
        queue: TierQueue[E],
        size: int,
        finish_s: float,
        due_by_s: float,
        fits: Callable[[E], bool] | None,
        batch: list[E],
    ) -> None:
        # what a batch leaves of the reserve the next may use: arrivals cluster, and who is due has two batches' time
        share = queue.plan.reserve * size
        queue.credit = min(queue.credit + share, max(1.0, 2.0 * share))
        entry = queue.head(finish_s)
        while queue.credit >= 1.0 and len(batch) < size and entry is not None and entry.deadline_s <= due_by_s:
            if fits is not None and not fits(entry):
                return
            queue.credit -= 1.0
            entry.reserved = True
            self.remove(entry, RUNNING)
            batch.append(entry)
            entry = queue.head(finish_s)


def _late_head(queues: Sequence[TierQueue[E]]) -> E | None:
    """The first in order of those that stepped aside as late."""
    late = [entry for queue in queues if queue.n and (entry := queue.late_head()) is not None]
    return min(late, key=lambda entry: entry.key, default=None)
