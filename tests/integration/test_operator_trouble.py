"""Policies that cannot be: each says why, and nobody else is touched."""

import concurrent.futures
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, OWNED, POD, POLICY, SERVICE, SERVICE_ACCOUNT
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
def test_an_object_of_somebody_else_is_never_taken(field, operator, kind, name, body) -> None:
    theirs = field.create(kind, {"metadata": {"name": name}, **body})
    (small,) = one_instance()["instances"]
    field.apply(spec={"instances": [small, {**small, "name": "large"}]})
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "Conflict" and c)
    assert f"{kind.name} {name} exists and is not Tailkeeper's" in ready["message"]
    still = field.get(kind, name)
    assert still.get("spec", still.get("data")) == theirs.get("spec", theirs.get("data"))
    assert not [e for e in still["metadata"].get("managedFields", []) if e["manager"].startswith("tailkeeper")]
    assert "ownerReferences" not in still["metadata"]
    assert field.has("chat", "large"), "the other instance is made all the same"
    eventually(lambda: field.events("Conflict"))


def test_an_object_that_another_policy_controls_is_named(field, operator) -> None:
    """`a` with instance `b-c` and `a-b` with instance `c` want the same names."""
    (small,) = one_instance()["instances"]
    field.apply("a", {"instances": [{**small, "name": "b-c"}]})
    eventually(lambda: field.has("a", "b-c"))
    field.apply("a-b", {"instances": [{**small, "name": "c"}]})
    ready = eventually(lambda: (c := field.condition("Ready", "a-b")).get("reason") == "Conflict" and c)
    assert "the name a-b-c is taken by instance b-c of policy a" in ready["message"]
    owner = field.get(DEPLOYMENT, "a-b-c")["metadata"]["ownerReferences"][0]["name"]
    assert owner == "a"


def test_of_two_policies_that_want_one_name_at_the_same_time_one_gets_all_of_it(field, operator) -> None:
    (small,) = one_instance()["instances"]
    names = [f"c{number}" for number in range(6)]
    with concurrent.futures.ThreadPoolExecutor(2) as both:
        one = both.submit(field.apply, "a", {"instances": [{**small, "name": f"b-{name}"} for name in names]})
        other = both.submit(field.apply, "a-b", {"instances": [{**small, "name": name} for name in names]})
        one.result()
        other.result()
    everything = len(OWNED) * len(names)
    eventually(lambda: len(field.ours()) == everything)
    for name in names:
        of_name = [item for (_, own), item in field.ours().items() if own.removesuffix("-settings") == f"a-b-{name}"]
        assert len(of_name) == len(OWNED)
        assert len({item["metadata"]["ownerReferences"][0]["name"] for item in of_name}) == 1


def test_what_was_split_between_two_policies_goes_back_to_the_one_with_the_account(field, operator) -> None:
    (small,) = one_instance()["instances"]
    field.apply("a", {"instances": [{**small, "name": "b-c"}]})
    eventually(lambda: field.has("a", "b-c"))
    field.apply("a-b", {"instances": [{**small, "name": "c"}]})
    eventually(lambda: field.condition("Ready", "a-b").get("reason") == "Conflict")
    theirs = field.get(POLICY, "a-b")["metadata"]
    owner = {"apiVersion": POLICY.api_version, "kind": POLICY.name, "name": "a-b", "uid": theirs["uid"]}
    labels = {"tailkeeper.dev/policy": "a-b", "tailkeeper.dev/model-instance": "c"}
    stolen = {"metadata": {"ownerReferences": [{**owner, "controller": True}], "labels": labels}}
    field.edit(SERVICE, stolen, "a-b-c")
    eventually(
        lambda: (s := field.get(SERVICE, "a-b-c")) and s["metadata"]["ownerReferences"][0]["name"] == "a", within_s=75
    )


def test_orphans_of_a_policy_of_the_same_name_are_adopted(field, operator) -> None:
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


def test_a_template_that_does_not_fit_is_refused_by_field_and_the_workers_run_on(field, operator) -> None:
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


def test_a_template_that_the_server_refuses_is_said_in_its_words(field, operator) -> None:
    field.apply(spec=one_instance(template={"spec": {"restartPolicy": "Sometimes"}}))
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "Refused" and c)
    assert "restartPolicy" in ready["message"]
    field.apply("other")
    eventually(lambda: field.has("other"))
    field.apply()
    eventually(field.has)


