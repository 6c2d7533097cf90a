"""What a policy's pod template may not do: a real API server refuses it and names the field, and lets it through when
it is opened."""

import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.control_plane import ControlPlane
from tests.integration.helm import Helm, Object, Values, pick

KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
POLICIES = "/apis/tailkeeper.dev/v1alpha1/namespaces/{}/batchingpolicies"
ACTIVE_WITHIN_S = 30

Spec = dict[str, Any]
NODE_FOLDER: Spec = {"volumes": [{"name": "node", "hostPath": {"path": "/mnt/models"}}]}


def worker(**fields: object) -> Spec:
    """The pod spec of an overlay that sets fields of the worker's container."""
    return {"containers": [{"name": "worker", **fields}]}


def secured(**context: object) -> Spec:
    return worker(securityContext=context)


AT = "spec.instances[small].template.spec"
IN_WORKER = f"{AT}.containers[worker]"
FORBIDDEN: dict[str, tuple[Spec, str, Values]] = {
    "a folder of the node": (NODE_FOLDER, f"{AT}.volumes[node].hostPath", {"hostPaths": ["/mnt"]}),
    "any folder of the node": (NODE_FOLDER, f"{AT}.volumes[node].hostPath", {"hostPaths": ["/"]}),
    "the node's network": ({"hostNetwork": True}, f"{AT}.hostNetwork", {"hostNetwork": True}),
    "the node's processes": ({"hostPID": True}, f"{AT}.hostPID", {"hostPID": True}),
    "the node's shared memory": ({"hostIPC": True}, f"{AT}.hostIPC", {"hostIPC": True}),
    "a port of the node": (
        worker(ports=[{"containerPort": 8000, "hostPort": 80}]),
        f"{IN_WORKER}.ports[].hostPort",
        {"hostNetwork": True},
    ),
    "privileged": (secured(privileged=True), f"{IN_WORKER}.securityContext.privileged", {"privileged": True}),
    "a privileged init container": (
        {"initContainers": [{"name": "tune", "securityContext": {"privileged": True}}]},
        f"{AT}.initContainers[tune].securityContext.privileged",
        {"privileged": True},
    ),
    "escalation": (
        secured(allowPrivilegeEscalation=True),
        f"{IN_WORKER}.securityContext.allowPrivilegeEscalation",
        {"privileged": True},
    ),
    "another /proc": (
        secured(procMount="Unmasked"),
        f"{IN_WORKER}.securityContext.procMount",
        {"privileged": True},
    ),
    "no seccomp": (
        secured(seccompProfile={"type": "Unconfined"}),
        f"{IN_WORKER}.securityContext: a profile of type Unconfined",
        {"privileged": True},
    ),
    "no seccomp for the pod": (
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        f"{AT}.securityContext: a profile of type Unconfined",
        {"privileged": True},
    ),
    "a process of the host": (
        {"securityContext": {"windowsOptions": {"hostProcess": True}}},
        f"{AT}.securityContext.windowsOptions.hostProcess",
        {"privileged": True},
    ),
    "a capability": (
        secured(capabilities={"add": ["IPC_LOCK"]}),
        f"{IN_WORKER}.securityContext.capabilities.add",
        {"capabilities": ["IPC_LOCK"]},
    ),
    "any capability": (
        secured(capabilities={"add": ["SYS_ADMIN"]}),
        f"{IN_WORKER}.securityContext.capabilities.add",
        {"capabilities": ["ALL"]},
    ),
    "another account": (
        {"serviceAccountName": "builder"},
        f"{AT}.serviceAccountName",
        {"serviceAccounts": ["builder"]},
    ),
    "another account by its old name": (
        {"serviceAccount": "builder"},
        f"{AT}.serviceAccountName",
        {"serviceAccounts": ["*"]},
    ),
}
"""What is refused, the field that the refusal names, and the values that open it."""

