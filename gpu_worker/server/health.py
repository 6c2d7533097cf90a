"""Whether this worker is alive and ready, and if not, why. Alive means progress: the event loop answers at all, and the
loop makes steps while it has work."""

from gpu_worker.clock import Clock
from gpu_worker.server.loop import ServingLoop


class Health:
    """`phase` is set by whoever brings the worker up: what it is doing, or nothing once it is warm."""

    def __init__(self, loop: ServingLoop, hang_s: float, clock: Clock) -> None:
        self._loop = loop
        self._hang_s = hang_s
        self._clock = clock
        self.phase = "starting"
        self.draining = False
        self.settings_applied = False

    def why_not_ready(self) -> str:
        """Empty when requests are welcome."""
        if self.draining:
            return "draining"
        if self._loop.trouble is not None:
            return self._loop.trouble
        if self.phase:
            return self.phase
        return "" if self.settings_applied else "no settings"

    def why_not_live(self) -> str:
        """Empty when there is progress, or nothing to do; otherwise only a new process helps."""
        age_s = self._loop.step_age_s()
        if age_s > self._hang_s:
            return f"a step has been running for {age_s:.0f} s"
        if self._loop.stalled():
            return "requests wait, the engine is free, and no step starts"
        trouble = self._loop.trouble
        if trouble is not None and self._clock() - self._loop.trouble_since_s > self._hang_s:
            return trouble
        return ""
