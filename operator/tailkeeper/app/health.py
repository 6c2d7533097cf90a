"""Whether the operator works, not merely runs: every watch is up, the loop turns, and the ticks come."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tailkeeper.app.metrics import Metrics
from tailkeeper.app.watching import watcher_names

START_S = 60.0
"""Login, discovery and the first lists may take this long."""
WATCHER_ABSENT_S = 10.0
"""A watch may be absent for a moment while kopf starts it; the probe has to fail within 30 s."""
BEAT_S = 0.25
LAG_WINDOW_S = 10.0
WORST_LAG_S = 5.0
TICKS = 3
SHORTEST_TICK_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Finding:
    """One thing that is not well."""

    what: str
    detail: str


class Health:
    """Answers the probes. All times are monotonic seconds."""

    def __init__(
        self, namespaces: tuple[str, ...], tick_s: float, tick_finished_s: Callable[[], float], metrics: Metrics
    ) -> None:
        self.synced = False
        """Everything was listed once: reconciling may begin."""
        self._namespaces = namespaces
        self._tick_patience_s = max(TICKS * tick_s, SHORTEST_TICK_PATIENCE_S)
        self._tick_finished_s = tick_finished_s
        self._metrics = metrics
        self._began_s = time.monotonic()
        self._absent_since_s: dict[str, float] = {}
        self._seen: set[str] = set()
        """Watches that ran once; the others may still be on their way."""
        self._lags: deque[tuple[float, float]] = deque()

    def findings(self) -> list[Finding]:
        """What is wrong now; nothing when all is well."""
        now_s = time.monotonic()
        found = [
            Finding("watch", f"{name} does not run")
            for name, since_s in self._absent_since_s.items()
            if now_s - since_s > (WATCHER_ABSENT_S if name in self._seen else START_S)
        ]
        if (lag_s := self._worst_lag_s(now_s)) > WORST_LAG_S:
            found.append(Finding("loop", f"the event loop was {lag_s:.1f} s late"))
        silent_s = now_s - self._tick_finished_s()
        if silent_s > self._tick_patience_s and now_s - self._began_s > START_S:
            found.append(Finding("tick", f"no tick ended for {silent_s:.0f} s"))
        return found

    async def run(self) -> None:
        """Feels the pulse for ever."""
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(BEAT_S)
            now_s = time.monotonic()
            self.note_lag(now_s, now_s - slept_s - BEAT_S)
            self.look(now_s)

    def note_lag(self, now_s: float, lag_s: float) -> None:
        """The event loop ran a timer this much too late."""
        self._lags.append((now_s, lag_s))
        while self._lags[0][0] < now_s - LAG_WINDOW_S:
            self._lags.popleft()
        self._metrics.loop_lag_seconds.set(self._worst_lag_s(now_s))

    def look(self, now_s: float) -> None:
        """Looks for every watch among the tasks of this event loop."""
        expected = watcher_names(self._namespaces)
        running = {task.get_name() for task in asyncio.all_tasks()} & expected
        self._seen |= running
        self._absent_since_s = {name: self._absent_since_s.get(name, now_s) for name in sorted(expected - running)}
        self._metrics.watchers.labels("running").set(len(running))
        self._metrics.watchers.labels("expected").set(len(expected))

    def _worst_lag_s(self, now_s: float) -> float:
        return max((lag_s for at_s, lag_s in self._lags if at_s >= now_s - LAG_WINDOW_S), default=0.0)
