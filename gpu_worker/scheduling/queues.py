"""Who waits, in which order.

A tier's order is the key `arrival + D`, which is ageing written as a constant: it never changes, so a heap holds it.
Within a tier a tenant whose backlog is more than its fair share is ordered as if its requests had come at the pace of
that share (its debt). Among its own requests that changes nothing; another tenant's newcomer goes before the flood."""

import math
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from gpu_worker.scheduling.entries import Entry, State
from gpu_worker.scheduling.plan import TierPlan

QUEUED = State.QUEUED


class Tenant:
    """One tenant's backlog in one tier."""

    __slots__ = ("due_s", "queued")

    def __init__(self) -> None:
        self.queued = 0
        self.due_s = 0.0
        """When its backlog would be served at its fair share."""


class TierQueue:
    """The waiting requests of one tier. Entries that left are dropped when they come to the top."""

    __slots__ = ("_heap", "_late", "_line", "credit", "n", "plan", "tenants")

    def __init__(self, plan: TierPlan) -> None:
        self.plan = plan
        self.n = 0
        self.tenants: dict[str, Tenant] = {}
        self.credit = 0.0
        """Places of the reserve not yet used; fractions add up over small batches."""
        self._heap: list[tuple[float, int, Entry]] = []
        self._late: deque[Entry] = deque()
        self._line: deque[Entry] = deque()

    def add(self, entry: Entry, service_s: float) -> None:
        """Takes a request in; `service_s` is the engine's time per request, by which the fair share is paced."""
        tenant = self.tenants.get(entry.tenant)
        rank = entry.key
        if tenant is None:
            tenant = self.tenants[entry.tenant] = Tenant()
            tenant.due_s = entry.arrival_s
        elif tenant.due_s > entry.arrival_s:
            rank += tenant.due_s - entry.arrival_s
        else:
            tenant.due_s = entry.arrival_s
        tenant.due_s += service_s * len(self.tenants)
        tenant.queued += 1
        entry.rank = rank
        self.n += 1
        heappush(self._heap, (rank, entry.seq, entry))
        self._line.append(entry)

    def put_back(self, entry: Entry) -> None:
        """A preempted request waits again, where it stood before."""
        tenant = self.tenants.get(entry.tenant)
        if tenant is None:
            tenant = self.tenants[entry.tenant] = Tenant()
        tenant.queued += 1
        self.n += 1
        heappush(self._heap, (entry.rank, entry.seq, entry))
        self._line.appendleft(entry)

    def left(self, entry: Entry) -> None:
        """The request is no longer queued here (its state says so already)."""
        self.n -= 1
        tenant = self.tenants[entry.tenant]
        tenant.queued -= 1
        if not tenant.queued:
            del self.tenants[entry.tenant]
        if not self.n:
            self._heap.clear()
            self._late.clear()
            self._line.clear()
        elif len(self._heap) > 2 * self.n + 64:
            self._compact()

    def head(self, finish_s: float = -math.inf) -> Entry | None:
        """The first in order that meets its deadline when it ends at `finish_s`. The others step aside for good:
        serving them first would only make the next ones late too."""
        heap = self._heap
        while heap:
            entry = heap[0][2]
            if entry.state is QUEUED:
                if entry.deadline_s >= finish_s:
                    return entry
                self._late.append(entry)
            heappop(heap)
        return None

    def late_head(self) -> Entry | None:
        """The first of those that stepped aside."""
        late = self._late
        while late:
            if late[0].state is QUEUED:
                return late[0]
            late.popleft()
        return None

    def oldest(self) -> Entry | None:
        """The one that came first."""
        line = self._line
        while line and line[0].state is not QUEUED:
            line.popleft()
        return line[0] if line else None

    def newest(self, tenant: str | None = None) -> Entry | None:
        """The one that came last, of that tenant if given."""
        line = self._line
        while line and line[-1].state is not QUEUED:
            line.pop()
        for entry in reversed(line):
            if entry.state is QUEUED and (tenant is None or entry.tenant == tenant):
                return entry
        return None

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry in self._line if entry.state is QUEUED)

    def _compact(self) -> None:
        self._heap = [item for item in self._heap if item[2].state is QUEUED]
        heapify(self._heap)
        self._line = deque(entry for entry in self._line if entry.state is QUEUED)
