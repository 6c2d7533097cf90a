"""The operator as a process of its own against a test's API server, and a view of what it did there."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tailkeeper.app.config import read_config
from tailkeeper.app.main import Operator
from tailkeeper.reconcile.kinds import DEPLOYMENT, OWNED, POD, POLICY, Kind
from tailkeeper.reconcile.moves import Answer, Proposal
from tailkeeper.reconcile.store import Key
from tests.integration.control_plane import ControlPlane, free_port
from tests.integration.helm import Helm

Object = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
HOME = "tailkeeper-system"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
WITHIN_S = 30.0
"""Longest wait for what usually takes well under a second: other work may use the cores."""


def eventually(what: Callable[[], Any], within_s: float = WITHIN_S, every_s: float = 0.05) -> Any:
    """The first truthy answer; AssertionError, with the last answer, when none came in time."""
    deadline_s = time.monotonic() + within_s
    while not (answer := what()):
        assert time.monotonic() < deadline_s, f"not within {within_s} s; the last answer was {answer!r}"
        time.sleep(every_s)
    return answer


def always(what: Callable[[], Any], for_s: float, every_s: float = 0.1) -> None:
    """AssertionError when it is ever false."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        assert what()
        time.sleep(every_s)


def grant_chart_role(plane: ControlPlane, folder: Path) -> None:
    """Creates the chart's service account with its cluster-wide role, and nothing else of the chart."""
    wanted = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    objects = [o for o in Helm(folder).render({}, namespace=HOME) if o["kind"] in wanted]
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([home, *objects]))


