"""Settings by file: the operator's plan, the generation that only grows, and edits that settings cannot carry."""

from pathlib import Path
from typing import Any

import pytest

from tailkeeper.api.enums import MoveCause
from tailkeeper.api.levers import move, parse_moves
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.settings import parse_settings
from tailkeeper.local.edits import needing_restart, unheeded
from tailkeeper.local.events import Event, Happening
from tailkeeper.local.narration import Narration
from tailkeeper.local.written import WrittenSettings
from tailkeeper.reconcile.moves import Proposal


def policy(annotations: dict[str, str] | None = None, name: str = "p", **spec: Any) -> BatchingPolicy:
    instance = {"name": "m", "model": {"name": "m", "engine": "encoder", "path": "/models/m"}}
    return BatchingPolicy.model_validate(
        {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {"instances": [instance], **spec}}
    )


class Stage:
    """One instance's settings, and what is told of them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "settings.json"
        self.written = WrittenSettings(self.file)
        self.events: list[Event] = []
        self.narration = Narration("m", self.events.append)

    def plan(self, of: BatchingPolicy, proposal: Proposal | None = None) -> None:
        self.narration.written(self.written.plan(of, of.spec.instances[0], proposal))
        assert parse_settings(self.file.read_text()) == self.written.settings

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.events]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_each_change_is_a_generation_and_no_change_is_none(stage: Stage) -> None:
    stage.plan(policy())
    stage.plan(policy())
    stage.plan(policy(batching={"windowIdle": 32}))
    assert stage.written.settings.generation == 2
    assert stage.written.settings.ceiling == 32
    assert stage.texts[0] == "generation 1, first settings"
    assert stage.texts[1].startswith("generation 2, Spec: ceiling 64 → 32")
    assert len(stage.texts) == 2
    assert [path.name for path in stage.file.parent.iterdir()] == ["settings.json"]


def test_an_annotation_acts_once_and_is_undone_by_nobody(stage: Stage) -> None:
    by_hand = policy({"tailkeeper.dev/set.m": "ceiling=8"})
    stage.plan(policy())
    stage.plan(by_hand)
    assert (stage.written.settings.ceiling, stage.written.settings.generation) == (8, 2)
    step = move(stage.written.settings, parse_moves("ceiling=16"), stage.written.bounds.spec)
    numbers = "sla_breached=true action=window→16"
    stage.plan(by_hand, Proposal(2, step, MoveCause.CAPACITY, numbers))
    stage.plan(by_hand)
    assert (stage.written.settings.ceiling, stage.written.settings.generation) == (16, 3)
    assert stage.texts[1:] == ["generation 2, Manual: ceiling 64 → 8", f"generation 3, Capacity: {numbers}"]


def test_a_manual_value_that_cannot_be_is_said_once(stage: Stage) -> None:
    bad = policy({"tailkeeper.dev/set.m": "ceiling=800"})
    stage.plan(policy())
    stage.plan(bad)
    stage.plan(bad)
    assert [event.what for event in stage.events] == [Happening.SETTINGS, Happening.REFUSED]
    assert "ceiling=800 is out of bounds: 1 to 64" in stage.texts[-1]
    assert stage.written.settings.generation == 1


def test_edits_that_take_new_processes_are_named() -> None:
    started = policy()
    changed = policy(
        drainSeconds=9,
        instances=[
            {"name": "m", "model": {"name": "m", "engine": "encoder", "path": "/models/other"}},
            {"name": "n", "model": {"name": "m", "engine": "encoder", "path": "/models/m"}},
        ],
    )
    assert list(needing_restart(started, changed, ["m"])) == [
        "instance m: another model takes a restart",
        "instance n is new: a restart runs it",
        "drainSeconds stays at 45 until a restart",
    ]
    assert list(needing_restart(started, policy(batching={"windowIdle": 8}), ["m"])) == []
    assert list(needing_restart(changed, started, ["m", "n"]))[1].startswith("instance n is gone from the policy")
    assert "identity" in next(needing_restart(started, policy(name="q"), ["m"]))


def test_an_open_port_is_said() -> None:
    guarded = policy(apiKeys={"secretName": "keys"})
    assert "whoever reaches the port may call" in next(unheeded(guarded, has_keys=False))
    assert list(unheeded(guarded, has_keys=True)) == list(unheeded(policy(), has_keys=False)) == []