HARMLESS: dict[str, Spec] = {
    "nothing": {},
    "what a GPU needs": {
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        **worker(resources={"limits": {"nvidia.com/gpu": 1}}, env=[{"name": "A", "value": "b"}]),
    },
    "volumes of the cluster": {
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "m"}}, {"name": "tmp", "emptyDir": {}}]
    },
    "the account that it has anyway": {"serviceAccountName": "chat-small"},
    "what is closed, said to be closed": {
        "hostNetwork": False,
        **worker(
            securityContext={"privileged": False, "procMount": "Default", "capabilities": {"drop": ["ALL"], "add": []}},
            ports=[{"containerPort": 8000, "hostPort": 0}],
        ),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000},
    },
    "null everywhere": {
        **dict.fromkeys(("hostNetwork", "hostPID", "serviceAccountName", "securityContext", "initContainers")),
        "volumes": [{"name": "tmp", "hostPath": None}],
        "containers": [
            {"name": "worker", "securityContext": None, "ports": None},
            {"name": "a", "securityContext": {"capabilities": None, "seccompProfile": None, "privileged": None}},
            {"name": "b", "securityContext": {"capabilities": {"add": None}, "windowsOptions": None}},
        ],
    },
    "no container": {"containers": None, "volumes": None},
    "taking away": {"containers": [{"name": "sidecar", "$patch": "delete"}], "$retainKeys": ["containers"]},
}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


def policy(template: object, **metadata: object) -> Object:
    model = {"name": "minilm", "engine": "encoder", "path": "/models/m"}
    others = [{"name": "plain", "model": model}]
    small = {"name": "small", "model": model, "template": template}
    return {
        "apiVersion": "tailkeeper.dev/v1alpha1",
        "kind": "BatchingPolicy",
        "metadata": {"name": "chat", **metadata},
        "spec": {"instances": [*others, small]},
    }


