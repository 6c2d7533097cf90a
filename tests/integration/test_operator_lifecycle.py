"""Policies become objects, change, and go, on a real API server, with exactly the chart's role."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, OWNED, POLICY, SERVICE
from tests.integration.operators import eventually, one_instance, ready_status, refusals_of_operator


def test_a_policy_becomes_all_of_its_objects_and_says_how_it_is(field, operator) -> None:
    field.apply()
    eventually(field.has)
    assert field.condition("Accepted")["status"] == "True"
    assert field.condition("Ready")["status"] == "False"
    eventually(lambda: field.condition("Ready")["reason"] == "Starting")
    assert field.settings()["generation"] == 1
    assert field.instance()["settingsGeneration"] == 1
    assert field.instance()["effective"] == field.settings()
    for item in field.ours().values():
        assert "finalizers" not in item["metadata"]
        assert item["metadata"]["ownerReferences"][0].get("blockOwnerDeletion") is None
    assert "finalizers" not in field.get(POLICY, "chat")["metadata"]
    eventually(lambda: field.events("SettingsWritten"))
    assert not refusals_of_operator(field.plane, field.namespace)


def test_ready_follows_the_pods(field, operator) -> None:
    field.apply()
    field.set_pods(ready_status())
    eventually(lambda: field.condition("Ready").get("status") == "True")
    assert field.instance()["readyReplicas"] == 1
    assert field.get(POLICY, "chat")["status"]["summary"] == "1/1"
    eventually(lambda: field.events("InstanceReady"))


def test_settings_change_without_touching_the_pods(field, operator) -> None:
    field.apply()
    eventually(field.has)
    before = field.get(DEPLOYMENT)
    field.apply(spec={"batching": {"windowIdle": 32, "windowBusy": 4}, **one_instance()})
    eventually(lambda: field.settings()["generation"] == 2)
    assert (field.settings()["windowIdle"], field.settings()["windowBusy"]) == (32, 4)
    eventually(lambda: field.instance()["settingsGeneration"] == 2)
    assert field.instance()["lastMove"]["cause"] == "Spec"
    assert field.get(DEPLOYMENT)["metadata"]["generation"] == before["metadata"]["generation"]


def test_what_users_set_on_pods_rolls_them(field, operator) -> None:
    field.apply()
    eventually(field.has)
    model = {"name": "minilm", "engine": "encoder", "path": "/models/other"}
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"cpu": "0.5"}}}]}}
    field.apply(spec=one_instance(model=model, template=template))
    worker = eventually(lambda: next((c for c in field.template()["spec"]["containers"] if c.get("resources")), None))
    assert worker["resources"] == {"limits": {"cpu": "500m"}}
    assert "--model-path=/models/other" in worker["args"]


def test_instances_come_and_go_one_by_one(field, operator) -> None:
    (small,) = one_instance()["instances"]
    field.apply(spec={"instances": [small, {**small, "name": "large"}]})
    eventually(lambda: field.has("chat", "small", "large"))
    kept = {key: item["metadata"]["uid"] for key, item in field.ours().items() if "small" in key[1]}
    field.apply(spec={"instances": [small]})
    eventually(lambda: len(field.ours()) == len(OWNED))
    assert {key: item["metadata"]["uid"] for key, item in field.ours().items()} == kept
    eventually(lambda: [i["name"] for i in field.get(POLICY, "chat")["status"]["instances"]] == ["small"])


def test_a_deleted_policy_is_not_fought_by_the_operator(field, operator) -> None:
    field.apply()
    eventually(field.has)
    field.delete(POLICY, "chat")
    eventually(lambda: not field.ours(), within_s=60)
    eventually(lambda: operator.metric("tailkeeper_operator_queue_length") == 0)
    assert not field.ours()


def test_scale_that_is_handed_over_to_an_autoscaler_stays_as_it_is(field, operator) -> None:
    field.apply(spec=one_instance(replicas=3))
    eventually(field.has)
    spec = one_instance()
    del spec["instances"][0]["replicas"]
    field.apply(spec=spec)
    eventually(lambda: field.condition("Accepted").get("observedGeneration") == 2)
    assert field.get(DEPLOYMENT)["spec"]["replicas"] == 3
    field.edit(DEPLOYMENT, {"spec": {"replicas": 5}}, subresource="scale")
    eventually(lambda: field.instance()["desiredReplicas"] == 5)
    assert field.get(DEPLOYMENT)["spec"]["replicas"] == 5


def test_a_manual_value_is_a_move_that_everybody_can_see(field, operator) -> None:
    field.apply()
    eventually(field.has)
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=4,margin=20"})
    eventually(lambda: field.settings()["generation"] == 2)
    assert (field.settings()["ceiling"], field.settings()["marginPercent"]) == (4, 20)
    move = eventually(lambda: field.instance().get("lastMove"))
    assert (move["cause"], move["generation"]) == ("Manual", 2)
    assert {c["lever"]: (c["before"], c["after"]) for c in move["changes"]}["ceiling"] == ("64", "4")
    event = eventually(lambda: [e for e in field.events("SettingsWritten") if "Manual" in e["message"]])[0]
    assert "ceiling 64 → 4" in event["message"]


def test_a_manual_value_that_makes_no_sense_is_said_and_changes_nothing(field, operator) -> None:
    field.apply()
    eventually(field.has)
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=9999"})
    accepted = eventually(lambda: (c := field.condition("Accepted"))["reason"] == "ManualValueRefused" and c)
    assert "tailkeeper.dev/set.small" in accepted["message"]
    assert "ceiling=9999" in accepted["message"]
    assert field.settings()["generation"] == 1
    eventually(lambda: field.events("ManualValueRefused"))
    field.apply()
    eventually(lambda: field.condition("Accepted")["reason"] == "Valid")


def test_workers_without_a_token_have_their_mounted_file_refreshed_by_a_touch(field, operator) -> None:
    template = {"spec": {"automountServiceAccountToken": False}}
    field.apply(spec=one_instance(template=template))
    (pod,) = field.set_pods(ready_status())
    where = f"/api/v1/namespaces/{field.namespace}/pods/{pod['metadata']['name']}"

    def mark() -> str | None:
        found = field.client.get(where).json()["metadata"].get("annotations", {})
        return found.get("tailkeeper.dev/settings-generation")

    eventually(lambda: mark() == "1")
    field.apply(spec=one_instance(template=template), annotations={"tailkeeper.dev/set.small": "ceiling=4"})
    eventually(lambda: mark() == "2")
    assert field.client.get(where).json()["metadata"]["uid"] == pod["metadata"]["uid"]


def test_workers_with_a_token_cost_no_write_per_pod(field, operator) -> None:
    field.apply()
    (pod,) = field.set_pods(ready_status())
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=4"})
    eventually(lambda: field.instance()["settingsGeneration"] == 2)
    where = f"/api/v1/namespaces/{field.namespace}/pods/{pod['metadata']['name']}"
    annotations = field.client.get(where).json()["metadata"]["annotations"]
    assert "tailkeeper.dev/settings-generation" not in annotations


@pytest.mark.parametrize("strategy", ["SurgeFirst", "DrainFirst"])
def test_rollout_strategy_reaches_the_deployment(field, operator, strategy: str) -> None:
    field.apply(spec={"rolloutStrategy": strategy, **one_instance()})
    eventually(field.has)
    rolling = field.get(DEPLOYMENT)["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxSurge"] == (1 if strategy == "SurgeFirst" else 0)


def test_a_worker_may_list_and_watch_its_own_settings_only(field, operator) -> None:
    field.apply()
    eventually(field.has)
    worker = field.plane.client(field.plane.service_account_token(field.namespace, "chat-small"))
    path = CONFIG_MAP.path(field.namespace)
    own = {"fieldSelector": "metadata.name=chat-small-settings"}
    assert worker.get(f"{path}/chat-small-settings").is_success
    assert [i["metadata"]["name"] for i in worker.get(path, params=own).json()["items"]] == ["chat-small-settings"]
    watch = {**own, "watch": "true", "timeoutSeconds": "1"}
    assert worker.get(path, params=watch).is_success
    assert worker.get(path).status_code == 403
    assert worker.get(f"{path}/kube-root-ca.crt").status_code == 403
    assert worker.get(SERVICE.path(field.namespace)).status_code == 403


def test_many_policies_at_once_are_all_made(field, operator) -> None:
    names = [f"p{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(field.apply, names))
    eventually(lambda: len(field.ours()) == len(OWNED) * len(names), within_s=90, every_s=0.5)
    eventually(lambda: all(field.condition("Accepted", name) for name in names), within_s=30, every_s=0.5)
