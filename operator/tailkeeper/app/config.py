"""How the operator is configured: each flag may also come as environment variable `TAILKEEPER_…`; the flag wins."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailkeeper.reconcile.overlay import InvalidOverlay, merge_pod_template
from tailkeeper.reconcile.worker_pod import CONTAINER
from tailkeeper.signals.query import Access
from tailkeeper.signals.sources import Signals

PROMETHEUS_TIMEOUT_S = 4.0
"""For one read of everything: below the usual five seconds between two."""
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Config:
    """Everything that an installation decides."""

    worker_image: str
    worker_template: Mapping[str, Any]
    """Pod template overlay of the installation, merged below each instance's own."""
    namespaces: tuple[str, ...]
    """Empty: all."""
    signals: Signals
    """Where the tuner reads from."""
    prometheus: Access | None
    tick_s: float
    relist_s: float
    concurrency: int
    http_host: str
    http_port: int
    log_format: str
    log_level: str
    service_account_dir: Path
    login_s: float
    """How long kopf's login lasts; a rotated token must be picked up before the old one ends."""


def read_config(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Config:
    """Exits with a usage message when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tailkeeper.app", description="The Tailkeeper operator.")

    def option(name: str, help_: str, default: str = "", **more: Any) -> None:
        variable = "TAILKEEPER_" + name.upper().replace("-", "_")
        value = environment.get(variable, "").strip() or default
        parser.add_argument(f"--{name}", default=value, help=f"{help_} ({variable})", **more)

    option("worker-image", "image of new worker pods; pods that run keep theirs")
    option("worker-template", "file (YAML or JSON) with a pod template overlay for all workers")
    option("namespaces", "where to look for policies, parted by commas; default: everywhere")
    option("prometheus-url", "base address of the Prometheus that scrapes the workers; default: none")
    option("prometheus-credentials", "folder with token, or username and password; ca.crt; tls.crt and tls.key")
    option("prometheus-headers", "headers of every query, parted by commas: X-Scope-OrgID=team-a")
    option(
        "signals",
        "where the tuner reads from: prometheus, direct (it scrapes the workers), or both (the workers' own numbers "
        "decide as long as Prometheus sees the same workers); default: both with a Prometheus, else direct",
        choices=("", *Signals),
    )
    option("tick-seconds", "how often workers are asked what they apply", "5", type=float)
    option("relist-seconds", "how often everything is listed anew, in case a watch missed something", "300", type=float)
    option("concurrency", "policies that are reconciled side by side", "8", type=int)
    option("http-host", "address of /healthz, /readyz and /metrics; default: all")
    option("http-port", "port of /healthz, /readyz and /metrics", "8080", type=int)
    option("log-format", "text or json", "text", choices=("text", "json"))
    option("log-level", "debug, info, warning or error", "info", choices=("debug", "info", "warning", "error"))
    option("service-account-dir", "folder with token and ca.crt", str(SERVICE_ACCOUNT_DIR), type=Path)
    option("login-seconds", "how often the watches log in anew, because tokens rotate", "100", type=float)
    given = parser.parse_args(arguments)
    if not given.worker_image:
        parser.error("--worker-image (or TAILKEEPER_WORKER_IMAGE) is needed")
    for name in ("tick_seconds", "relist_seconds", "login_seconds", "concurrency"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be over 0")
    try:
        prometheus = _prometheus(given.prometheus_url, given.prometheus_credentials, given.prometheus_headers)
        signals = Signals(given.signals or (Signals.BOTH if prometheus else Signals.DIRECT))
    except ValueError as error:
        parser.error(str(error))
    if signals is not Signals.DIRECT and prometheus is None:
        parser.error(f"--signals={signals.value} needs --prometheus-url")
    try:
        template = _read_template(given.worker_template)
    except (OSError, ValueError) as error:
        parser.error(f"--worker-template: {error}")
    return Config(
        worker_image=given.worker_image,
        worker_template=template,
        namespaces=tuple(sorted({name.strip() for name in given.namespaces.split(",")} - {""})),
        signals=signals,
        prometheus=prometheus,
        tick_s=given.tick_seconds,
        relist_s=given.relist_seconds,
        concurrency=given.concurrency,
        http_host=given.http_host,
        http_port=given.http_port,
        log_format=given.log_format,
        log_level=given.log_level,
        service_account_dir=Path(given.service_account_dir),
        login_s=given.login_seconds,
    )


def _prometheus(url: str, credentials: str, headers: str) -> Access | None:
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--prometheus-url: {url} is no address: write http://HOST:PORT or https://…")
    pairs = [part.partition("=") for part in filter(None, (part.strip() for part in headers.split(",")))]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise ValueError(f"--prometheus-headers: {headers}: write NAME=VALUE, parted by commas")
    return Access(
        url=url,
        timeout_s=PROMETHEUS_TIMEOUT_S,
        headers={name.strip(): value.strip() for name, _, value in pairs},
        credentials=Path(credentials) if credentials else None,
    )


def _read_template(path: str) -> Mapping[str, Any]:
    if not path:
        return {}
    try:
        template = yaml.safe_load(Path(path).read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(template, dict) or template.keys() - {"metadata", "spec"}:
        raise ValueError(f"{path} must be a map with metadata and spec")
    try:
        merge_pod_template({"metadata": {}, "spec": {"containers": [{"name": CONTAINER}]}}, template)
    except InvalidOverlay as error:
        raise ValueError(f"{path}: {error}") from error
    return template