class Guarded:
    """A namespace with guard rails around it. `ask` keeps nothing."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.client = plane.client()
        self.path = POLICIES.format(namespace)
        self.namespace = namespace

    def ask(self, spec: object) -> httpx.Response:
        return self.client.post(self.path, params={"dryRun": "All"}, json=policy({"spec": spec}))

    def until_active(self, closed: Spec) -> None:
        deadline = time.monotonic() + ACTIVE_WITHIN_S
        while self.ask(closed).is_success:
            assert time.monotonic() < deadline, f"still not refused after {ACTIVE_WITHIN_S} s"
            time.sleep(0.2)


@contextmanager
def guarding(plane: ControlPlane, helm: Helm, allow: Values, closed: Spec) -> Iterator[Guarded]:
    """Guard rails for a namespace of its own. `closed`: something that they refuse, to know when they are in force."""
    namespace = f"guarded-{secrets.token_hex(3)}"
    values = {"watchNamespaces": [namespace], "guardRails": {"allow": allow}, "fullnameOverride": namespace}
    objects = [o for o in helm.render(values) if o["kind"] in KINDS]
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    guarded = Guarded(plane, namespace)
    guarded.client.post("/api/v1/namespaces", json={"metadata": {"name": namespace}}).raise_for_status()
    plane.kubectl("apply", "--server-side", "--validate=strict", "--warnings-as-errors", "-f", "-", stdin=items)
    try:
        guarded.until_active(closed)
        yield guarded
    finally:
        plane.kubectl("delete", "--wait=false", "-f", "-", stdin=items)
        guarded.client.close()


@pytest.fixture(scope="module")
def guarded(crds: ControlPlane, helm: Helm) -> Iterator[Guarded]:
    """All closed, as by default."""
    with guarding(crds, helm, {}, NODE_FOLDER) as guarded:
        yield guarded


@pytest.mark.parametrize(("spec", "field", "_"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_not_opened_is_refused_and_the_field_named(guarded: Guarded, spec: Spec, field: str, _: Values) -> None:
    answer = guarded.ask(spec)
    assert answer.status_code == 403, answer.text
    assert f"{field}: not opened by the platform team (guardRails.allow." in answer.json()["message"]


@pytest.mark.parametrize("spec", HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm_is_let_through(guarded: Guarded, spec: Spec) -> None:
    answer = guarded.ask(spec)
    assert answer.is_success, answer.text


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"spec": None},
        {"spec": "x"},
        {"metadata": None},
        {"spec": {"volumes": {}}},
        {"metadata": {"annotations": None}},
    ],
)
def test_a_template_of_another_shape_is_the_operators_to_refuse(guarded: Guarded, template: object) -> None:
    """It has the words for it; none of these can become a pod."""
    answer = guarded.client.post(guarded.path, params={"dryRun": "All"}, json=policy(template))
    assert answer.is_success, answer.text


def test_an_annotation_is_no_way_around(guarded: Guarded) -> None:
    annotations = {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}
    template = {"metadata": {"annotations": annotations}}
    answer = guarded.client.post(guarded.path, params={"dryRun": "All"}, json=policy(template))
    assert "spec.instances[small].template.metadata.annotations: an unconfined" in answer.json()["message"]


def test_all_that_is_wrong_is_named_at_once_for_one_kind(guarded: Guarded) -> None:
    both = {"volumes": [{"name": name, "hostPath": {"path": "/"}} for name in ("a", "b")]}
    assert f"{AT}.volumes[a].hostPath, {AT}.volumes[b].hostPath: not" in guarded.ask(both).json()["message"]


def test_a_change_of_a_policy_is_looked_at_too_and_its_status_is_not(guarded: Guarded) -> None:
    created = guarded.client.post(guarded.path, json=policy({"spec": {}}, name="changed")).raise_for_status().json()
    at = f"{guarded.path}/changed"
    patch = {"headers": {"Content-Type": "application/merge-patch+json"}}
    instances = created["spec"]["instances"]
    instances[1]["template"] = {"spec": NODE_FOLDER}
    refused = guarded.client.patch(at, json={"spec": {"instances": instances}}, **patch)
    assert refused.status_code == 403
    status = {"status": {"observedGeneration": 1}}
    assert guarded.client.patch(f"{at}/status", json=status, **patch).is_success


def test_a_policy_from_before_can_be_labelled_and_deleted_but_not_kept_as_it_is(crds: ControlPlane, helm: Helm) -> None:
    patch = {"headers": {"Content-Type": "application/merge-patch+json"}}
    namespace = f"before-{secrets.token_hex(3)}"
    with crds.client() as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": namespace}}).raise_for_status()
        path = POLICIES.format(namespace)
        client.post(path, json=policy({"spec": NODE_FOLDER}, name="old")).raise_for_status()
        values = {"watchNamespaces": [namespace], "fullnameOverride": namespace}
        objects = [o for o in helm.render(values) if o["kind"] in KINDS]
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        crds.kubectl("apply", "--server-side", "-f", "-", stdin=items)
        Guarded(crds, namespace).until_active({"hostPID": True})
        labelled = client.patch(f"{path}/old", json={"metadata": {"labels": {"a": "b"}}}, **patch)
        assert labelled.is_success, labelled.text
        changed = client.patch(f"{path}/old", json={"spec": {"drainSeconds": 60}}, **patch)
        assert changed.status_code == 403
        assert client.delete(f"{path}/old").is_success
        crds.kubectl("delete", "--wait=false", "-f", "-", stdin=items)


@pytest.mark.parametrize(("spec", "_", "allow"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_opened_is_let_through(crds: ControlPlane, helm: Helm, spec: Spec, _: str, allow: Values) -> None:
    elsewhere: Spec = NODE_FOLDER if "hostPaths" not in allow else {"hostPID": True}
    with guarding(crds, helm, allow, elsewhere) as guarded:
        answer = guarded.ask(spec)
        assert answer.is_success, answer.text


def test_an_opened_folder_opens_no_other(crds: ControlPlane, helm: Helm) -> None:
    with guarding(crds, helm, {"hostPaths": ["/mnt/models"]}, {"hostPID": True}) as guarded:
        answers = {}
        for path in ("/mnt/models", "/mnt/models/a", "/mnt/models-private", "/mnt", "/"):
            answers[path] = guarded.ask({"volumes": [{"name": "node", "hostPath": {"path": path}}]}).is_success
    assert [path for path, allowed in answers.items() if allowed] == ["/mnt/models", "/mnt/models/a"]


def test_deployments_are_not_looked_at(guarded: Guarded) -> None:
    """The platform team's own `workers.template` may do anything; the operator's writes carry it."""
    labels = {"app": "worker"}
    pod = {"metadata": {"labels": labels}, "spec": {**NODE_FOLDER, "containers": [{"name": "worker", "image": "w"}]}}
    deployment = {"metadata": {"name": "w"}, "spec": {"selector": {"matchLabels": labels}, "template": pod}}
    answer = guarded.client.post(f"/apis/apps/v1/namespaces/{guarded.namespace}/deployments", json=deployment)
    assert answer.is_success, answer.text


def test_the_largest_policy_is_within_the_servers_cost_limit(guarded: Guarded) -> None:
    container = {"ports": [{"containerPort": 9}] * 8, "securityContext": {"capabilities": {"add": []}}}
    spec = {
        "containers": [{"name": f"c{n}", **container} for n in range(16)],
        "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(64)],
    }
    many = policy({})
    model = many["spec"]["instances"][0]["model"]
    many["spec"]["instances"] = [{"name": f"i{n}", "model": model, "template": {"spec": spec}} for n in range(32)]
    answer = guarded.client.post(guarded.path, params={"dryRun": "All"}, json=many)
    assert answer.is_success, answer.text


def test_the_server_finds_no_fault_with_the_expressions(
    crds: ControlPlane, controllers: ControlPlane, guarded: Guarded
) -> None:
    """Its controller checks their types against the resource's schema."""
    name = f"{guarded.namespace}-guards"
    at = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"
    deadline = time.monotonic() + ACTIVE_WITHIN_S
    while "observedGeneration" not in (status := guarded.client.get(at).raise_for_status().json().get("status", {})):
        assert time.monotonic() < deadline, "never looked at"
        time.sleep(0.2)
    assert not status.get("typeChecking", {}).get("expressionWarnings"), status


