"""At rest with live workers: what does the operator write while nothing changes?

usage: python -m benchmarks.ground_rest [--policies 3] [--minutes 10]

On the local cluster, with the operator by Helm, signals from Prometheus and the workers, retune Auto. One of the
instances gets 5 requests a second throughout. Counted from the operator's own counter of requests to the API server."""

import argparse
import asyncio
import collections
import re
import time

import httpx

from benchmarks.results_file import keep
from tailkeeper.bench.plan import Limits, Plan, Target
from tailkeeper.bench.run import run_load
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.loads import parse_arrivals
from tests.e2e import cluster

NAMESPACE = "default"
READS = ("get", "list", "watch")
SETTLE_S = 90.0
"""Conditions about what is measured are written when it has lasted: 60 s of look-back and some."""


def requests() -> collections.Counter[str]:
    """The operator's requests to the API server so far: `verb kind`."""
    (pod,) = cluster.get("pods", cluster.OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=tailkeeper")["items"]
    text = httpx.get(f"http://{pod['status']['podIP']}:8080/metrics", timeout=5).text
    found: collections.Counter[str] = collections.Counter()
    for labels, value in re.findall(r"^tailkeeper_operator_api_requests_total(\{.*\}) (\S+)$", text, re.MULTILINE):
        name = " ".join(re.findall(rf'{label}="([^"]*)"', labels)[0] for label in ("verb", "kind"))
        found[name] += int(float(value))
    return found


def writes(of: collections.Counter[str]) -> int:
    """How many of them change something."""
    return sum(count for name, count in of.items() if name.split()[0].lower() not in READS)


def reachable(url: str) -> bool:
    """Whether it answers: right after a pod is ready the node's rules for its Service may not be there yet."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


async def measure(names: list[str], minutes: float) -> dict[str, object]:
    plan = Plan(
        target=Target(f"{cluster.address(f'{names[0]}-minilm', NAMESPACE)}/v1/embeddings", model="minilm"),
        loads=(TierLoad("interactive", parse_arrivals("poisson:5")),),
        other_limits=Limits(sla_ms=20_000),
        duration_s=SETTLE_S + 60 * minutes + 5,
    )
    ready = f"{cluster.address(f'{names[0]}-minilm', NAMESPACE)}/v2/health/ready"
    cluster.wait("the Service reaches its pod", lambda: reachable(ready), 30)
    load = asyncio.create_task(run_load(plan))
    await asyncio.sleep(SETTLE_S)
    before, began_s = await asyncio.to_thread(requests), time.monotonic()
    await asyncio.sleep(60 * minutes)
    during = await asyncio.to_thread(requests) - before
    lasted_s = time.monotonic() - began_s
    report = await load
    return {
        "policies": len(names),
        "minutes": round(lasted_s / 60, 1),
        "writes": writes(during),
        "requests_by_verb_and_kind": dict(during),
        "served_meanwhile": report.total.outcomes.ok,
        "failed_meanwhile": report.total.sent - report.total.outcomes.ok - report.total.outcomes.late,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    names = [f"rest-{number}" for number in range(arguments.policies)]
    cluster.apply(NAMESPACE, *[cluster.policy(name) for name in names])
    try:
        for name in names:
            cluster.wait_condition(name, NAMESPACE, "Ready", "True", timeout_s=300)
        figures = asyncio.run(measure(names, arguments.minutes))
    finally:
        cluster.kubectl("delete", "batchingpolicy", *names, "-n", NAMESPACE, "--ignore-not-found")
    command = f"python -m benchmarks.ground_rest --policies {arguments.policies} --minutes {arguments.minutes:g}"
    keep("ground-rest", command, figures)


if __name__ == "__main__":
    main()
