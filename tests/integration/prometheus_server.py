"""A real Prometheus for tests, of either generation, on a free loopback port, with its data in the folder given."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.integration.control_plane import Program, free_port

GENERATIONS = ("prometheus", "prometheus-2")
"""3.x, built from its Go module, and the distribution's 2.42."""


@dataclass(frozen=True)
class Scrape:
    """One target of a job of its own."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass
class PrometheusServer:
    """`start` it, `stop` it; started again it has its old data and port."""

    folder: Path
    program: str = "prometheus"
    interval: str = "250ms"
    web: Mapping[str, object] | None = None
    """Content of `--web.config.file`: TLS, client certificates, users."""
    port: int = field(default_factory=free_port)
    _running: Program | None = None

    @property
    def url(self) -> str:
        scheme = "https" if self.web and "tls_server_config" in self.web else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def configure(self, scrapes: Sequence[Scrape], rules: Sequence[Path] = ()) -> None:
        jobs = [
            {
                "job_name": f"job-{number}",
                "static_configs": [{"targets": [scrape.address], "labels": dict(scrape.labels)}],
            }
            for number, scrape in enumerate(scrapes)
        ]
        interval = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), self.interval)
        files = [str(path) for path in rules]
        self._write("prometheus.yml", {"global": interval, "scrape_configs": jobs, "rule_files": files})

    def start(self, probe: httpx.Client | None = None) -> None:
        arguments = [
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        if self.web is not None:
            arguments.append(f"--web.config.file={self._write('web.yml', self.web)}")
        self._running = Program(self.folder, self.program, *arguments)
        client = probe or httpx.Client()
        self._running.wait_until(lambda: self._ready(client))

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _ready(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"{self.url}/-/ready").status_code in (200, 401)
        except httpx.TransportError:
            return False

    def _write(self, name: str, content: object) -> Path:
        """JSON is YAML."""
        path = self.folder / name
        path.write_text(json.dumps(content))
        return path
