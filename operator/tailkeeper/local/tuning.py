"""The operator's tuner over the workers of one instance."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tailkeeper.api.levers import move
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.control.decision import Step
from tailkeeper.control.freeze import Situation
from tailkeeper.control.observation import TierLatency
from tailkeeper.control.record import Tick, to_line
from tailkeeper.control.samples import PodSample, Unknown
from tailkeeper.control.tuner import Tuner
from tailkeeper.local.events import Tell
from tailkeeper.local.narration import Narration
from tailkeeper.local.written import WrittenSettings
from tailkeeper.reconcile.moves import Proposal

LONGEST_NUMBERS: Final = 1_000
MOST_BYTES: Final = 50_000_000
"""Of decisions on disk; a look is about 6 kB, so that is half a day of looks every five seconds. As many again are
kept from before."""


class Decisions:
    """A file of ticks, a line each, which `control.record.replay` decides anew."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, tick: Tick) -> None:
        """Keeps one."""
        with self._file.open("a", encoding="utf-8") as out:
            out.write(to_line(tick) + "\n")
            full = out.tell() > MOST_BYTES
        if full:
            os.replace(self._file, self._file.with_suffix(".old.jsonl"))


class TunedInstance:
    """One instance: its settings, its tuner, and what is told of both."""

    def __init__(self, policy: BatchingPolicy, instance: Instance, folder: Path, settings: Path, tell: Tell) -> None:
        self.narration = Narration(instance.name, tell)
        self._policy = policy
        self._instance = instance
        self._written = WrittenSettings(settings)
        self._decisions = Decisions(folder / "ticks.jsonl")
        self._tuner = Tuner()
        self.tick: Tick | None = None
        """The newest look."""
        self._plan()

    @property
    def name(self) -> str:
        """Of the instance."""
        return self._instance.name

    @property
    def generation(self) -> int:
        """Of the newest settings that were written."""
        return self._written.settings.generation

    def follow(self, policy: BatchingPolicy, instance: Instance) -> None:
        """Goes by this policy from now on."""
        self._policy, self._instance = policy, instance
        self._plan()

    def see(self, read: Sequence[PodSample] | Unknown, pods: Sequence[str], now_s: float) -> None:
        """Takes a scrape in between two looks: what lies seconds back is then known to the second."""
        self._tuner.history.observe(read, pods, now_s)

    def look(
        self,
        read: Sequence[PodSample] | Unknown,
        pods: Sequence[str],
        latencies: Sequence[TierLatency],
        situation: Situation,
        now_s: float,
    ) -> Tick:
        """One look; a step that it decides on is written at once."""
        settings, bounds = self._written.settings, self._written.bounds
        tick = self.tick = self._tuner.look(read, pods, latencies, settings, bounds, situation, now_s)
        self._decisions.add(tick)
        self.narration.looked(tick, now_s)
        if tick.decision.step is not None:
            self._take(tick.decision.step, tick.decision.numbers)
        return tick

    def _take(self, step: Step, numbers: str) -> None:
        settings = self._written.settings
        moved = move(settings, step.moves, self._written.bounds.spec)
        self._plan(Proposal(settings.generation, moved, step.cause, numbers[:LONGEST_NUMBERS]))

    def _plan(self, proposal: Proposal | None = None) -> None:
        self.narration.written(self._written.plan(self._policy, self._instance, proposal))
