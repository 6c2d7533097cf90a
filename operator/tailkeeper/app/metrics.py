"""The operator's own metrics, on its `/metrics`."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """One registry of its own, so that several operators fit into one process of tests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.api_requests = Counter(
            "tailkeeper_operator_api_requests",
            "Requests to the API server, by verb (get, list, apply, apply-status, annotate, delete, create), kind and "
            "HTTP status (0: no answer). Watches are not among them.",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self.reconciles = Counter(
            "tailkeeper_operator_reconciles",
            "Reconciles by result: ok, retry (an API call failed), error (a bug).",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "tailkeeper_operator_reconcile_seconds",
            "Duration of a reconcile.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self.queue_length = Gauge(
            "tailkeeper_operator_queue_length", "Policies that wait to be reconciled now.", registry=self.registry
        )
        self.failing = Gauge(
            "tailkeeper_operator_failing", "Policies whose last reconcile failed.", registry=self.registry
        )
        self.loop_lag_seconds = Gauge(
            "tailkeeper_operator_loop_lag_seconds",
            "How late the event loop ran a timer, the worst of the last ten seconds.",
            registry=self.registry,
        )
        self.policies = Gauge("tailkeeper_operator_policies", "Policies known.", registry=self.registry)
        self.workers = Gauge(
            "tailkeeper_operator_workers",
            "Running worker pods by what they said at the last tick: ready, unready, silent.",
            ["state"],
            registry=self.registry,
        )
        self.watchers = Gauge(
            "tailkeeper_operator_watchers", "Watches that run, of those that should.", ["state"], registry=self.registry
        )
        self.ticks = Counter("tailkeeper_operator_ticks", "Rounds of asking the workers.", registry=self.registry)
        self.relists = Counter(
            "tailkeeper_operator_relists", "Full lists by result.", ["result"], registry=self.registry
        )
        who = ["policy_namespace", "policy", "model_instance"]
        self.moves = Counter(
            "tailkeeper_operator_moves",
            "Moves of the tuner that were written.",
            [*who, "cause"],
            registry=self.registry,
        )
        self.recommendations = Counter(
            "tailkeeper_operator_recommendations",
            "Moves that were recommended; the same one counts once in ten minutes.",
            [*who, "cause"],
            registry=self.registry,
        )
        self.outcomes = Counter(
            "tailkeeper_operator_move_outcomes",
            "Moves whose trial ended: Kept or RolledBack.",
            [*who, "outcome"],
            registry=self.registry,
        )
        self.still = Counter(
            "tailkeeper_operator_still",
            "Looks at an instance that ended without a move, by reason; Error is a bug.",
            ["reason"],
            registry=self.registry,
        )
        self.signals_seconds = Histogram(
            "tailkeeper_operator_signals_seconds",
            "Duration of reading the counters of all instances that were due.",
            buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=self.registry,
        )
        self.capacity_short = Gauge(
            "tailkeeper_capacity_short_replicas",
            "Workers that are missing, because no setting serves what arrives; 0 when none are.",
            who,
            registry=self.registry,
        )
        self.settings_generation = Gauge(
            "tailkeeper_operator_settings_generation",
            "Newest settings generation that was written; the workers say in tailkeeper_settings_generation what they "
            "apply.",
            who,
            registry=self.registry,
        )
        self.ready_workers = Gauge(
            "tailkeeper_operator_ready_workers",
            "Ready worker pods by the API server; their metrics should be there as well.",
            who,
            registry=self.registry,
        )
        self.metrics_available = Gauge(
            "tailkeeper_operator_metrics_available",
            "Whether the operator reads the workers' counters: 1, or 0 and nothing is moved. Absent while not known.",
            who,
            registry=self.registry,
        )
        self.replicas_needed = Gauge(
            "tailkeeper_replicas_needed",
            "Workers that would serve what arrives now at 85 % of their capacity, bursts included; for autoscalers.",
            who,
            registry=self.registry,
        )

    def api_request(self, verb: str, kind: str, status: int) -> None:
        """Counts one request to the API server."""
        self.api_requests.labels(verb, kind, str(status)).inc()

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