def test_they_are_on_by_default_can_be_left_out_and_look_where_the_operator_looks(helm: Helm) -> None:
    binding = pick(helm.render({}), "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding["validationActions"] == ["Deny"]
    assert "matchResources" not in binding
    some = pick(helm.render({"watchNamespaces": ["team-a", "team-b"]}), "ValidatingAdmissionPolicyBinding")["spec"]
    [where] = some["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (where["key"], where["values"]) == ("kubernetes.io/metadata.name", ["team-a", "team-b"])
    assert not [o for o in helm.render({"guardRails": {"enabled": False}}) if o["kind"] in KINDS]


def test_with_everything_opened_nothing_is_asked_but_folders(helm: Helm) -> None:
    allow = {
        **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "privileged"), True),
        "capabilities": ["ALL"],
        "serviceAccounts": ["*"],
        "hostPaths": ["/"],
    }
    spec = pick(helm.render({"guardRails": {"allow": allow}}), "ValidatingAdmissionPolicy")["spec"]
    assert [each["expression"] for each in spec["validations"]] == ["variables.hostPaths.size() == 0"]


def test_a_broken_expression_would_be_noticed(crds: ControlPlane, helm: Helm) -> None:
    broken = pick(helm.render({}), "ValidatingAdmissionPolicy")
    broken["spec"]["validations"][0]["expression"] = "variables.nothing == 0"
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        crds.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=json.dumps(broken))
    assert "undefined field 'nothing'" in refusal.value.__notes__[0]
