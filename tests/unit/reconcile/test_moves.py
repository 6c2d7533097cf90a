"""Proposals for a new generation: every one is answered."""

from tailkeeper.api.enums import MoveCause
from tailkeeper.reconcile.moves import Answer, Fate, Inbox, Proposal
from tailkeeper.reconcile.store import Key

CHAT = Key("team", "chat")
WRITTEN = Answer(Fate.WRITTEN, 5)


def proposal(based_on: int = 4) -> Proposal:
    return Proposal(based_on, settings=None, cause=MoveCause.RECOVERY)  # type: ignore[arg-type]


async def test_a_proposal_waits_and_is_told_its_fate() -> None:
    inbox, mine = Inbox(), proposal()
    fate = inbox.put(CHAT, "small", mine)
    assert inbox.peek(CHAT, "small") is mine
    assert inbox.peek(CHAT, "large") is None
    inbox.answer(CHAT, "small", mine, WRITTEN)
    assert await fate == WRITTEN
    assert inbox.peek(CHAT, "small") is None


async def test_a_newer_proposal_takes_the_place_and_the_older_one_hears_it() -> None:
    inbox, older, newer = Inbox(), proposal(), proposal()
    first, second = inbox.put(CHAT, "small", older), inbox.put(CHAT, "small", newer)
    assert (await first).fate is Fate.STALE
    inbox.answer(CHAT, "small", older, WRITTEN)
    assert not second.done(), "the answer was for the other one"
    inbox.answer(CHAT, "small", newer, WRITTEN)
    assert await second == WRITTEN


async def test_the_end_of_a_policy_answers_all_of_its_proposals() -> None:
    inbox = Inbox()
    fates = [inbox.put(CHAT, name, proposal()) for name in ("small", "large")]
    other = inbox.put(Key("team", "other"), "small", proposal())
    inbox.drop(CHAT, "gone")
    assert [(await fate).fate for fate in fates] == [Fate.FAILED, Fate.FAILED]
    assert not other.done()


async def test_a_caller_that_went_away_disturbs_nobody() -> None:
    inbox, mine = Inbox(), proposal()
    inbox.put(CHAT, "small", mine).cancel()
    inbox.answer(CHAT, "small", mine, WRITTEN)
    assert inbox.peek(CHAT, "small") is None
