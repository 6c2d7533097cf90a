"""Workers and an operator whose metrics a real Prometheus has scraped: their own expositions, with work that goes on.

Three instances of policy `chat` in `team-a`: `small` (online, batch by batch), `stream` (online, continuous), `night`
(offline)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gpu_worker.metrics.meter import TokenTimes
from gpu_worker.scheduling.interface import Outcome, Request, Waits
from tailkeeper.api.enums import Mode, TrafficClass
from tailkeeper.app.metrics import Metrics
from tailkeeper.control.samples import InstanceKey
from tests.integration.exporters import exporting
from tests.integration.prometheus_server import PrometheusServer, Scrape
from tests.unit.signals.worker_pages import WorkerPage

NAMESPACE, POLICY = "team-a", "chat"
SCRAPE_S = 0.25
LATE = Waits(hold_s=0.1, busy_s=0.05, slot_s=0.2, exec_s=0.05)


def key(instance: str) -> InstanceKey:
    return InstanceKey(NAMESPACE, POLICY, instance)


@dataclass
class OperatorPage:
    """What the operator says of an instance that it has moved, and that needs a worker more."""

    metrics: Metrics = field(default_factory=Metrics)

    def text(self) -> str:
        """The page; each look at it is a tick later."""
        self.metrics.ticks.inc()
        return self.metrics.exposition().decode()

    def sees(self, instance: str) -> None:
        at = key(instance)
        self.metrics.settings_generation.labels(*at).set(1)
        self.metrics.ready_workers.labels(*at).set(1)
        self.metrics.metrics_available.labels(*at).set(1)
        self.metrics.replicas_needed.labels(*at).set(2)
        self.metrics.capacity_short.labels(*at).set(1)
        self.metrics.moves.labels(*at, "Hold").inc()
        self.metrics.outcomes.labels(*at, "RolledBack").inc()
        self.metrics.recommendations.labels(*at, "Recovery").inc()
        self.metrics.watchers.labels("running").set(7)
        self.metrics.loop_lag_seconds.set(0.001)


def worker_page(instance: str, **settings: object) -> WorkerPage:
    page = WorkerPage(key(instance))
    page.settings = page.settings.but(**settings)
    page.meter.apply(page.settings)
    page.efficiency, page.queued = 0.6, 3
    return page


def serve(page: WorkerPage) -> None:
    """A little of everything that can happen to a request."""
    page.serve(Outcome.OK, 5, Waits(hold_s=0.003, exec_s=0.05))
    page.serve(Outcome.LATE, 2, LATE)
    page.serve(Outcome.SHED, 1, Waits(slot_s=0.5))
    page.serve(Outcome.OK, 3, Waits(hold_s=1.0, exec_s=0.05), tier="batch")
    page.serve(Outcome.LATE, 1, Waits(slot_s=13.0, exec_s=0.05), tier="batch")
    page.serve(Outcome.EXPIRED, 1, Waits(slot_s=24.0), tier="batch")
    for tier in page.meter.tiers:
        page.meter.tiers[tier].preemptions += 1
        tokens = TokenTimes()
        for at_s in (0.05, 0.06, 0.08):
            page.meter.token(Request("t", tier, 0.0), page.settings.generation, tokens, at_s)


@contextmanager
def prometheus_with_data(folder: Path, program: str, rules: Sequence[Path], for_s: float) -> Iterator[httpx.Client]:
    """A client of a Prometheus that has scraped and evaluated all of it for so long. It asks as of the end."""
    pages = [
        worker_page("small"),
        worker_page("stream", mode=Mode.CONTINUOUS, first_token_sla_ms=100, inter_token_sla_ms=50),
        worker_page("night", traffic_class=TrafficClass.OFFLINE, default_tier="batch"),
    ]
    operator = OperatorPage()
    server = PrometheusServer(folder, program, interval=f"{round(SCRAPE_S * 1000)}ms")
    with ExitStack() as stack:
        scrapes = [Scrape(stack.enter_context(exporting(page))) for page in (*pages, operator)]
        server.configure(scrapes, rules)
        server.start()
        stack.callback(server.stop)
        for step in range(round(for_s / SCRAPE_S)):
            for page in pages:
                serve(page)
            if step == 1:
                for page in pages:
                    operator.sees(page.key.instance)
            time.sleep(SCRAPE_S)
        # Asked for that moment: a rate of seconds would be over while the tests ask.
        then = {"time": str(time.time())}
        yield stack.enter_context(httpx.Client(base_url=server.url, timeout=30, params=then))
