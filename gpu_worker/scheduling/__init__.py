"""Which requests run now. Decisions only: the time is an argument, nothing here waits, sleeps or computes."""

from gpu_worker.scheduling.interface import Scheduler
from gpu_worker.scheduling.iterations import IterationScheduler
from gpu_worker.scheduling.plan import EngineLimits
from gpu_worker.scheduling.requests import RequestScheduler
from tailkeeper.api.settings import Settings

__all__ = ["EngineLimits", "Scheduler", "create"]


def create(
    settings: Settings, now_s: float, limits: EngineLimits | None = None
) -> RequestScheduler | IterationScheduler:
    """A scheduler for an engine with these limits (None: one pass per batch, no bound on its size)."""
    limits = limits or EngineLimits()
    return (IterationScheduler if limits.iterates else RequestScheduler)(settings, now_s, limits)
