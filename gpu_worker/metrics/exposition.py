"""What Prometheus reads from a worker. The names are API: dashboards, alerts and the operator hold on to them."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_worker.config import Identity
from gpu_worker.metrics.histogram import Histogram
from gpu_worker.metrics.meter import Judged, Meter, Objective, TierTimes
from gpu_worker.scheduling.interface import Outcome, SchedulerState
from tailkeeper.api.settings import Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INSTANCE = ("policy_namespace", "policy", "model_instance")
_SETTINGS = ("traffic_class", "mode", "default_tier")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is read at the time of a scrape."""

    state: SchedulerState | None
    refused: int
    ready: bool
    load_progress: float
    second: int
    """The current second of the worker's clock."""


class Exposition(Collector):
    """Renders a meter and a snapshot. At most 500 series with three tiers in continuous mode."""

    def __init__(self, identity: Identity, meter: Meter, snapshot: Callable[[], Snapshot]) -> None:
        self._labels = (identity.policy_namespace, identity.policy, identity.model_instance)
        self._meter = meter
        self._snapshot = snapshot
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would collect at registration, before there is anything."""
        return ()

    def text(self) -> bytes:
        """The whole page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Families by kind; called by the registry."""
        snapshot = self._snapshot()
        self._meter.close_second(snapshot.second)
        yield from self._judged()
        yield from self._by_tier()
        yield from self._whole(snapshot)
        if snapshot.state is not None:
            yield from self._now(snapshot.state)

    def _judged(self) -> Iterator[Metric]:
        requests = self._counter("requests", "Requests that ended, by outcome.", "tier", "generation", "outcome")
        late = self._counter("late", "Requests that missed an objective.", "tier", "generation", "objective")
        waits = self._counter(
            "late_wait_seconds", "Where the time of late requests went.", "tier", "generation", "cause"
        )
        moments = self._counter(
            "second_moments", "Sums over seconds of n·n, n·k, k·k; n requests, k late.", "tier", "generation", "moment"
        )
        for tier, generation, judged in self._all_judged():
            for outcome in Outcome:
                self._add(requests, judged.requests[outcome], tier, generation, outcome.value)
            for objective in Objective:
                self._add(late, judged.late[objective], tier, generation, objective.value)
            for cause, seconds in judged.late_wait_s.items():
                self._add(waits, seconds, tier, generation, cause.value)
            for moment, total in judged.moments.items():
                self._add(moments, total, tier, generation, moment.value)
        yield from (requests, late, waits, moments)

    def _all_judged(self) -> Iterator[tuple[str, str, Judged]]:
        for generation, tiers in self._meter.judged.items():
            for tier, judged in tiers.items():
                yield tier, str(generation), judged

    def _by_tier(self) -> Iterator[Metric]:
        tiers = self._meter.tiers
        waits = self._counter("wait_seconds", "Where the time of requests went.", "tier", "cause")
        preemptions = self._counter("preemptions", "Requests that lost their slot for a while.", "tier")
        for tier, times in tiers.items():
            for cause, seconds in times.wait_s.items():
                self._add(waits, seconds, tier, cause.value)
            self._add(preemptions, times.preemptions, tier)
        yield from (waits, preemptions)
        yield self._histograms("request_seconds", "Latency from arrival to the end.", lambda times: times.request)
        yield self._histograms("first_token_seconds", "Arrival to first token.", lambda times: times.first_token)
        yield self._histograms("inter_token_seconds", "Time between tokens.", lambda times: times.inter_token)
        yield self._histograms("batch_wait_seconds", "Held to fill a batch.", lambda times: times.batch_wait)

    def _histograms(self, name: str, what: str, of: Callable[[TierTimes], Histogram | None]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"tailkeeper_{name}", what, labels=[*_INSTANCE, "tier"])
        for tier, times in self._meter.tiers.items():
            histogram = of(times)
            if histogram is not None:
                family.add_metric([*self._labels, tier], histogram.buckets(), histogram.sum_s)
        return family

    def _whole(self, snapshot: Snapshot) -> Iterator[Metric]:
        meter = self._meter
        for name, what, value in (
            ("engine_busy_seconds", "Time in forward passes.", meter.busy_s),
            ("engine_work", "Requests served; tokens forwarded in continuous mode.", meter.work),
            ("settings_refused", "Settings documents refused whole.", snapshot.refused),
        ):
            counter = self._counter(name, what)
            self._add(counter, value)
            yield counter
        generation = meter.settings.generation if meter.settings is not None else 0
        yield self._gauge("settings_generation", "Settings generation applied; 0: none yet.", generation)
        yield self._gauge("batch_size", "Requests in the last step.", meter.batch_size)
        yield self._gauge("ready", "Whether /readyz says so.", int(snapshot.ready))
        yield self._gauge("load_progress", "Share of loading and warming up that is done.", snapshot.load_progress)
        if meter.settings is not None:
            yield self._gauge("window_ceiling", "Lever: the most that the window may be.", meter.settings.ceiling)
            yield from self._wanted(meter.settings)

    def _wanted(self, settings: Settings) -> Iterator[Metric]:
        """What the settings ask for, so that alerts and dashboards need no copy of a policy's numbers."""
        info = GaugeMetricFamily(
            "tailkeeper_settings_info", "What is in force, as labels.", labels=[*_INSTANCE, *_SETTINGS]
        )
        info.add_metric([*self._labels, settings.traffic_class.value, settings.mode.value, settings.default_tier], 1)
        sla = GaugeMetricFamily(
            "tailkeeper_sla_seconds", "SLA of the tier: its deadline, the p99 wanted.", labels=[*_INSTANCE, "tier"]
        )
        for tier in settings.tiers:
            sla.add_metric([*self._labels, tier.name], tier.deadline_ms / 1000)
        yield from (info, sla)
        for name, what, value in (
            ("timeout_target", "Share of the requests that may time out.", settings.timeout_target_per_mille / 1000),
            ("efficiency_target", "Least efficiency wanted.", settings.min_efficiency_percent / 100),
            ("window_idle", "Bound of the spec: window when idle, and the most.", settings.window_idle),
            ("window_busy", "Bound of the spec: preferred window when busy.", settings.window_busy),
        ):
            yield self._gauge(name, what, value)

    def _now(self, state: SchedulerState) -> Iterator[Metric]:
        yield self._gauge("window", "Requests that a batch may hold now.", state.window)
        yield self._gauge("window_cap", "The most that the window can be now.", state.window_cap)
        yield self._gauge("running", "Requests in the running step.", state.running)
        for name, what, value in (
            ("arrival_rate", "Requests per second.", state.arrival_rate_per_s),
            ("arrival_cv", "Coefficient of variation of the gaps between arrivals.", state.arrival_cv),
            ("efficiency", "Work per busy second over that at saturation.", state.efficiency),
        ):
            if value is not None and math.isfinite(value):
                yield self._gauge(name, what, value)
        queue = GaugeMetricFamily("tailkeeper_queue_length", "Requests waiting.", labels=[*_INSTANCE, "tier"])
        for tier, queued in state.tiers.items():
            queue.add_metric([*self._labels, tier], queued.queued)
        model = GaugeMetricFamily(
            "tailkeeper_latency_model", "Coefficients, seconds.", labels=[*_INSTANCE, "coefficient"]
        )
        for name, value in state.latency_model.items():
            if math.isfinite(value):
                model.add_metric([*self._labels, name], value)
        yield from (queue, model)

    def _counter(self, name: str, what: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"tailkeeper_{name}", what, labels=[*_INSTANCE, *labels])

    def _gauge(self, name: str, what: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"tailkeeper_{name}", what, labels=_INSTANCE)
        family.add_metric(self._labels, value)
        return family

    def _add(self, family: CounterMetricFamily, value: float, *labels: str) -> None:
        family.add_metric([*self._labels, *labels], value)
