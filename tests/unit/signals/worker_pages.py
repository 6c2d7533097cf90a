"""Pages of metrics as the worker itself writes them."""

from gpu_worker.config import Identity
from gpu_worker.metrics.exposition import Exposition, Snapshot
from gpu_worker.metrics.meter import Meter
from gpu_worker.scheduling.interface import (
    Answer,
    Outcome,
    Request,
    SchedulerState,
    Step,
    StepReport,
    TierState,
    Waits,
    Work,
)
from tailkeeper.control.samples import InstanceKey
from tests.unit.control.loop import settings

KEY = InstanceKey("team-a", "demo", "encoder")


class WorkerPage:
    """One worker's counters, and the page that shows them."""

    def __init__(self, key: InstanceKey = KEY, generation: int = 1) -> None:
        self.key = key
        self.meter = Meter()
        self.second = 0
        self.queued = 0
        self.efficiency: float | None = None
        self.settings = settings(
            policy_namespace=key.namespace, policy=key.policy, model_instance=key.instance, generation=generation
        )
        self.meter.apply(self.settings)

    def apply(self, generation: int) -> None:
        self.settings = self.settings.but(generation=generation)
        self.meter.apply(self.settings)

    def serve(self, outcome: Outcome, times: int = 1, waits: Waits | None = None, tier: str = "interactive") -> None:
        """So many requests end in a second of their own."""
        self.second += 1
        for number in range(times):
            request = Request(str(number), tier, 0.0)
            answer = Answer(request, outcome, waits or Waits(exec_s=0.05), float(self.second))
            self.meter.ended(answer, self.settings.generation)
        work = tuple(Work(Request(str(number), tier, 0.0)) for number in range(times))
        self.meter.step(StepReport(Step(1, work), 0.0, 0.25, frozenset(each.request.id for each in work)))

    def text(self) -> str:
        state = SchedulerState(
            window=8,
            window_cap=31,
            running=0,
            tiers={"interactive": TierState(self.queued, None), "batch": TierState(0, None)},
            arrival_rate_per_s=5.0,
            arrival_cv=1.5,
            latency_model={"c": 0.006, "a": 0.003},
            efficiency=self.efficiency,
        )
        snapshot = Snapshot(state=state, refused=0, ready=True, load_progress=1.0, second=self.second + 1)
        identity = Identity(self.key.namespace, self.key.policy, self.key.instance)
        return Exposition(identity, self.meter, lambda: snapshot).text().decode()


def served(key: InstanceKey = KEY) -> WorkerPage:
    """A worker that served 5 requests in time, 3 late ones, shed 2, under generation 1; then 4 under generation 2."""
    page = WorkerPage(key)
    page.serve(Outcome.OK, 5)
    page.serve(Outcome.LATE, 3, Waits(hold_s=0.1, busy_s=0.05, slot_s=0.2, exec_s=0.05))
    page.serve(Outcome.SHED, 2, Waits(slot_s=0.5), tier="batch")
    page.apply(2)
    page.serve(Outcome.OK, 4)
    page.queued = 7
    return page
