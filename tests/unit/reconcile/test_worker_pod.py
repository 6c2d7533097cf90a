"""What worker pods promise: least privilege, room to drain, every source of weights, and no restart without reason."""

import pytest

from tailkeeper.api.resolve import InvalidPolicy
from tailkeeper.reconcile.kinds import Manifest
from tailkeeper.reconcile.worker_pod import WorkerDefaults, pod_template, reads_settings_by_file, user_input_hash

DEFAULTS = WorkerDefaults("worker:1")


def template_of(policy, defaults: WorkerDefaults = DEFAULTS) -> Manifest:
    return pod_template(policy, policy.spec.instances[0], "team", defaults)


def worker_of(policy, defaults: WorkerDefaults = DEFAULTS) -> Manifest:
    return next(c for c in template_of(policy, defaults)["spec"]["containers"] if c["name"] == "worker")


def hash_of(policy) -> str:
    return user_input_hash(policy, policy.spec.instances[0])


def test_pods_fit_the_restricted_level(make_policy) -> None:
    spec = template_of(make_policy())["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert {"emptyDir", "configMap"} >= {key for v in spec["volumes"] for key in v if key != "name"}


@pytest.mark.parametrize("drain_s", [1, 45, 600])
def test_the_grace_period_leaves_room_for_prestop_and_the_drain(make_policy, drain_s: int) -> None:
    policy = make_policy(spec={"drainSeconds": drain_s})
    spec, worker = template_of(policy)["spec"], worker_of(policy)
    pre_stop_s = worker["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] >= pre_stop_s + drain_s
    assert f"--drain-seconds={drain_s}" in worker["args"]
    assert "--endpoint-delay-seconds=0" in worker["args"]


def test_ports_and_probes_have_the_names_that_others_hold_on_to(make_policy) -> None:
    worker = worker_of(make_policy())
    assert {port["name"]: port["containerPort"] for port in worker["ports"]} == {"http": 8000, "metrics": 9000}
    assert worker["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert worker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    startup = worker["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800, "large models load slowly"


def test_settings_are_a_folder_mount_which_the_kubelet_updates(make_policy) -> None:
    worker = worker_of(make_policy())
    mount = next(m for m in worker["volumeMounts"] if m["name"] == "settings")
    assert "subPath" not in mount
    assert mount["readOnly"] is True
    assert f"--settings-file={mount['mountPath']}/settings.json" in worker["args"]
    assert "--settings-config-map=team/chat-small-settings" in worker["args"]


def test_weights_from_a_path(make_policy) -> None:
    assert "--model-path=/models/minilm" in worker_of(make_policy())["args"]


@pytest.mark.parametrize(("path", "folder"), [(None, ""), ("bert/base", "/bert/base")])
def test_weights_from_a_claim_are_mounted_read_only(make_policy, path: str | None, folder: str) -> None:
    claim = {"claimName": "weights", **({"path": path} if path else {})}
    policy = make_policy(model={"name": "m", "engine": "encoder", "persistentVolumeClaim": claim})
    volume = next(v for v in template_of(policy)["spec"]["volumes"] if v["name"] == "model")
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    worker = worker_of(policy)
    mount = next(m for m in worker["volumeMounts"] if m["name"] == "model")
    assert mount["readOnly"] is True
    assert f"--model-path={mount['mountPath']}{folder}" in worker["args"]


def test_weights_from_the_hub_with_a_token_that_never_shows(make_policy) -> None:
    hub = {"id": "org/model", "revision": "abc", "tokenSecret": {"name": "hub", "key": "t"}}
    worker = worker_of(make_policy(model={"name": "m", "engine": "encoder", "huggingFace": hub}))
    assert {"--hugging-face-id=org/model", "--hugging-face-revision=abc"} <= set(worker["args"])
    env = {item["name"]: item for item in worker["env"]}
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "t"}}
    assert any(m["mountPath"] == env["HF_HOME"]["value"] for m in worker["volumeMounts"]), "the cache is writable"


def test_servers_behind_a_url_and_modules(make_policy) -> None:
    upstream = worker_of(make_policy(model={"name": "m", "engine": "upstream", "url": "http://vllm:8000"}))
    assert "--model-url=http://vllm:8000" in upstream["args"]
    module = worker_of(make_policy(model={"name": "m", "engine": "module", "factory": "shop.rank:make"}))
    assert "--model-factory=shop.rank:make" in module["args"]


def test_api_keys_are_a_mounted_secret(make_policy) -> None:
    policy = make_policy(spec={"apiKeys": {"secretName": "keys"}})
    volume = next(v for v in template_of(policy)["spec"]["volumes"] if v["name"] == "api-keys")
    assert volume["secret"] == {"secretName": "keys"}
    worker = worker_of(policy)
    mount = next(m for m in worker["volumeMounts"] if m["name"] == "api-keys")
    assert f"--api-keys-dir={mount['mountPath']}" in worker["args"]
    assert not any(argument.startswith("--api-keys-dir") for argument in worker_of(make_policy())["args"])


def test_the_users_overlay_lies_above_the_installations(make_policy) -> None:
    defaults = WorkerDefaults(
        "worker:1", {"spec": {"nodeSelector": {"pool": "cpu", "zone": "a"}, "priorityClassName": "low"}}
    )
    policy = make_policy(
        template={
            "spec": {
                "nodeSelector": {"pool": "gpu"},
                "containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
            }
        }
    )
    spec = template_of(policy, defaults)["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    assert spec["priorityClassName"] == "low"
    assert worker_of(policy, defaults)["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_an_overlay_cannot_take_away_what_the_operator_stands_on(make_policy) -> None:
    relabelled = make_policy(template={"metadata": {"labels": {"tailkeeper.dev/policy": "other", "team": "a"}}})
    labels = template_of(relabelled)["metadata"]["labels"]
    assert labels["tailkeeper.dev/policy"] == "chat"
    assert labels["team"] == "a"
    for template in (
        {"spec": {"containers": [{"name": "worker", "$patch": "delete"}]}},
        {"spec": {"$patch": "delete"}},
        {"spec": None},
    ):
        with pytest.raises(InvalidPolicy, match=r"spec\.instances\[small\]\.template"):
            template_of(make_policy(template=template))


def test_an_overlay_of_the_wrong_shape_names_the_field(make_policy) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        template_of(make_policy(template={"spec": {"containers": {"name": "worker"}}}))
    assert refused.value.field == "spec.instances[small].template"
    assert "spec.containers" in str(refused.value)


def test_workers_without_a_token_read_the_file(make_policy) -> None:
    assert not reads_settings_by_file(template_of(make_policy()))
    assert reads_settings_by_file(template_of(make_policy(template={"spec": {"automountServiceAccountToken": False}})))


def test_what_users_set_on_pods_changes_the_hash(make_policy) -> None:
    base = hash_of(make_policy())
    changed = [
        make_policy(model={"name": "minilm", "engine": "encoder", "path": "/models/other"}),
        make_policy(template={"spec": {"nodeSelector": {"gpu": "yes"}}}),
        make_policy(spec={"drainSeconds": 60}),
        make_policy(spec={"apiKeys": {"secretName": "keys"}}),
        make_policy(annotations={"tailkeeper.dev/roll": "1"}),
        make_policy(annotations={"tailkeeper.dev/roll.small": "1"}),
    ]
    hashes = [hash_of(policy) for policy in changed]
    assert len({base, *hashes}) == len(changed) + 1


def test_what_workers_take_live_does_not_change_the_hash(make_policy) -> None:
    base = hash_of(make_policy())
    for policy in (
        make_policy(spec={"batching": {"windowIdle": 4, "windowBusy": 2}}),
        make_policy(batching={"tailLatencySlaMs": 500}),
        make_policy(replicas=7),
        make_policy(spec={"rolloutStrategy": "DrainFirst"}),
        make_policy(annotations={"tailkeeper.dev/set.small": "ceiling=4", "tailkeeper.dev/roll.other": "1"}),
    ):
        assert hash_of(policy) == base


def test_the_hash_stays_from_version_to_version(make_policy) -> None:
    """It is stored on Deployments: another way to compute it would restart every worker of every user."""
    assert hash_of(make_policy()) == "65104cb9e1dc39dd"
    hub = {"id": "org/model", "revision": "abc", "tokenSecret": {"name": "hub"}}
    policy = make_policy(
        spec={"drainSeconds": 30, "apiKeys": {"secretName": "keys"}},
        annotations={"tailkeeper.dev/roll": "3"},
        model={"name": "m", "engine": "causal-lm", "huggingFace": hub},
        template={"spec": {"nodeSelector": {"gpu": "yes"}}},
    )
    assert hash_of(policy) == "b2346f649a7d727b"
