"""One instance's tuner as an object: what it has seen, what it remembers, and one decision per look.

Pure: whoever holds it reads the counters, brings the time, and has the step written."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tailkeeper.api.settings import Settings
from tailkeeper.control.freeze import Situation
from tailkeeper.control.history import History
from tailkeeper.control.move import Bounds
from tailkeeper.control.observation import TierLatency, Value
from tailkeeper.control.record import Tick, decide_and_record
from tailkeeper.control.samples import PodSample, Unknown
from tailkeeper.control.state import State


@dataclass
class Tuner:
    """Begin with a new one per instance, also after a restart: it then looks on for one whole look-back."""

    history: History = field(default_factory=History)
    state: State = field(default_factory=State)

    def look(
        self,
        read: Iterable[PodSample] | Unknown,
        pods: Collection[str],
        latencies: Sequence[TierLatency],
        settings: Settings,
        bounds: Bounds,
        situation: Situation,
        now_s: float,
    ) -> Tick:
        """One look and its decision. `pods`: the ready workers' names; `now_s` of a clock that never goes back."""
        observation = self.history.observe(read, pods, now_s)
        if isinstance(observation, Value) and latencies:
            observation = replace(observation, latencies=tuple(latencies))
        tick = decide_and_record(self.state, observation, settings, bounds, situation, now_s)
        self.state = tick.next_state
        return tick
