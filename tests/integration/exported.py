"""The names that workers and operator export, from the programs themselves, and those that an expression asks for."""

import re

from prometheus_client.parser import text_string_to_metric_families

from gpu_worker.config import Identity
from gpu_worker.metrics.exposition import Exposition, Snapshot
from gpu_worker.metrics.meter import Meter
from gpu_worker.scheduling.interface import SchedulerState, TierState
from tailkeeper.api.enums import Mode
from tailkeeper.app.metrics import Metrics
from tests.unit.control.loop import settings


def metric_names() -> set[str]:
    """Names of series, of a worker in continuous mode and of the operator."""
    names: set[str] = set()
    for text in (_worker_page(), Metrics().exposition().decode()):
        for family in text_string_to_metric_families(text):
            names |= {family.name, *(sample.name for sample in family.samples)}
            names |= {f"{family.name}_total"} if family.type == "counter" else set()
            names |= {f"{family.name}_bucket"} if family.type == "histogram" else set()
    return {name for name in names if name.startswith("tailkeeper_")}


def metrics_of_rules(expression: str) -> set[str]:
    """Series of ours that a PromQL expression names, recorded ones as well."""
    return set(re.findall(r"\btailkeeper[_:][a-zA-Z0-9_:]+", re.sub(r'"[^"]*"', '""', expression)))


def _worker_page() -> str:
    meter = Meter()
    meter.apply(settings(mode=Mode.CONTINUOUS, first_token_sla_ms=100, inter_token_sla_ms=50))
    tiers = {"interactive": TierState(0, None)}
    state = SchedulerState(8, 64, 0, tiers, 5.0, 1.0, {"alpha": 0.01}, 0.9)
    snapshot = Snapshot(state=state, refused=0, ready=True, load_progress=1.0, second=1)
    return Exposition(Identity("team-a", "chat", "small"), meter, lambda: snapshot).text().decode()
