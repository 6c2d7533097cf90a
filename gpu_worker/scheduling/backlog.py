"""Everybody who waits: the tier queues together, who expires when, and which of them make up the next batch."""

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from gpu_worker.scheduling.entries import Entry, State
from gpu_worker.scheduling.plan import Plan
from gpu_worker.scheduling.queues import TierQueue

QUEUED, RUNNING, GONE = State.QUEUED, State.RUNNING, State.GONE


class Backlog:
    """The waiting requests of one instance."""

    __slots__ = (
        "_deadline_s",
        "_expiry",
        "_hold_end_s",
        "_stale",
        "n",
        "priority",
        "queues",
        "weight",
    )

    def __init__(self, plan: Plan) -> None:
        self.queues = [TierQueue(tier) for tier in plan.tiers]
        self.priority = plan.priority
        self.n = 0
        self.weight = 0.0
        """Σ w of the waiting."""
        self._expiry: list[tuple[float, int, Entry]] = []
        self._deadline_s = self._hold_end_s = math.inf
        self._stale = False

    def __iter__(self) -> Iterator[Entry]:
        for queue in self.queues:
            yield from queue

    def add(self, entry: Entry, service_s: float) -> None:
        """Takes a request in."""
        tier = entry.tier
        self.queues[tier.index].add(entry, service_s)
        self.n += 1
        self.weight += tier.weight
        heappush(self._expiry, (entry.hard_s, entry.seq, entry))
        if entry.deadline_s < self._deadline_s:
            self._deadline_s = entry.deadline_s
        hold_end_s = entry.arrival_s + tier.max_hold_s
        if hold_end_s < self._hold_end_s:
            self._hold_end_s = hold_end_s

    def put_back(self, entry: Entry) -> None:
        """A preempted request waits again, with the key it had."""
        entry.state = QUEUED
        self.queues[entry.tier.index].put_back(entry)
        self.n += 1
        self.weight += entry.tier.weight
        self._stale = True
        heappush(self._expiry, (entry.hard_s, entry.seq, entry))

    def remove(self, entry: Entry, state: State) -> None:
        """A request leaves, for the engine or for good."""
        entry.state = state
        tier = entry.tier
        self.queues[tier.index].left(entry)
        self.n -= 1
        if self.n:
            self.weight -= tier.weight
            self._stale = True
        else:
            self.weight = 0.0
            self._deadline_s = self._hold_end_s = math.inf
            self._stale = False

    def latest_start_s(self, batch_s: float) -> float:
        """min over the waiting of min(arrival + maxHold, deadline − batch_s): when a batch of that length must start.

        Kept as the requests come; walked through again only after some have left."""
        if self._stale:
            self._deadline_s = min((entry.deadline_s for entry in self), default=math.inf)
            self._hold_end_s = min((entry.arrival_s + entry.tier.max_hold_s for entry in self), default=math.inf)
            self._stale = False
        return min(self._hold_end_s, self._deadline_s - batch_s)

    def expired(self, now_s: float) -> Iterator[Entry]:
        """Takes out, one by one, those whose time is up."""
        expiry = self._expiry
        while expiry and (expiry[0][0] <= now_s or expiry[0][2].state is not QUEUED):
            entry = heappop(expiry)[2]
            if entry.state is QUEUED:
                self.remove(entry, GONE)
                yield entry
        if len(expiry) > 2 * self.n + 64:
            self._expiry = [item for item in expiry if item[2].state is QUEUED]
            heapify(self._expiry)

    def next_expiry_s(self) -> float:
        """When the next one expires; infinite when nobody waits."""
        expiry = self._expiry
        while expiry and expiry[0][2].state is not QUEUED:
            heappop(expiry)
        return expiry[0][0] if expiry else math.inf

    def head(self) -> Entry | None:
        """The first in order over all tiers, of those that have not stepped aside as late."""
        best: Entry | None = None
        for queue in self.queues:
            if queue.n:
                entry = queue.head()
                if entry is not None and (best is None or entry.key < best.key):
                    best = entry
        return best

    def newest_of_lowest(self) -> Entry | None:
        """The one to shed first: of the lowest tier that waits, the one that came last."""
        for queue in reversed(self.queues):
            if queue.n:
                return queue.newest()
        return None

    def take(
        self, size: int, finish_s: float, due_by_s: float, fits: Callable[[Entry], bool] | None = None
    ) -> list[Entry]:
        """Takes the next batch out, at most `size`. `finish_s`: when it would end; `due_by_s`: who is due. The first
        that does not fit ends it: nobody overtakes by being small.

        Four rules. In general by key, over all tiers. A tier's reserve goes to its due requests first. While a higher
        tier waits, that reserve is all that due requests of lower tiers get: their keys are old, and without this a
        flood of them would fill every batch. Whoever is late anyhow comes after all who are not."""
        batch: list[Entry] = []
        waiting = [queue for queue in self.queues if queue.n]
        if len(waiting) > 1 and self.priority:
            for queue in waiting[1:]:
                if queue.plan.reserve:
                    self._take_reserve(queue, size, finish_s, due_by_s, fits, batch)
        while waiting and len(batch) < size:
            entry = waiting[0].head(finish_s)
            if entry is None:
                del waiting[0]
                continue
            for queue in waiting[1:]:
                other = queue.head(finish_s)
                if other is None or other.key >= entry.key or (self.priority and other.deadline_s <= due_by_s):
                    continue
                entry = other
            if fits is not None and not fits(entry):
                return batch
            self.remove(entry, RUNNING)
            batch.append(entry)
        while len(batch) < size and (entry := self.late_head()) is not None:
            if fits is not None and not fits(entry):
                return batch
            self.remove(entry, RUNNING)
            batch.append(entry)
        return batch

    def late_head(self) -> Entry | None:
        """The first in order of those that stepped aside as late."""
        late = [entry for queue in self.queues if queue.n and (entry := queue.late_head()) is not None]
        return min(late, key=lambda entry: entry.key, default=None)

    def _take_reserve(
        self,
        queue: TierQueue,
        size: int,
        finish_s: float,
        due_by_s: float,
        fits: Callable[[Entry], bool] | None,
        batch: list[Entry],
    ) -> None:
        entry = queue.head(finish_s)
        if entry is None or entry.deadline_s > due_by_s:
            queue.credit = min(queue.credit, 1.0)
            return
        queue.credit = min(queue.credit + queue.plan.reserve * size, max(1.0, queue.plan.reserve * size))
        while queue.credit >= 1.0 and len(batch) < size and entry is not None and entry.deadline_s <= due_by_s:
            if fits is not None and not fits(entry):
                return
            queue.credit -= 1.0
            entry.reserved = True
            self.remove(entry, RUNNING)
            batch.append(entry)
            entry = queue.head(finish_s)
