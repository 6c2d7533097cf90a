"""Policies that cannot be: each says why, and nobody else is touched."""

import json

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, POD, POLICY, SERVICE, SERVICE_ACCOUNT
from tests.integration.operators import eventually, one_instance, ready_status

FOREIGN_POD = {
    "selector": {"matchLabels": {"app": "x"}},
    "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
}


@pytest.mark.parametrize(
    ("kind", "name", "body"),
    [
        (SERVICE, "chat-small", {"spec": {"ports": [{"port": 80}]}}),
        (DEPLOYMENT, "chat-small", {"spec": FOREIGN_POD}),
        (SERVICE_ACCOUNT, "chat-small", {}),
        (CONFIG_MAP, "chat-small-settings", {"data": {"a": "b"}}),
    ],
)
def test_an_object_of_somebody_else_is_never_taken(field, operate, kind, name, body) -> None:
    theirs = field.create(kind, {"metadata": {"name": name}, **body})
    operate()
    (small,) = one_instance()["instances"]
    field.apply(spec={"instances": [small, {**small, "name": "large"}]})
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "Conflict" and c)
    assert f"{kind.name} {name} exists and is not Tailkeeper's" in ready["message"]
    still = field.get(kind, name)
    assert still.get("spec", still.get("data")) == theirs.get("spec", theirs.get("data"))
    assert not [e for e in still["metadata"]["managedFields"] if e["manager"].startswith("tailkeeper")]
    assert "ownerReferences" not in still["metadata"]
    assert field.has("chat", "large"), "the other instance is made all the same"
    eventually(lambda: field.events("Conflict"))


def test_an_object_that_another_policy_controls_is_named(field, operate) -> None:
    """`a` with instance `b-c` and `a-b` with instance `c` want the same names."""
    operate()
    (small,) = one_instance()["instances"]
    field.apply("a", {"instances": [{**small, "name": "b-c"}]})
    eventually(lambda: field.has("a", "b-c"))
    field.apply("a-b", {"instances": [{**small, "name": "c"}]})
    ready = eventually(lambda: (c := field.condition("Ready", "a-b")).get("reason") == "Conflict" and c)
    assert "is controlled by BatchingPolicy a" in ready["message"]
    owner = field.get(DEPLOYMENT, "a-b-c")["metadata"]["ownerReferences"][0]["name"]
    assert owner == "a"


def test_orphans_of_a_policy_of_the_same_name_are_adopted(field, operate) -> None:
    operate()
    first = field.apply()
    eventually(field.has)
    before = field.get(DEPLOYMENT)["metadata"]["uid"]
    field.client.request(
        "DELETE", POLICY.path(field.namespace, "chat"), json={"propagationPolicy": "Orphan"}
    ).raise_for_status()
    eventually(lambda: field.get(POLICY, "chat") is None, within_s=60)
    eventually(lambda: not field.get(DEPLOYMENT)["metadata"].get("ownerReferences"))
    second = field.apply()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    owned = eventually(lambda: field.get(DEPLOYMENT)["metadata"].get("ownerReferences"))
    assert owned[0]["uid"] == second["metadata"]["uid"]
    assert field.get(DEPLOYMENT)["metadata"]["uid"] == before


def test_a_template_that_does_not_fit_is_refused_by_field_and_the_workers_run_on(field, operate) -> None:
    operate()
    (small,) = one_instance()["instances"]
    field.apply(spec={"instances": [small, {**small, "name": "large"}]})
    eventually(lambda: field.has("chat", "small", "large"))
    before = field.template()
    broken = {"spec": {"containers": {"name": "worker"}}}
    settings = {"windowBusy": 2}
    field.apply(spec={"instances": [{**small, "template": broken}, {**small, "name": "large", "batching": settings}]})
    accepted = eventually(lambda: (c := field.condition("Accepted")).get("status") == "False" and c)
    assert accepted["message"].startswith("spec.instances[small].template: spec.containers")
    assert field.template() == before
    eventually(lambda: field.settings("chat-large-settings")["windowBusy"] == 2)
    field.apply(spec={"instances": [small]})
    eventually(lambda: field.condition("Accepted")["status"] == "True")


