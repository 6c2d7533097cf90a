"""The pod template overlay merges as `kubectl patch --type strategic` does (the API server itself is asked in
tests/integration/test_operator_overlay.py)."""

import copy

import pytest

from tailkeeper.reconcile.overlay import InvalidOverlay, merge_pod_template

BASE = {
    "metadata": {"labels": {"app": "worker"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "containers": [
            {
                "name": "worker",
                "image": "worker:1",
                "args": ["--one"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


def spec_after(overlay_spec: dict) -> dict:
    return merge_pod_template(BASE, {"spec": overlay_spec})["spec"]


def worker_after(overlay: dict) -> dict:
    return spec_after({"containers": [{"name": "worker", **overlay}]})["containers"][0]


def test_nothing_changes_nothing_and_the_base_is_never_touched() -> None:
    before = copy.deepcopy(BASE)
    assert merge_pod_template(BASE, {}) == BASE
    worker_after({"env": [{"name": "A", "value": "9"}], "image": "other"})
    assert before == BASE


def test_containers_merge_by_name() -> None:
    merged = spec_after({"containers": [{"name": "sidecar", "image": "s"}, {"name": "worker", "image": "worker:2"}]})
    assert [c["name"] for c in merged["containers"]] == ["sidecar", "worker"]
    assert merged["containers"][1]["image"] == "worker:2"
    assert merged["containers"][1]["args"] == ["--one"]


def test_env_merges_by_name() -> None:
    merged = worker_after({"env": [{"name": "B", "value": "9"}, {"name": "C", "value": "3"}]})
    assert merged["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "9"}, {"name": "C", "value": "3"}]


def test_ports_merge_by_number_and_mounts_by_path() -> None:
    merged = worker_after(
        {
            "ports": [{"containerPort": 8000, "hostPort": 80}, {"containerPort": 9999, "name": "debug"}],
            "volumeMounts": [{"mountPath": "/tmp", "name": "big"}, {"mountPath": "/x", "name": "x"}],
        }
    )
    assert merged["ports"] == [
        {"name": "http", "containerPort": 8000, "hostPort": 80},
        {"containerPort": 9999, "name": "debug"},
    ]
    assert merged["volumeMounts"] == [{"mountPath": "/tmp", "name": "big"}, {"mountPath": "/x", "name": "x"}]


def test_lists_without_a_key_are_replaced() -> None:
    assert worker_after({"args": ["--two"]})["args"] == ["--two"]
    assert spec_after({"tolerations": [{"key": "gpu"}]})["tolerations"] == [{"key": "gpu"}]
    capabilities = worker_after({"securityContext": {"capabilities": {"drop": ["NET_RAW"]}}})["securityContext"]
    assert capabilities == {"capabilities": {"drop": ["NET_RAW"]}}


def test_maps_merge_and_null_removes() -> None:
    assert spec_after({"nodeSelector": {"gpu": "yes"}})["nodeSelector"] == {"disk": "ssd", "gpu": "yes"}
    assert spec_after({"nodeSelector": {"disk": None}})["nodeSelector"] == {}
    assert "nodeSelector" not in spec_after({"nodeSelector": None})


def test_a_volume_has_one_source_and_the_overlays_wins() -> None:
    merged = spec_after({"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]})["volumes"]
    assert merged == [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]
    merged = spec_after({"volumes": [{"name": "tmp", "hostPath": {"path": "/scratch"}}]})["volumes"]
    assert merged == [{"name": "tmp", "hostPath": {"path": "/scratch"}}]


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ({"containers": [{"name": "worker", "$patch": "delete"}]}, []),
        ({"containers": [{"name": "only"}, {"$patch": "replace"}]}, [{"name": "only"}]),
        ({"containers": [{"name": "worker", "$patch": "replace", "image": "x"}]}, [{"name": "worker", "image": "x"}]),
    ],
)
def test_patch_directives(overlay: dict, expected: list) -> None:
    assert spec_after(overlay)["containers"] == expected


def test_replace_of_a_map_drops_what_was_there() -> None:
    assert spec_after({"nodeSelector": {"$patch": "replace", "gpu": "yes"}})["nodeSelector"] == {"gpu": "yes"}


def test_retain_keys_and_element_order() -> None:
    kept = worker_after({"$retainKeys": ["name", "image"]})
    assert kept == {"name": "worker", "image": "worker:1"}
    ordered = worker_after(
        {"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": [{"name": "B", "value": "9"}]}
    )
    assert [item["name"] for item in ordered["env"]] == ["B", "A"]


@pytest.mark.parametrize(
    ("overlay", "where"),
    [
        ({"spec": 5}, "spec"),
        ({"spec": {"containers": {"name": "worker"}}}, "spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]"),
        ({"spec": {"containers": ["worker"]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "worker", "env": "A=1"}]}}, "spec.containers[0].env"),
        ({"spec": {"nodeSelector": ["gpu"]}}, "spec.nodeSelector"),
        ({"spec": {"containers": [{"name": "worker", "$patch": "drop"}]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "worker", "$retainKeys": "name"}]}}, "spec.containers[0].$retainKeys"),
    ],
)
def test_an_overlay_of_the_wrong_shape_is_refused_with_its_path(overlay: dict, where: str) -> None:
    with pytest.raises(InvalidOverlay) as refused:
        merge_pod_template(BASE, overlay)
    assert refused.value.path == where
