"""Rolling update and scale-down while requests are in flight: none is lost."""

import asyncio
import json
import time

import httpx

from tests.e2e import cluster


async def _load(url: str, rate_per_s: float, until: asyncio.Event) -> list[str]:
    """Open-loop embeddings; what went wrong with each that did."""
    failures: list[str] = []
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:

        async def one(number: int) -> None:
            try:
                answer = await client.post("/v1/embeddings", json={"model": "minilm", "input": f"request {number}"})
                if answer.status_code != 200:
                    failures.append(f"{answer.status_code} {answer.text[:200]}")
            except httpx.HTTPError as error:
                failures.append(repr(error))

        tasks, started, number = [], time.monotonic(), 0
        while not until.is_set():
            tasks.append(asyncio.create_task(one(number)))
            number += 1
            await asyncio.sleep(max(0.0, started + number / rate_per_s - time.monotonic()))
        await asyncio.gather(*tasks)
    assert number > 100
    return failures


async def test_no_request_is_lost_in_a_rolling_update_and_a_scale_down(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("rolling", instances=[cluster.instance("minilm", replicas=2)]))
    cluster.wait_condition("rolling", namespace, "Ready", "True", timeout_s=240)
    before = {pod["metadata"]["uid"] for pod in cluster.pods(namespace, "rolling")}
    stop = asyncio.Event()
    load = asyncio.create_task(_load(cluster.address("rolling-minilm", namespace), 20, stop))
    try:
        template = {"metadata": {"annotations": {"team": "search"}}}
        instances = [cluster.instance("minilm", replicas=2, template=template)]
        await asyncio.to_thread(cluster.apply, namespace, cluster.policy("rolling", instances=instances))

        def rolled() -> bool:
            now = cluster.pods(namespace, "rolling")
            ready = [
                p for p in now if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"]["conditions"])
            ]
            return len(ready) == len(now) == 2 and not before & {pod["metadata"]["uid"] for pod in now}

        await asyncio.to_thread(cluster.wait, "both pods are new and ready", rolled, 240, 1)
        patch = json.dumps([{"op": "replace", "path": "/spec/instances/0/replicas", "value": 1}])
        await asyncio.to_thread(
            cluster.kubectl, "patch", "batchingpolicy", "rolling", "-n", namespace, "--type=json", "-p", patch
        )
        await asyncio.to_thread(
            cluster.wait, "one pod is left", lambda: len(cluster.pods(namespace, "rolling")) == 1, 60, 1
        )
        await asyncio.sleep(8)
    finally:
        stop.set()
        failures = await load
    assert failures == []
