"""Reads the workers of policies: their own pages through the API server, or a Prometheus."""

import http.client
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from tailkeeper.api.names import LABEL_INSTANCE, LABEL_POLICY, PORT_METRICS, PORT_NAME_METRICS
from tailkeeper.cli import worker_pages as pages
from tailkeeper.cli.errors import UserError
from tailkeeper.cli.kube_client import KubeClient, NotThere, Unanswered
from tailkeeper.cli.worker_pages import Point, Reading, Summary

MOST_WORKERS: Final = 16
"""Of an instance: a page takes about 10 ms to fetch, one after the other."""
SPAN_S: Final = 60.0
"""What a watch looks back on."""
PROMETHEUS_RANGE: Final = "5m"
PROMETHEUS_RANGE_S: Final = 300.0
TIMEOUT_S: Final = 10.0


class At(NamedTuple):
    """One instance."""

    namespace: str
    policy: str
    instance: str


@dataclass
class Reads:
    """What was read, and what could not be and why."""

    summaries: dict[At, Summary] = field(default_factory=dict)
    over: str = ""
    """What the figures are over, in words."""
    complaints: list[str] = field(default_factory=list)


@dataclass
class PodPages:
    """Reads pages through the API server's proxy, again and again."""

    client: KubeClient
    _kept: deque[tuple[float, dict[At, dict[str, Reading]]]] = field(default_factory=deque)

    def once(self, policies: Sequence[At], sample_s: float) -> Reads:
        """Latencies since the workers started, busy over a sample of seconds."""
        before, complaints, began_s = self._timed(policies)
        now, ended_s = before, began_s
        if sample_s > 0 and before:
            time.sleep(sample_s)
            now, complaints, ended_s = self._timed(policies)
        seconds = ended_s - began_s
        reads = Reads(complaints=complaints)
        for at, readings in now.items():
            growth = pages.grown(readings, before.get(at, {}))
            reads.summaries[at] = pages.summarise(readings, readings, pages.busy_shares(growth, seconds))
        busy = f"; busy: {seconds:.1f} s" if seconds > 0 else ""
        reads.over = f"latencies and timeouts: since the workers started{busy}"
        return reads

    def again(self, policies: Sequence[At]) -> Reads:
        """Over the last minute, less in the beginning."""
        now, complaints, now_s = self._timed(policies)
        while len(self._kept) > 1 and self._kept[1][0] <= now_s - SPAN_S:
            self._kept.popleft()
        began_s, before = self._kept[0] if self._kept else (now_s, {})
        self._kept.append((now_s, now))
        reads = Reads(complaints=complaints, over=f"measured over the last {now_s - began_s:.0f} s")
        for at, readings in now.items():
            growth = pages.grown(readings, before.get(at, {}))
            busy = pages.busy_shares(growth, now_s - began_s)
            reads.summaries[at] = pages.summarise(growth, readings, busy)
        return reads

    def _timed(self, policies: Sequence[At]) -> tuple[dict[At, dict[str, Reading]], list[str], float]:
        found: dict[At, dict[str, Reading]] = {}
        complaints: list[str] = []
        for at in policies:
            try:
                found[at] = self._workers(at)
            except (Unanswered, NotThere, UserError) as error:
                complaints.append(f"the workers of {at.policy}/{at.instance} cannot be read: {error}")
        return found, complaints, time.monotonic()

    def _workers(self, at: At) -> dict[str, Reading]:
        selector = f"{LABEL_POLICY}={at.policy},{LABEL_INSTANCE}={at.instance}"
        pods = self.client.get(f"/api/v1/namespaces/{at.namespace}/pods", labelSelector=selector)["items"]
        ready = [pod for pod in pods if _is_ready(pod)][:MOST_WORKERS]
        found = {}
        for pod in ready:
            name = pod["metadata"]["name"]
            path = f"/api/v1/namespaces/{at.namespace}/pods/{name}:{_metrics_port(pod)}/proxy/metrics"
            found[name] = pages.read(pages.parse(self.client.page(path)))
        return found


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _metrics_port(pod: Mapping[str, Any]) -> int:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            if port.get("name") == PORT_NAME_METRICS:
                return int(port["containerPort"])
    return PORT_METRICS


def from_prometheus(url: str) -> Reads:
    """All instances that it knows, over five minutes. Raises UserError."""
    by = "policy_namespace,policy,model_instance"
    queries = {
        pages.REQUEST_BUCKET: f"sum by ({by},tier,le) (increase({pages.REQUEST_BUCKET}[{PROMETHEUS_RANGE}]))",
        pages.HOLD_BUCKET: f"sum by ({by},tier,le) (increase({pages.HOLD_BUCKET}[{PROMETHEUS_RANGE}]))",
        pages.BUSY: f"avg by ({by}) (increase({pages.BUSY}[{PROMETHEUS_RANGE}]))",
        pages.REQUESTS: f"sum by ({by}) (increase({pages.REQUESTS}[{PROMETHEUS_RANGE}]))",
        pages.LATE: f"sum by ({by},objective) (increase({pages.LATE}[{PROMETHEUS_RANGE}]))",
        pages.WINDOW: f"avg by ({by}) ({pages.WINDOW})",
        pages.EFFICIENCY: f"avg by ({by}) ({pages.EFFICIENCY})",
        pages.QUEUE: f"sum by ({by}) ({pages.QUEUE})",
    }
    points: dict[At, list[Point]] = {}
    for name, query in queries.items():
        for labels, value in _query(url, query):
            at = At(labels.get("policy_namespace", ""), labels.get("policy", ""), labels.get("model_instance", ""))
            points.setdefault(at, []).append(Point(name, labels, value))
    reads = Reads(over=f"measured over {PROMETHEUS_RANGE} by {url}")
    for at, series in points.items():
        whole = {"": pages.read(series)}
        reads.summaries[at] = pages.summarise(whole, whole, pages.busy_shares(whole, PROMETHEUS_RANGE_S))
    return reads


def _query(url: str, query: str) -> list[tuple[dict[str, str], float]]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--prometheus {url}: write http://HOST:PORT")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/query?{urlencode({'query': query})}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer.get("status") != "success":
            raise UserError(f"{url}: {answer.get('error', 'no answer')}")
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{url} cannot be reached ({error}): is it a Prometheus? forward its port first") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{url} does not answer as a Prometheus does") from None
