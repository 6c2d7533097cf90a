"""Who waits, in which order.

A tier's order is the key `arrival + D`, which is ageing written as a constant. Within a tier a tenant whose backlog is
more than its fair share is ordered as if its requests had come at the pace of that share (its debt). Among its own
requests that changes nothing; another tenant's newcomer goes before the flood.

Nearly always requests come in the order in which they are to leave and to expire. So the queue is a plain line, and
only who comes out of turn (a deadline of its own, another tenant's debt) is kept in heaps beside it."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from gpu_worker.scheduling.entries import E, State
from gpu_worker.scheduling.plan import TierPlan

QUEUED, RUNNING = State.QUEUED, State.RUNNING


class Tenant:
    """One tenant's backlog in one tier."""

    __slots__ = ("due_s", "queued")

    def __init__(self, due_s: float) -> None:
        self.queued = 0
        self.due_s = due_s
        """When its backlog would be served at its fair share."""


class TierQueue(Generic[E]):
    """The waiting requests of one tier. Entries that left are dropped when they come to an end of the line."""

    __slots__ = (
        "_expiry",
        "_heap",
        "_last_hard_s",
        "_last_rank",
        "_late",
        "_line",
        "_others",
        "credit",
        "n",
        "plan",
        "tenants",
    )

    def __init__(self, plan: TierPlan) -> None:
        self.plan = plan
        self.n = 0
        self.tenants: dict[str, Tenant] = {}
        self.credit = 0.0
        """Places of the reserve not yet used; fractions add up over small batches."""
        self._line: deque[E] = deque()
        """In order of arrival, of rank and of expiry."""
        self._last_rank = self._last_hard_s = -math.inf
        self._heap: list[tuple[float, int, E]] = []
        """Out of turn, by rank."""
        self._expiry: list[tuple[float, int, E]] = []
        """Out of turn, by expiry."""
        self._others: deque[E] = deque()
        """Out of turn, by arrival."""
        self._late: deque[E] = deque()
        """Stepped aside, because they cannot meet their deadline."""

    def add(self, entry: E, service_s: float) -> None:
        """Takes a request in; `service_s` is the engine's time per request, by which the fair share is paced."""
        arrival_s = entry.arrival_s
        tenant = self.tenants.get(entry.tenant)
        rank = entry.key
        if tenant is None:
            tenant = self.tenants[entry.tenant] = Tenant(arrival_s)
        elif tenant.due_s > arrival_s:
            rank += tenant.due_s - arrival_s
        else:
            tenant.due_s = arrival_s
        tenant.due_s += service_s * len(self.tenants)
        tenant.queued += 1
        entry.rank = rank
        self.n += 1
        if rank >= self._last_rank and entry.hard_s >= self._last_hard_s:
            self._last_rank, self._last_hard_s = rank, entry.hard_s
            self._line.append(entry)
        else:
            heappush(self._heap, (rank, entry.seq, entry))
            heappush(self._expiry, (entry.hard_s, entry.seq, entry))
            self._others.append(entry)

    def put_back(self, entry: E) -> None:
        """A request waits again, or in another queue, with the rank that it had."""
        tenant = self.tenants.get(entry.tenant)
        if tenant is None:
            tenant = self.tenants[entry.tenant] = Tenant(entry.arrival_s)
        tenant.queued += 1
        self.n += 1
        heappush(self._heap, (entry.rank, entry.seq, entry))
        heappush(self._expiry, (entry.hard_s, entry.seq, entry))
        self._others.appendleft(entry)

    def left(self, entry: E) -> None:
        """The request is no longer queued here (its state says so already)."""
        self.n -= 1
        tenant = self.tenants[entry.tenant]
        tenant.queued -= 1
        if not tenant.queued:
            del self.tenants[entry.tenant]
        self._tidy()

    def _tidy(self) -> None:
        if not self.n:
            self._last_rank = self._last_hard_s = -math.inf
            for store in (self._line, self._heap, self._expiry, self._others, self._late):
                store.clear()
        elif len(self._line) + len(self._others) > 2 * self.n + 64:
            self._compact()

    def head(self, finish_s: float = -math.inf) -> E | None:
        """The first in order that meets its deadline when it ends at `finish_s`. The others step aside for good:
        serving them first would only make the next ones late too."""
        line, heap = self._line, self._heap
        while True:
            while line and line[0].state is not QUEUED:
                line.popleft()
            while heap and heap[0][2].state is not QUEUED:
                heappop(heap)
            if line and not (heap and heap[0][0] < line[0].rank):
                entry = line[0]
                if entry.deadline_s >= finish_s:
                    return entry
                self._step_aside(line.popleft())
            elif heap:
                entry = heap[0][2]
                if entry.deadline_s >= finish_s:
                    return entry
                heappop(heap)
                self._late.append(entry)
            else:
                return None

    def take(
        self, size: int, finish_s: float, until_key: float, fits: Callable[[E], bool] | None, batch: list[E]
    ) -> bool:
        """Moves the first in order into the batch, until it has `size` or their key passes `until_key`; False when it
        was one that does not fit. The caller counts them out of the backlog."""
        line, heap, before = self._line, self._heap, len(batch)
        fitted = True
        while len(batch) < size:
            if heap or not line or line[0].state is not QUEUED or line[0].deadline_s < finish_s:
                entry = self.head(finish_s)
                if entry is None:
                    break
            else:
                entry = line[0]
            if entry.key > until_key:
                break
            if fits is not None and not fits(entry):
                fitted = False
                break
            if line and line[0] is entry:
                line.popleft()
            else:
                heappop(heap)
            entry.state = RUNNING
            batch.append(entry)
        self._count_out(batch, before)
        return fitted

    def _count_out(self, batch: list[E], start: int) -> None:
        """Those of the batch from `start` on are no longer queued here."""
        taken = len(batch) - start
        tenants = self.tenants
        self.n -= taken
        if len(tenants) == 1:
            for tenant in tenants.values():
                tenant.queued -= taken
        else:
            for entry in batch[start:]:
                tenants[entry.tenant].queued -= 1
        if taken:
            for name in [name for name, tenant in tenants.items() if not tenant.queued]:
                del tenants[name]
            self._tidy()

    def late_head(self) -> E | None:
        """The first of those that stepped aside."""
        return _first(self._late)

    def oldest(self) -> E | None:
        """The one that came first."""
        ends = [entry for store in (self._line, self._others) if (entry := _first(store)) is not None]
        return min(ends, key=lambda entry: entry.arrival_s, default=None)

    def newest(self, tenant: str | None = None) -> E | None:
        """The one that came last, of that tenant if given."""
        ends = [entry for store in (self._line, self._others) if (entry := _last(store, tenant)) is not None]
        return max(ends, key=lambda entry: entry.seq, default=None)

    def expired(self, now_s: float) -> E | None:
        """One whose time is up; it is still queued."""
        first = _first(self._line)
        if first is not None and first.hard_s <= now_s:
            return first
        expiry = self._expiry
        while expiry and expiry[0][2].state is not QUEUED:
            heappop(expiry)
        return expiry[0][2] if expiry and expiry[0][0] <= now_s else None

    def next_expiry_s(self) -> float:
        """When the next one expires; infinite when nobody waits."""
        first = _first(self._line)
        soonest_s = math.inf if first is None else first.hard_s
        expiry = self._expiry
        while expiry and expiry[0][2].state is not QUEUED:
            heappop(expiry)
        return min(soonest_s, expiry[0][0]) if expiry else soonest_s

    def __iter__(self) -> Iterator[E]:
        for store in (self._line, self._others):
            for entry in store:
                if entry.state is QUEUED:
                    yield entry

    def _step_aside(self, entry: E) -> None:
        """From the line: it is still to expire, and to be counted."""
        self._late.append(entry)
        heappush(self._expiry, (entry.hard_s, entry.seq, entry))
        self._others.append(entry)

    def _compact(self) -> None:
        self._line = deque(entry for entry in self._line if entry.state is QUEUED)
        self._others = deque(entry for entry in self._others if entry.state is QUEUED)
        self._late = deque(entry for entry in self._late if entry.state is QUEUED)
        self._heap = [item for item in self._heap if item[2].state is QUEUED]
        self._expiry = [item for item in self._expiry if item[2].state is QUEUED]
        heapify(self._heap)
        heapify(self._expiry)


def _first(store: "deque[E]") -> E | None:
    while store and store[0].state is not QUEUED:
        store.popleft()
    return store[0] if store else None


def _last(store: deque[E], tenant: str | None) -> E | None:
    while store and store[-1].state is not QUEUED:
        store.pop()
    if tenant is None:
        return store[-1] if store else None
    return next((entry for entry in reversed(store) if entry.state is QUEUED and entry.tenant == tenant), None)