def test_a_template_that_the_server_refuses_is_said_in_its_words(field, operate) -> None:
    operate()
    field.apply(spec=one_instance(template={"spec": {"restartPolicy": "Sometimes"}}))
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "Refused" and c)
    assert "restartPolicy" in ready["message"]
    field.apply("other")
    eventually(lambda: field.has("other"))
    field.apply()
    eventually(field.has)


def test_a_policy_that_the_schema_let_through_but_makes_no_sense(field, operate) -> None:
    """As after an upgrade of the definitions: what is stored was never checked by the newer rules."""
    operate()
    field.apply()
    eventually(field.has)
    before = field.versions()
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/batchingpolicies.tailkeeper.dev"
    definition = field.client.get(crd).raise_for_status().json()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    try:
        _set_spec_schema(field, crd, loose)
        broken = {**one_instance(), "defaultTier": "nobody"}
        eventually(lambda: _try_apply(field, broken))
        accepted = eventually(lambda: (c := field.condition("Accepted")).get("status") == "False" and c)
        assert "spec.defaultTier" in accepted["message"]
        assert field.instance()["settingsGeneration"] == 1, "what is known of the instance stays"
        after = field.versions()
        assert {key: after[key] for key in after if key[0] != POLICY.name} == {
            key: before[key] for key in before if key[0] != POLICY.name
        }
    finally:
        _set_spec_schema(field, crd, schema["properties"]["spec"])
        eventually(lambda: not _try_apply(field, broken))
    eventually(lambda: _try_apply(field, one_instance()))
    eventually(lambda: field.condition("Accepted")["status"] == "True")


def _set_spec_schema(field, crd: str, spec_schema: dict) -> None:
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
    field.client.patch(
        crd,
        content=json.dumps([{"op": "replace", "path": path, "value": spec_schema}]),
        headers={"Content-Type": "application/json-patch+json"},
    ).raise_for_status()


def _try_apply(field, spec: dict) -> bool:
    try:
        field.apply(spec=spec)
    except AssertionError:
        return False
    return True


def unscheduled(message: str) -> dict:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def waiting(reason: str, message: str, **more) -> dict:
    container = {
        "name": "worker",
        "image": "worker:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
        **more,
    }
    return {"phase": "Pending", "containerStatuses": [container]}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), "Unschedulable", "nvidia.com/gpu"),
        (waiting("ErrImagePull", "manifest for worker:9 not found"), "ErrImagePull", "worker:9 not found"),
        (waiting("CreateContainerConfigError", 'secret "keys" not found'), "CreateContainerConfigError", "keys"),
        (
            waiting(
                "CrashLoopBackOff",
                "back-off",
                restartCount=2,
                lastState={"terminated": {"exitCode": 1, "message": "model path /models/no does not exist"}},
            ),
            "CrashLoopBackOff",
            "model path /models/no does not exist",
        ),
    ],
)
def test_pods_that_cannot_run_say_why_and_other_policies_do_not_care(field, operate, status, reason, words) -> None:
    operate()
    field.apply()
    field.apply("other")
    field.set_pods(ready_status(), "other-small")
    field.set_pods(status)
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == reason and c)
    assert ready["status"] == "False"
    assert words in ready["message"]
    eventually(lambda: field.condition("Ready", "other").get("status") == "True")
    eventually(lambda: field.events(reason))


def test_all_gpus_taken_in_a_surge_names_drain_first(field, operate) -> None:
    operate()
    gpu = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    field.apply(spec=one_instance(template=gpu))
    field.set_pods(ready_status())
    eventually(lambda: field.condition("Ready").get("status") == "True")
    old = {pod["metadata"]["name"] for pod in field.all_of(POD)}
    field.apply(spec={"drainSeconds": 10, **one_instance(template=gpu)})
    new = eventually(lambda: [p for p in field.all_of(POD) if p["metadata"]["name"] not in old])
    field.set_pod(new[0], unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "SurgeUnschedulable" and c)
    assert "rolloutStrategy: DrainFirst" in ready["message"]
    assert "1 of 1 workers serve" in ready["message"]


def test_pods_that_may_not_be_made_say_why(field, operate) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    field.client.post(f"/api/v1/namespaces/{field.namespace}/resourcequotas", json=quota).raise_for_status()
    operate()
    field.apply()
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "PodsRefused" and c)
    assert "exceeded quota" in ready["message"]
