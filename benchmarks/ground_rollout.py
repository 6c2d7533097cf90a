"""A rolling update of an instance under an open-loop load: how many of 5000 requests fail.

usage: python -m benchmarks.ground_rollout [--requests 5000] [--rate 20] [--replicas 2]

The load is sent from this node to the Service. While it runs, the pod template is changed again and again (an
annotation), each time until all pods are new and ready. The SLA is wide: the node has to start the new pods as well,
and what is measured is whether requests are lost, not how long they take."""

import argparse
import asyncio
import secrets
import time

from benchmarks.results_file import keep
from tailkeeper.bench.plan import Limits, Plan, Target
from tailkeeper.bench.run import run_load
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.loads import parse_arrivals
from tests.e2e import cluster

POLICY = "rollout"


def change_template(namespace: str, replicas: int, number: int) -> None:
    """Applies the policy with another annotation on the pods."""
    template = {"metadata": {"annotations": {"rollout": str(number)}}}
    instance = cluster.instance("minilm", replicas=replicas, template=template)
    cluster.apply(namespace, cluster.policy(POLICY, instances=[instance]))


def is_rolled_out(namespace: str, replicas: int, number: int) -> bool:
    """Whether all pods have the annotation and are ready."""
    pods = cluster.pods(namespace, POLICY)
    new = [pod for pod in pods if pod["metadata"].get("annotations", {}).get("rollout") == str(number)]
    ready = [
        pod
        for pod in new
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]
    return len(pods) == len(ready) == replicas


async def roll_until(stop: asyncio.Event, namespace: str, replicas: int) -> int:
    """Rolls out again and again; the number of rollouts that ended."""
    number = 0
    while not stop.is_set():
        number += 1
        await asyncio.to_thread(change_template, namespace, replicas, number)
        started = time.monotonic()
        while not await asyncio.to_thread(is_rolled_out, namespace, replicas, number):
            if stop.is_set():
                return number - 1
            if time.monotonic() - started > 240:
                raise SystemExit(f"rollout {number} did not end")
            await asyncio.sleep(1)
        print(f"rollout {number} took {time.monotonic() - started:.0f} s")
    return number


async def measure(namespace: str, arguments: argparse.Namespace) -> dict[str, object]:
    plan = Plan(
        target=Target(f"{cluster.address(f'{POLICY}-minilm', namespace)}/v1/embeddings", model="minilm"),
        loads=(TierLoad("interactive", parse_arrivals(f"poisson:{arguments.rate}")),),
        other_limits=Limits(sla_ms=20_000, timeout_ms=60_000),
        duration_s=arguments.requests * 1.2 / arguments.rate,
        max_requests=arguments.requests,
    )
    stop = asyncio.Event()
    rolling = asyncio.create_task(roll_until(stop, namespace, arguments.replicas))
    report = await run_load(plan)
    stop.set()
    rollouts = await rolling
    total = report.model_dump()["total"]
    outcomes = total["outcomes"]
    return {
        "requests": total["sent"],
        "failed": total["sent"] - outcomes["ok"] - outcomes["late"],
        "outcomes": outcomes,
        "statuses": total["statuses"],
        "rollouts": rollouts,
        "replicas": arguments.replicas,
        "rate_per_s": arguments.rate,
        "latency_p50_ms": total["latency_ms"]["p50"],
        "latency_p99_ms": total["latency_ms"]["p99"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--replicas", type=int, default=2)
    arguments = parser.parse_args()
    namespace = f"bench-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", namespace)
    try:
        change_template(namespace, arguments.replicas, 0)
        cluster.wait_condition(POLICY, namespace, "Ready", "True", timeout_s=300)
        figures = asyncio.run(measure(namespace, arguments))
        keep("ground-rollout", "make bench-ground (benchmarks/ground_rollout.py)", figures)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


if __name__ == "__main__":
    main()