def test_a_template_with_a_field_that_no_pod_has_is_said_and_the_settings_that_were_written_too(
    field, operator
) -> None:
    """The server answers 500 to fields it does not know, not 422."""
    field.apply()
    eventually(field.has)
    broken = {**one_instance(template={"spec": {"foo": "bar"}}), "batching": {"windowIdle": 40}}
    field.apply(spec=broken)
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "Refused" and c)
    assert "foo" in ready["message"]
    assert field.instance()["effective"]["windowIdle"] == 40


def test_an_annotation_for_an_instance_that_is_not_there_is_said(field, operator) -> None:
    field.apply(annotations={"tailkeeper.dev/set.nosuch": "ceiling=4"})
    accepted = eventually(lambda: (c := field.condition("Accepted")).get("reason") == "AnnotationIgnored" and c)
    assert accepted["status"] == "True"
    assert "there is no instance nosuch" in accepted["message"]


def test_annotations_that_mean_nothing_are_said_and_change_nothing(field, operator) -> None:
    field.apply(annotations={"tailkeeper.dev/pause.small": "maybe", "tailkeeper.dev/puase.small": "true"})
    accepted = eventually(lambda: (c := field.condition("Accepted")).get("reason") == "AnnotationIgnored" and c)
    assert 'neither "true" nor "false"' in accepted["message"]
    assert "tailkeeper.dev/puase.small: there is no such annotation" in accepted["message"]
    assert not field.instance().get("paused")
    eventually(lambda: field.events("AnnotationIgnored"))


def test_a_policy_that_the_schema_let_through_but_makes_no_sense(field, operator) -> None:
    """As after an upgrade of the definitions: what is stored was never checked by the newer rules."""
    field.apply()
    eventually(field.has)
    before = specs(field)
    broken = {**one_instance(), "defaultTier": "nobody"}
    with loosened_schema(field):
        eventually(lambda: accepts(field, broken))
        field.apply(spec=broken)
        accepted = eventually(lambda: (c := field.condition("Accepted")).get("status") == "False" and c)
        assert "spec.defaultTier" in accepted["message"]
        assert field.instance()["settingsGeneration"] == 1, "what is known of the instance stays"
        assert specs(field) == before, "and its workers run on as they are"
    eventually(lambda: not accepts(field, broken))
    field.apply()
    eventually(lambda: field.condition("Accepted")["status"] == "True")


@contextmanager
def loosened_schema(field) -> Iterator[None]:
    """A definition that takes any policy, for a while."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/batchingpolicies.tailkeeper.dev"
    definition = field.client.get(path).raise_for_status().json()

    def replace_schema(schema: dict) -> None:
        where = "/spec/versions/0/schema/openAPIV3Schema"
        patch = [{"op": "replace", "path": where, "value": schema}]
        headers = {"Content-Type": "application/json-patch+json"}
        answer = field.client.patch(path, content=json.dumps(patch), headers=headers)
        assert answer.is_success, answer.text

    replace_schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    try:
        yield
    finally:
        replace_schema(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def accepts(field, spec: dict) -> bool:
    """Whether the server takes a new policy with this spec now."""
    policy = {"apiVersion": POLICY.api_version, "kind": POLICY.name, "metadata": {"name": "probe"}, "spec": spec}
    return field.client.post(POLICY.path(field.namespace), params={"dryRun": "All"}, json=policy).is_success


def specs(field) -> dict:
    """What was asked for of every object, without what became of it."""
    return {key: (item.get("spec"), item.get("data"), item["metadata"]["labels"]) for key, item in field.ours().items()}


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
def test_pods_that_cannot_run_say_why_and_other_policies_do_not_care(field, operator, status, reason, words) -> None:
    field.apply()
    field.apply("other")
    field.set_pods(ready_status(), "other-small")
    field.set_pods(status)
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == reason and c)
    assert ready["status"] == "False"
    assert words in ready["message"]
    eventually(lambda: field.condition("Ready", "other").get("status") == "True")
    eventually(lambda: field.events(reason))


def test_all_gpus_taken_in_a_surge_names_drain_first(field, operator) -> None:
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


def test_pods_that_may_not_be_made_say_why(field, operator) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    field.client.post(f"/api/v1/namespaces/{field.namespace}/resourcequotas", json=quota).raise_for_status()
    field.apply()
    ready = eventually(lambda: (c := field.condition("Ready")).get("reason") == "PodsRefused" and c)
    assert "exceeded quota" in ready["message"]
