"""When a move by hand is done, refused, or still on its way."""

from typing import Any

import pytest

from tailkeeper.api.levers import parse_moves
from tailkeeper.cli.move import annotation_text, wanted_fields
from tailkeeper.cli.waiting import Reached, Refused, Waiting, levers_written, progress_of_move, progress_of_pause

WANTED = wanted_fields(parse_moves("ceiling=8 maxHold.a=5ms"))


def seen(written: int, applied: int, ceiling: int = 8, ready: int = 2, accepted: dict[str, Any] | None = None) -> Any:
    effective = {"ceiling": ceiling, "tiers": [{"name": "a", "maxHoldMs": 5}]}
    instance = {
        "name": "small",
        "settingsGeneration": written,
        "appliedGeneration": applied,
        "readyReplicas": ready,
        "effective": effective,
    }
    conditions = [{"type": "Accepted", "status": "True", "reason": "Valid", **(accepted or {})}]
    return {"status": {"instances": [instance], "conditions": conditions}}


BEFORE = seen(3, 3, ceiling=64)
REFUSED = {"reason": "ManualValueRefused", "message": "ceiling=8 is out of bounds"}


@pytest.mark.parametrize(
    ("now", "kind", "says"),
    [
        (BEFORE, Waiting, "has not written it"),
        (seen(4, 3), Waiting, "generation 4 is written, the workers apply 3"),
        (seen(4, 4), Reached, "generation 4 is applied by 2 workers"),
        (seen(4, 5), Reached, "generation 4 is applied by 2 workers"),
        (seen(4, 0, ready=0), Reached, "no worker is ready"),
        (seen(4, 4, ceiling=32), Waiting, "has not written it"),
        (seen(3, 3, ceiling=64, accepted=REFUSED), Refused, "ceiling=8 is out of bounds"),
        (seen(3, 3, ceiling=64, accepted={"status": "False", "message": "no"}), Refused, "not accepted"),
        ({}, Waiting, "has not written it"),
    ],
)
def test_progress_of_a_move(now: Any, kind: type, says: str) -> None:
    progress = progress_of_move(BEFORE, now, "small", WANTED)
    assert isinstance(progress, kind)
    assert says in progress.message


def test_a_refusal_that_was_there_before_is_not_ours() -> None:
    before = seen(3, 3, ceiling=64, accepted=REFUSED)
    assert isinstance(progress_of_move(before, before, "small", WANTED), Waiting)


def test_every_lever_is_found_in_the_document() -> None:
    asked = parse_moves("margin=15% tokenBudget=off boost.a=3 reserve.a=10% preemption.a=on")
    document = {"marginPercent": 15, "tiers": [{"name": "a", "boostMs": 3, "reservePercent": 10, "preempts": True}]}
    assert levers_written(document, wanted_fields(asked))
    assert not levers_written({**document, "tokenBudget": 5}, wanted_fields(asked))
    assert not levers_written({}, wanted_fields(asked))


def test_the_same_text_again_differs_by_a_blank() -> None:
    asked = parse_moves("ceiling=8")
    assert annotation_text(asked, None) == "ceiling=8"
    once_more = annotation_text(asked, "ceiling=8")
    assert once_more == "ceiling=8 "
    assert parse_moves(once_more) == asked
    assert annotation_text(asked, once_more) == "ceiling=8"


def test_progress_of_a_pause() -> None:
    def paused(*names: str) -> Any:
        return {"status": {"instances": [{"name": name, "paused": name in names} for name in "ab"]}}

    assert progress_of_pause(paused("a"), ["a", "b"], True) == Waiting(
        "the operator has not taken note for b: is it running?"
    )
    assert isinstance(progress_of_pause(paused("a", "b"), ["a", "b"], True), Reached)
    assert isinstance(progress_of_pause(paused("a"), ["b"], False), Reached)
