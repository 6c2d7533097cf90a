"""The local cluster as tests and benchmarks use it: kubectl, helm, and waiting that says what it saw last."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("TAILKEEPER_CACHE") or Path.home() / ".cache" / "tailkeeper")
KUBECONFIG = Path(os.environ.get("KUBECONFIG") or CACHE / "cluster" / "admin.kubeconfig")
OPERATOR_NAMESPACE = "tailkeeper"
MODEL_PATH = "/models/all-minilm-l6-v2"

Object = dict[str, Any]
Found = TypeVar("Found")


class Failed(AssertionError):
    """A command failed, or something did not come about in time."""


def environment() -> dict[str, str]:
    """Environment of a command: the cluster's programs first on the PATH."""
    return os.environ | {"PATH": f"{CACHE / 'bin'}:{os.environ['PATH']}", "KUBECONFIG": str(KUBECONFIG)}


def run(*command: str | Path, stdin: str | None = None, timeout_s: float = 120, ok: bool = True) -> str:
    """Output of a command with the cluster's programs first on the PATH; Failed with its errors when it fails."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment(), cwd=ROOT
    )
    if ok and done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, timeout_s: float = 120, ok: bool = True) -> str:
    """What `kubectl ARGUMENTS` prints."""
    return run("kubectl", *arguments, stdin=stdin, timeout_s=timeout_s, ok=ok)


def get(kind: str, namespace: str, *arguments: str) -> Object:
    """One object, or a list of them."""
    found: Object = json.loads(kubectl("get", kind, "-n", namespace, "-o", "json", *arguments))
    return found


def wait(what: str, look: Callable[[], Found | None], timeout_s: float = 60, every_s: float = 0.2) -> Found:
    """Looks until it finds something true. Failed with what the last look said."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = found = look()
            if found:
                return found
        except (Failed, OSError, LookupError) as error:
            last = error
        time.sleep(every_s)
    raise Failed(f"{what}: not within {timeout_s:g} s; last seen: {last}")


def policy(name: str, *, instances: list[Object] | None = None, **spec: Any) -> Object:
    """A policy of one small encoder instance that fits on any node. Its SLA is for a node that also starts pods."""
    spec = {"batching": {"tailLatencySlaMs": 20_000}} | spec
    return {
        "apiVersion": "tailkeeper.dev/v1alpha1",
        "kind": "BatchingPolicy",
        "metadata": {"name": name},
        "spec": {"trafficClass": "online", "instances": instances or [instance("minilm")], "drainSeconds": 20} | spec,
    }


def instance(name: str, replicas: int = 1, **fields: Any) -> Object:
    """An instance of the encoder on MiniLM, from the node's read-only mount of models."""
    model = {"name": "minilm", "engine": "encoder", "path": MODEL_PATH}
    return {"name": name, "replicas": replicas, "model": model} | fields


def apply(namespace: str, *objects: Object) -> None:
    """Applies objects as a user would."""
    kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )


def conditions(name: str, namespace: str) -> dict[str, Object]:
    """A policy's conditions by type."""
    status = get("batchingpolicy", namespace, name).get("status", {})
    return {condition["type"]: condition for condition in status.get("conditions", [])}


def wait_condition(name: str, namespace: str, type_: str, status: str, timeout_s: float = 120) -> Object:
    """Waits for a condition of the policy's current generation."""

    def look() -> Object | None:
        found = get("batchingpolicy", namespace, name)
        for condition in found.get("status", {}).get("conditions", []):
            fresh = condition.get("observedGeneration") == found["metadata"]["generation"]
            if condition["type"] == type_ and condition["status"] == status and fresh:
                return condition
        raise LookupError(json.dumps(found.get("status", {}))[:2000])

    return wait(f"{namespace}/{name}: {type_}={status}", look, timeout_s)


def pods(namespace: str, policy_name: str, instance_name: str = "minilm") -> list[Object]:
    """An instance's pods that are not going away."""
    selector = f"tailkeeper.dev/policy={policy_name},tailkeeper.dev/model-instance={instance_name}"
    items: list[Object] = get("pods", namespace, "-l", selector)["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def address(service: str, namespace: str) -> str:
    """Base URL of a Service, as this node reaches it."""
    return f"http://{get('service', namespace, service)['spec']['clusterIP']}:8000"
