"""A worker as far as the operator can tell: `/metrics` and `/settings` on the metrics port, and settings that follow
its ConfigMap. Behind them a small batch server in real time, which breaks its SLA when its ceiling is too small."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tailkeeper.api.names import PORT_METRICS
from tailkeeper.api.settings import Settings, parse_settings
from tailkeeper.control.samples import PodSample
from tailkeeper.signals.counters import GAUGES, SPLIT
from tests.unit.control.plant import Plant, steady

FOLLOW_S = 0.2


class PretendWorker:
    """`document` fetches the settings document as text; `rate` requests of the interactive tier arrive a second."""

    def __init__(self, document: Callable[[], str], rate: float) -> None:
        self.ip = f"127.{random.randint(64, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
        self.port = PORT_METRICS
        self._document = document
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._settings = parse_settings(document())
        self._plant = Plant({"interactive": steady(rate)}, self._settings, a=0.0005, c=0.006)

    @contextmanager
    def running(self) -> Iterator["PretendWorker"]:
        worker, stop = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = (worker.metrics() if self.path == "/metrics" else worker.report()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain" if self.path == "/metrics" else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((self.ip, self.port), Handler)
        server.daemon_threads = True
        threads = [
            threading.Thread(target=server.serve_forever, args=(0.05,)),
            threading.Thread(target=follow(self, stop)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            stop.set()
            server.shutdown()
            for thread in threads:
                thread.join()
            server.server_close()

    def step(self) -> None:
        """Serves until now, and applies what its ConfigMap says."""
        settings = parse_settings(self._document())
        with self._lock:
            self._plant.run(time.monotonic() - self._began_s)
            if settings.generation > self._settings.generation:
                self._settings = settings
                self._plant.apply(settings)

    def report(self) -> str:
        with self._lock:
            document = self._settings.model_dump(mode="json", by_alias=True, exclude_none=True)
            return json.dumps({"generation": self._settings.generation, "ready": True, "settings": document})

    def metrics(self) -> str:
        with self._lock:
            self._plant.run(time.monotonic() - self._began_s)
            return page(self._settings, self._plant.sample())


def follow(worker: PretendWorker, stop: threading.Event) -> Callable[[], None]:
    def run() -> None:
        while not stop.wait(FOLLOW_S):
            worker.step()

    return run


def page(settings: Settings, sample: PodSample) -> str:
    """The sample in Prometheus' text format, under the names that workers use."""
    who = {
        "policy_namespace": settings.policy_namespace,
        "policy": settings.policy,
        "model_instance": settings.model_instance,
    }
    lines = []

    def line(name: str, value: float, **labels: object) -> None:
        text = ",".join(f'{label}="{said}"' for label, said in {**who, **labels}.items())
        lines.append(f"{name}{{{text}}} {value}")

    for (generation, tier), counts in sample.counts.items():
        line("tailkeeper_requests_total", counts.requests, tier=tier, generation=generation, outcome="ok")
        for name, (label, fields) in SPLIT.items():
            for said, of in fields.items():
                line(name, getattr(counts, of), tier=tier, generation=generation, **{label: said})
    line("tailkeeper_engine_busy_seconds_total", sample.busy_s)
    line("tailkeeper_engine_work_total", sample.work)
    line("tailkeeper_settings_generation", settings.generation)
    for name, of in GAUGES.items():
        if (value := getattr(sample.gauges, of)) is not None:
            line(name, value)
    for tier, waiting in sample.gauges.queue.items():
        line("tailkeeper_queue_length", waiting, tier=tier)
    for coefficient, value in sample.gauges.latency_model.items():
        line("tailkeeper_latency_model", value, coefficient=coefficient)
    return "\n".join(lines) + "\n"
