"""How a new generation of settings gets written by whoever decides on it: the tuner, a rollback, the command line.

A proposal names the generation that it was decided on. It becomes generation n+1 only while that one still is the
newest; a proposal that comes too late is told so and changes nothing. The reconcile of the policy writes it, so that
one writer at a time touches an instance's settings in this process, and the ConfigMap's resource version fences off
every other process."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.settings import Settings
from tailkeeper.reconcile.store import Key


@dataclass(frozen=True)
class Proposal:
    """Settings to write next, and why."""

    based_on: int
    """The generation that it was decided on."""
    settings: Settings
    cause: MoveCause
    numbers: str = ""
    """The numbers that caused it, as one line of key=value."""


class Fate(StrEnum):
    """What became of a proposal."""

    WRITTEN = "Written"
    STALE = "Stale"
    """The settings had changed since, or the spec does not allow them any more."""
    UNCHANGED = "Unchanged"
    """It says what is applied already."""
    FAILED = "Failed"
    """The API server did not take it; nothing changed as far as is known."""


@dataclass(frozen=True)
class Answer:
    """What became of a proposal, and the newest generation now."""

    fate: Fate
    generation: int
    message: str = ""


@dataclass
class Inbox:
    """Proposals that wait for their policy's next reconcile; the newest per instance counts."""

    _waiting: dict[tuple[Key, str], tuple[Proposal, asyncio.Future[Answer]]] = field(default_factory=dict)

    def put(self, key: Key, instance: str, proposal: Proposal) -> asyncio.Future[Answer]:
        """Leaves a proposal; the future tells its fate. An older one that still waited is stale."""
        self._answer(key, instance, Answer(Fate.STALE, proposal.based_on, "replaced by a newer proposal"))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key, instance] = (proposal, future)
        return future

    def peek(self, key: Key, instance: str) -> Proposal | None:
        """The proposal that waits for this instance."""
        waiting = self._waiting.get((key, instance))
        return waiting[0] if waiting else None

    def answer(self, key: Key, instance: str, proposal: Proposal, answer: Answer) -> None:
        """Tells the fate of this proposal, unless a newer one took its place meanwhile."""
        if self.peek(key, instance) is proposal:
            self._answer(key, instance, answer)

    def drop(self, key: Key, message: str) -> None:
        """Nothing of this policy will be written."""
        for owner, instance in [at for at in self._waiting if at[0] == key]:
            self._answer(owner, instance, Answer(Fate.FAILED, 0, message))

    def _answer(self, key: Key, instance: str, answer: Answer) -> None:
        waiting = self._waiting.pop((key, instance), None)
        if waiting and not waiting[1].done():
            waiting[1].set_result(answer)
