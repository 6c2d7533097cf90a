"""One step on the engine's thread, with its failure kept as small as it is.

A step of a stateless engine that raises is run again in halves until the request that breaks it stands alone: its batch
mates are served. A warm-up step, known to be good, tells bad requests from a broken engine."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_worker.clock import Clock
from gpu_worker.engines.interface import Engine, StepResult, Task

log = logging.getLogger(__name__)


class NotServed(RuntimeError):
    """A request that did no harm and was not served: the same request may well succeed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one step; times are the engine's own."""

    started_s: float
    ended_s: float
    result: StepResult
    crash: Exception | None = None
    """The engine itself is broken: a warm-up step failed as well."""


def run_step(engine: Engine, tasks: Sequence[Task], evicted: Sequence[str], clock: Clock) -> Ran:
    """Never raises."""
    started_s = clock()
    try:
        result = engine.step(tasks, evicted)
    except Exception as error:
        log.warning("a step of %d requests failed: %s: %s", len(tasks), type(error).__name__, error)
        isolation = _Isolation(engine)
        isolation.narrow(tasks, error)
        return Ran(started_s, clock(), isolation.result(), isolation.crash)
    return Ran(started_s, clock(), result)


@dataclass(slots=True)
class _Isolation:
    engine: Engine
    crash: Exception | None = None
    sound: bool = False
    """A step succeeded since the failure: the engine works."""
    served: list[StepResult] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)

    def narrow(self, tasks: Sequence[Task], error: Exception) -> None:
        """These tasks failed together with that error."""
        if len(tasks) == 1 or not self.engine.stateless:
            self._blame(tasks, error)
            return
        middle = len(tasks) // 2
        for half in (tasks[:middle], tasks[middle:]):
            if self.crash is not None:
                self._blame(half, self.crash)
                continue
            try:
                self.served.append(self.engine.step(half, ()))
                self.sound = True
            except Exception as narrower:
                self.narrow(half, narrower)

    def result(self) -> StepResult:
        """All that was served, and who failed of what. After a crash nobody is to blame."""
        failed = self.failed
        if self.crash is not None:
            failed = {task_id: _not_served(self.crash) for task_id in failed}
        return StepResult(
            outputs={task_id: output for part in self.served for task_id, output in part.outputs.items()},
            completed=frozenset().union(*(part.completed for part in self.served)),
            failed={**failed, **{task_id: error for part in self.served for task_id, error in part.failed.items()}},
        )

    def _blame(self, tasks: Sequence[Task], error: Exception) -> None:
        """One alone is to blame itself, unless the engine turns out to be broken; of several nobody knows who."""
        self.failed.update((task.id, error if len(tasks) == 1 else _not_served(error)) for task in tasks)
        if self.sound or self.crash is not None:
            return
        try:
            self.engine.warm_up(1)
            self.sound = True
        except Exception as broken:
            self.crash = broken


def _not_served(cause: Exception) -> NotServed:
    return NotServed(f"{type(cause).__name__}: {cause}")
