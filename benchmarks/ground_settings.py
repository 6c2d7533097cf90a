"""From `kubectl patch` of a policy to the new setting in every worker of an instance with three replicas.

usage: python -m benchmarks.ground_settings [--patches 50] [--file-patches 10]

Time counts from the start of `kubectl patch` (its own start-up included) to the first answer of the last worker
that shows the value, looking every 10 ms. Pods must be the same ones afterwards, with no restart. Then the same with no
token in the pods, so that workers read the mounted file that the kubelet refreshes."""

import argparse
import json
import secrets
import statistics
import time

import httpx

from benchmarks.results_file import keep, percentile
from tests.e2e import cluster

POLICY = "settings"
REPLICAS = 3


def identity(namespace: str) -> list[tuple[str, int]]:
    """UID and restarts of each worker pod."""
    return sorted(
        (pod["metadata"]["uid"], sum(status["restartCount"] for status in pod["status"]["containerStatuses"]))
        for pod in cluster.pods(namespace, POLICY)
    )


def measure(namespace: str, patches: int, timeout_s: float) -> dict[str, object]:
    """Patches windowBusy again and again; figures in seconds."""
    addresses = [pod["status"]["podIP"] for pod in cluster.pods(namespace, POLICY)]
    assert len(addresses) == REPLICAS, addresses
    before = identity(namespace)
    from_start, from_return = [], []
    with httpx.Client(timeout=5) as client:
        for number in range(patches):
            window = 8 + number % 8
            started = time.monotonic()
            patch = json.dumps({"spec": {"batching": {"windowBusy": window}}})
            cluster.kubectl("patch", "batchingpolicy", POLICY, "-n", namespace, "--type=merge", "-p", patch)
            returned = time.monotonic()
            waiting = set(addresses)
            while waiting:
                for address in sorted(waiting):
                    applied = client.get(f"http://{address}:9000/settings").json()["settings"]
                    if applied["windowBusy"] == window:
                        waiting.discard(address)
                if time.monotonic() - started > timeout_s:
                    raise SystemExit(f"patch {number}: {sorted(waiting)} did not apply it within {timeout_s:g} s")
                time.sleep(0.01)
            from_start.append(time.monotonic() - started)
            from_return.append(max(0.0, time.monotonic() - returned))
            time.sleep(0.2)
    assert identity(namespace) == before, "a pod was replaced or restarted"

    def spread(values: list[float]) -> dict[str, float]:
        return {
            "median_s": round(statistics.median(values), 3),
            "p99_s": round(percentile(values, 99), 3),
            "max_s": round(max(values), 3),
        }

    return {
        "patches": patches,
        "replicas": REPLICAS,
        "from_start_of_kubectl": spread(from_start),
        "from_return_of_kubectl": spread(from_return),
        "pods_replaced_or_restarted": 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=50)
    parser.add_argument("--file-patches", type=int, default=10)
    arguments = parser.parse_args()
    namespace = f"bench-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", namespace)
    try:
        figures = {}
        for how, template, patches, timeout_s in (
            ("watch", None, arguments.patches, 10),
            ("mounted_file", {"spec": {"automountServiceAccountToken": False}}, arguments.file_patches, 180),
        ):
            instance = cluster.instance("minilm", replicas=REPLICAS)
            if template:
                instance["template"] = template
            cluster.apply(namespace, cluster.policy(POLICY, instances=[instance]))
            cluster.wait_condition(POLICY, namespace, "Ready", "True", timeout_s=300)
            cluster.wait("old pods are gone", lambda: len(cluster.pods(namespace, POLICY)) == REPLICAS, timeout_s=120)
            print(f"{how}: {patches} patches")
            figures[how] = measure(namespace, patches, timeout_s)
            cluster.kubectl("delete", "batchingpolicy", POLICY, "-n", namespace)
            cluster.wait("pods are gone", lambda: not cluster.pods(namespace, POLICY), timeout_s=120)
        keep("ground-settings", "make bench-ground (benchmarks/ground_settings.py)", figures)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


if __name__ == "__main__":
    main()