class OperatorProcess:
    """`python -m tailkeeper.app` with exactly the chart's role."""

    def __init__(
        self, plane: ControlPlane, folder: Path, *flags: str, environment: dict[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.log = folder / "operator.log"
        if environment is None:
            token = plane.service_account_token(HOME, "tailkeeper")
            environment = {"KUBECONFIG": str(plane.write_kubeconfig("operator", token))}
        defaults = ("--worker-image=worker:1", f"--http-port={self.port}", "--http-host=127.0.0.1", "--tick-seconds=1")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailkeeper.app", *defaults, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY / "operator"), **environment},
            )

    def wait_until_watching(self) -> None:
        """Returns when every watch is up."""
        try:
            eventually(lambda: self.process.poll() is None and self._all_watch())
        except AssertionError as error:
            error.add_note(self.log.read_text(errors="replace")[-5000:])
            raise

    def get(self, path: str) -> httpx.Response:
        """One request to its own port."""
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5)

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the samples of this name that carry these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            if match := re.match(rf"{name}(?:{{(.*)}})? (\S+)$", line):
                carried = dict(re.findall(r'(\w+)="([^"]*)"', match[1] or ""))
                if labels.items() <= carried.items():
                    total += float(match[2])
        return total

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends it; its exit status."""
        self.process.send_signal(how)
        return self.process.wait(30)

    def _all_watch(self) -> bool:
        try:
            running = self.metric("tailkeeper_operator_watchers", state="running")
            return running == self.metric("tailkeeper_operator_watchers", state="expected") > 0
        except httpx.HTTPError:
            return False


class OperatorThread:
    """The operator in this process, in an event loop and a thread of its own, so that a test can reach inside."""

    def __init__(self, *flags: str) -> None:
        self._config = read_config([*flags, "--worker-image=worker:1", "--http-host=127.0.0.1"], {})
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def healthy(self) -> bool:
        """What its liveness probe would see."""
        try:
            return httpx.get(f"http://127.0.0.1:{self._config.http_port}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def tasks(self) -> set[str]:
        """Names of the tasks that run in its loop."""
        return {task.get_name() for task in asyncio.all_tasks(self._loop)}

    def cancel(self, name: str) -> None:
        """Ends one of its tasks by cancellation."""
        (task,) = (task for task in asyncio.all_tasks(self._loop) if task.get_name() == name)
        self._loop.call_soon_threadsafe(task.cancel)

    def propose(self, key: Key, instance: str, proposal: Proposal) -> Answer:
        """What the tuner does: asks for a new settings generation."""
        return asyncio.run_coroutine_threadsafe(self._operator.propose(key, instance, proposal), self._loop).result(30)

    def stop(self) -> None:
        """Ends it."""
        self._loop.call_soon_threadsafe(self._operator.stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._operator = Operator(self._config)
        await self._operator.run()


class Field:
    """One namespace as the administrator sees it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.client = plane.client()

    def apply(self, name: str = "chat", spec: Object | None = None, annotations: Object | None = None) -> Object:
        """Creates or changes a policy as `kubectl apply --server-side` does."""
        policy = {
            "apiVersion": POLICY.api_version,
            "kind": POLICY.name,
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": spec or one_instance(),
        }
        answer = self.client.patch(
            POLICY.path(self.namespace, name),
            params={"fieldManager": "user", "force": "true"},
            content=json.dumps(policy),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        assert answer.is_success, answer.text
        return answer.json()

    def create(self, kind: Kind, body: Object) -> Object:
        """Creates an object as somebody else would."""
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        answer = self.client.post(kind.path(self.namespace), json=manifest)
        assert answer.is_success, answer.text
        return answer.json()

    def get(self, kind: Kind, name: str = "chat-small") -> Object | None:
        """One object; None when there is none."""
        answer = self.client.get(kind.path(self.namespace, name))
        return answer.json() if answer.is_success else None

    def all_of(self, kind: Kind) -> list[Object]:
        """All objects of a kind."""
        return self.client.get(kind.path(self.namespace)).raise_for_status().json()["items"]

    def ours(self) -> dict[tuple[str, str], Object]:
        """Everything that an operator made here, by kind and name."""
        found = {}
        for kind in OWNED:
            answer = self.client.get(kind.path(self.namespace), params={"labelSelector": kind.label_selector})
            for item in answer.raise_for_status().json()["items"]:
                found[kind.name, item["metadata"]["name"]] = item
        return found

    def versions(self) -> dict[tuple[str, str], str]:
        """Resource versions of everything that the operator writes: the same again means that nothing was written."""
        seen = {key: item["metadata"]["resourceVersion"] for key, item in self.ours().items()}
        for policy in self.all_of(POLICY):
            seen[POLICY.name, policy["metadata"]["name"]] = policy["metadata"]["resourceVersion"]
        return seen

    def edit(self, kind: Kind, patch: Object, name: str = "chat-small", subresource: str | None = None) -> Object:
        """Changes an object as somebody else would: a merge patch under another manager's name."""
        answer = self.client.patch(
            kind.path(self.namespace, name, subresource),
            params={"fieldManager": "somebody"},
            content=json.dumps(patch),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert answer.is_success, answer.text
        return answer.json()

    def delete(self, kind: Kind, name: str = "chat-small") -> None:
        """Deletes an object."""
        self.client.delete(kind.path(self.namespace, name)).raise_for_status()

    def condition(self, type_: str, name: str = "chat") -> Object:
        """A condition of the policy; empty while there is none."""
        policy = self.get(POLICY, name) or {}
        conditions = policy.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    def instance(self, name: str = "small", policy: str = "chat") -> Object:
        """The status of one instance; empty while there is none."""
        found = self.get(POLICY, policy) or {}
        return next((i for i in found.get("status", {}).get("instances", []) if i["name"] == name), {})

    def settings(self, config_map: str = "chat-small-settings") -> Object:
        """The settings document; empty while there is none."""
        answer = self.client.get(f"/api/v1/namespaces/{self.namespace}/configmaps/{config_map}")
        return json.loads(answer.json()["data"]["settings.json"]) if answer.is_success else {}

    def events(self, reason: str | None = None) -> list[Object]:
        """Events about policies."""
        items = self.client.get(f"/api/v1/namespaces/{self.namespace}/events").json()["items"]
        about = [item for item in items if item["involvedObject"]["kind"] == POLICY.name]
        return [item for item in about if reason in (None, item["reason"])]

    def has(self, policy: str = "chat", *instances: str) -> bool:
        """Whether every kind of object is there for these instances, and the status says so."""
        made = self.ours()
        for instance in instances or ("small",):
            for kind in OWNED:
                suffix = "-settings" if kind.name == "ConfigMap" else ""
                if (kind.name, f"{policy}-{instance}{suffix}") not in made:
                    return False
        return bool(self.condition("Accepted", policy))

    def set_pods(self, status: Object, of: str = "chat-small") -> list[Object]:
        """Writes the status of the Deployment's pods, as a kubelet would; the pods."""
        pods = eventually(lambda: [p for p in self.all_of(POD) if p["metadata"]["name"].startswith(f"{of}-")])
        for pod in pods:
            self.set_pod(pod, status)
        return pods

    def set_pod(self, pod: Object, status: Object) -> None:
        """Writes one pod's status, as a kubelet would."""
        self.edit(POD, {"status": status}, pod["metadata"]["name"], "status")

    def template(self) -> Object:
        """The pod template of the one Deployment."""
        deployment = self.get(DEPLOYMENT)
        assert deployment is not None
        return deployment["spec"]["template"]


def writes_of_operator(plane: ControlPlane, namespace: str | None = None) -> list[tuple[str, str, int]]:
    """What the operator's account wrote (verb, resource, HTTP status), from the server's audit log."""
    found = []
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef", {})
        if (
            entry["user"]["username"] == f"system:serviceaccount:{HOME}:tailkeeper"
            and entry["verb"] in WRITES
            and namespace in (None, reference.get("namespace"))
        ):
            found.append((entry["verb"], reference["resource"], entry["responseStatus"]["code"]))
    return found


def refusals_of_operator(plane: ControlPlane, namespace: str) -> list[str]:
    """What the operator's role did not allow in a namespace."""
    return [
        f"{entry['verb']} {entry['requestURI']}"
        for entry in map(json.loads, plane.audit_log.read_text().splitlines())
        if entry["user"]["username"] == f"system:serviceaccount:{HOME}:tailkeeper"
        and entry["responseStatus"]["code"] == 403
        and entry.get("objectRef", {}).get("namespace") == namespace
    ]


def one_instance(**changes: Any) -> Object:
    """A spec with one instance `small`; keywords change the instance."""
    model = {"name": "minilm", "engine": "encoder", "path": "/models/minilm"}
    return {"instances": [{"name": "small", "replicas": 1, "model": model, **changes}]}


def ready_status(ip: str = "127.0.0.1") -> Object:
    """The status of a pod that serves."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
    }


@contextmanager
def running(operator: OperatorProcess) -> Iterator[OperatorProcess]:
    """Waits until it watches, and ends it after; its log comes with a failure."""
    try:
        operator.wait_until_watching()
        yield operator
    except BaseException as error:
        error.add_note(operator.log.read_text(errors="replace")[-5000:])
        raise
    finally:
        if operator.process.poll() is None:
            operator.stop()
