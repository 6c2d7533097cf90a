"""How the tuner gets a new generation written: fenced by the one that it decided on."""

from collections.abc import Iterator

import pytest

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.levers import move, parse_moves
from tailkeeper.api.settings import Settings
from tailkeeper.reconcile.moves import Fate, Proposal
from tailkeeper.reconcile.store import Key
from tests.integration.control_plane import free_port
from tests.integration.operators import Field, OperatorThread, eventually


@pytest.fixture
def inside(field: Field, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorThread]:
    """An operator in this process with a policy `chat` that has its first settings."""
    monkeypatch.setenv("KUBECONFIG", str(field.plane.kubeconfig))
    operator = OperatorThread(f"--namespaces={field.namespace}", f"--http-port={free_port()}", "--tick-seconds=1")
    eventually(operator.healthy)
    field.apply()
    eventually(field.has)
    yield operator
    operator.stop()


def proposal(field: Field, text: str, based_on: int) -> Proposal:
    now = Settings.model_validate(field.settings())
    moved = move(now, parse_moves(text), now.but(ceiling=now.window_idle, moved=[]))
    return Proposal(based_on, moved, MoveCause.LONG_BATCHES, "p99=1.4 target=1.0")


def test_a_proposal_becomes_the_next_generation_with_its_reason(field, inside) -> None:
    key = Key(field.namespace, "chat")
    answer = inside.propose(key, "small", proposal(field, "ceiling=8", based_on=1))
    assert (answer.fate, answer.generation) == (Fate.WRITTEN, 2)
    assert field.settings()["ceiling"] == 8
    record = eventually(lambda: field.instance().get("lastMove"))
    assert (record["cause"], record["numbers"], record["generation"]) == ("LongBatches", "p99=1.4 target=1.0", 2)


def test_a_proposal_on_an_older_generation_changes_nothing(field, inside) -> None:
    key = Key(field.namespace, "chat")
    late = proposal(field, "ceiling=8", based_on=1)
    assert inside.propose(key, "small", late).fate is Fate.WRITTEN
    answer = inside.propose(key, "small", proposal(field, "ceiling=4", based_on=1))
    assert (answer.fate, answer.generation) == (Fate.STALE, 2)
    assert field.settings()["ceiling"] == 8


def test_a_proposal_for_what_is_not_there_is_answered(field, inside) -> None:
    settings = proposal(field, "ceiling=8", based_on=1)
    assert inside.propose(Key(field.namespace, "gone"), "small", settings).fate is Fate.FAILED
