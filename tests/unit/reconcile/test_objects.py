"""What an instance consists of."""

import json

import pytest

from tailkeeper.reconcile import objects
from tailkeeper.reconcile.kinds import OWNED
from tailkeeper.reconcile.ownership import stamped
from tailkeeper.reconcile.worker_pod import WorkerDefaults

DEFAULTS = WorkerDefaults("worker:1")


def all_of(policy, defaults: WorkerDefaults = DEFAULTS) -> list[dict]:
    instance = policy.spec.instances[0]
    return [
        objects.service_account(policy, instance),
        objects.role(policy, instance),
        objects.role_binding(policy, instance),
        objects.settings_map(policy, instance, "{}", None, None),
        objects.service(policy, instance),
        objects.disruption_budget(policy, instance),
        objects.deployment(policy, instance, defaults, None),
    ]


def deployment_of(policy, live=None, defaults: WorkerDefaults = DEFAULTS) -> dict:
    return objects.deployment(policy, policy.spec.instances[0], defaults, live)


def test_every_kind_is_made_and_goes_with_its_policy(make_policy) -> None:
    made = all_of(make_policy())
    assert {item["kind"] for item in made} == {kind.name for kind in OWNED}
    for item in made:
        (owner,) = item["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "tailkeeper.dev/v1alpha1",
            "kind": "BatchingPolicy",
            "name": "chat",
            "uid": "u-1",
            "controller": True,
        }
        assert "finalizers" not in item["metadata"]
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tailkeeper"
        assert item["metadata"]["namespace"] == "team"


def test_workers_may_read_their_own_settings_and_nothing_else(make_policy) -> None:
    policy = make_policy()
    role = objects.role(policy, policy.spec.instances[0])
    settings = objects.settings_map(policy, policy.spec.instances[0], "{}", None, None)
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [settings["metadata"]["name"]],
            "verbs": ["get", "list", "watch"],
        }
    ]
    binding = objects.role_binding(policy, policy.spec.instances[0])
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "chat-small", "namespace": "team"}


def test_the_service_and_the_budget_select_exactly_this_instances_pods(make_policy) -> None:
    made = {item["kind"]: item for item in all_of(make_policy())}
    pods = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    chosen = {"tailkeeper.dev/policy": "chat", "tailkeeper.dev/model-instance": "small"}
    assert made["Service"]["spec"]["selector"] == chosen
    assert made["PodDisruptionBudget"]["spec"]["selector"] == {"matchLabels": chosen}
    assert made["Deployment"]["spec"]["selector"] == {"matchLabels": chosen}
    assert chosen.items() <= pods.items()


@pytest.mark.parametrize(("strategy", "surge", "unavailable"), [("SurgeFirst", 1, 0), ("DrainFirst", 0, 1)])
def test_rollout_strategies(make_policy, strategy: str, surge: int, unavailable: int) -> None:
    rolling = deployment_of(make_policy(spec={"rolloutStrategy": strategy}))["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": surge, "maxUnavailable": unavailable}


def test_replicas_that_are_absent_are_not_owned(make_policy) -> None:
    assert deployment_of(make_policy(replicas=0))["spec"]["replicas"] == 0
    assert "replicas" not in deployment_of(make_policy())["spec"]


def test_a_new_operator_version_keeps_the_pods_that_the_old_one_rendered(make_policy) -> None:
    old = stamped(deployment_of(make_policy()))
    upgraded = WorkerDefaults("worker:2", {"spec": {"priorityClassName": "new"}})
    kept = deployment_of(make_policy(replicas=5), old, upgraded)
    assert kept["spec"]["template"] == old["spec"]["template"]
    assert kept["spec"]["replicas"] == 5


def test_pods_are_rendered_anew_when_users_change_them_or_ask_for_it(make_policy) -> None:
    old = stamped(deployment_of(make_policy()))
    upgraded = WorkerDefaults("worker:2")
    for policy in (make_policy(annotations={"tailkeeper.dev/roll": "2"}), make_policy(spec={"drainSeconds": 9})):
        (worker,) = deployment_of(policy, old, upgraded)["spec"]["template"]["spec"]["containers"]
        assert worker["image"] == "worker:2"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[1]", '"text"'])
def test_a_rendered_template_that_is_damaged_is_rendered_anew(make_policy, text: str) -> None:
    old = stamped(deployment_of(make_policy()))
    old["metadata"]["annotations"]["tailkeeper.dev/rendered-template"] = text
    assert deployment_of(make_policy(), old)["spec"]["template"]["spec"]["containers"]


def test_building_twice_gives_the_same(make_policy) -> None:
    assert json.dumps(all_of(make_policy())) == json.dumps(all_of(make_policy()))
