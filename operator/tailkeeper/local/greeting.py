"""What is said of an instance once it serves: where, for whom, and how to try it."""

import json
import shlex
from collections.abc import Sequence
from typing import Final

from tailkeeper.api.enums import Engine
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.resolve import resolve
from tailkeeper.local.events import Event, Happening
from tailkeeper.local.launch import Launch

_TEXT: Final = "late arrivals waited for a batch to fill"


def greeting(policy: BatchingPolicy, name: str, workers: Sequence[Launch]) -> Event:
    """Of all workers of this instance."""
    instance = next(each for each in policy.spec.instances if each.name == name)
    settings = resolve(policy.spec, instance)
    tiers = ", ".join(
        f"{tier.name} {tier.deadline_ms} ms" + (" (default)" if tier.name == settings.default_tier else "")
        for tier in settings.tiers
    )
    try_it = _curl(workers[0].url, instance.model.engine, instance.model.name)
    lines = [f"serves {instance.model.name}; p99 by tier: {tiers}"]
    lines += [f"  {worker.url}  (metrics: {worker.metrics_url})" for worker in workers]
    lines.append(f"  {try_it}")
    facts = {
        "model": instance.model.name,
        "urls": [worker.url for worker in workers],
        "metrics": [worker.metrics_url for worker in workers],
        "tiers": {tier.name: tier.deadline_ms for tier in settings.tiers},
        "defaultTier": settings.default_tier,
        "curl": try_it,
    }
    return Event(Happening.READY, "\n".join(lines), name, facts=facts)


def _curl(url: str, engine: Engine, model: str) -> str:
    body: dict[str, object]
    match engine:
        case Engine.ENCODER:
            path, body = "/v1/embeddings", {"model": model, "input": _TEXT}
        case Engine.CAUSAL_LM | Engine.UPSTREAM:
            messages = [{"role": "user", "content": "Why do late arrivals wait?"}]
            path, body = "/v1/chat/completions", {"model": model, "max_tokens": 32, "messages": messages}
        case _:
            return f"curl -s {url}/v2/models/{model}"
    return f"curl -s {url}{path} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
