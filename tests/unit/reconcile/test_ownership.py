"""A live object is as applied exactly while every field that we want is recorded as ours."""

import copy

import pytest

from tailkeeper.reconcile.ownership import as_applied, fingerprint, may_manage, owns, same_wish, stamped

DESIRED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "x",
        "namespace": "team",
        "labels": {"a": "1"},
        "ownerReferences": [{"uid": "u-1", "kind": "BatchingPolicy", "controller": True}],
        "finalizers": ["keep"],
    },
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "volumes": [{"name": "tmp", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "worker",
                        "args": ["--a", "--b"],
                        "resources": {"limits": {"cpu": "0.5"}},
                        "ports": [{"containerPort": 8000, "name": "http"}],
                    }
                ],
            }
        },
    },
}


def live_fields() -> dict:
    return {
        "f:metadata": {
            "f:labels": {"f:a": {}},
            "f:annotations": {"f:tailkeeper.dev/applied": {}},
            "f:ownerReferences": {'k:{"uid":"u-1"}': {}},
            "f:finalizers": {".": {}, 'v:"keep"': {}},
        },
        "f:spec": {
            "f:replicas": {},
            "f:template": {
                "f:spec": {
                    "f:volumes": {'k:{"name":"tmp"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
                    "f:containers": {
                        'k:{"name":"worker"}': {
                            ".": {},
                            "f:name": {},
                            "f:args": {},
                            "f:resources": {"f:limits": {"f:cpu": {}}},
                            "f:ports": {
                                'k:{"containerPort":8000,"protocol":"TCP"}': {
                                    ".": {},
                                    "f:containerPort": {},
                                    "f:name": {},
                                }
                            },
                        }
                    },
                }
            },
        },
    }


def live(fields: dict, manager: str = "tailkeeper", operation: str = "Apply", subresource: str | None = None) -> dict:
    found = copy.deepcopy(stamped(DESIRED))
    found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500m"
    entry = {"manager": manager, "operation": operation, "fieldsV1": fields}
    if subresource:
        entry["subresource"] = subresource
    found["metadata"]["managedFields"] = [{"manager": "other", "operation": "Update", "fieldsV1": {}}, entry]
    return found


def without(fields: dict, path: tuple[str, ...]) -> None:
    """Removes a field as the server does: a node that records nothing any more goes too."""
    if path[1:]:
        without(fields[path[0]], path[1:])
    if not path[1:] or not fields[path[0]]:
        del fields[path[0]]


def test_what_was_applied_and_normalised_by_the_server_needs_no_write() -> None:
    assert as_applied(live(live_fields()), stamped(DESIRED))


@pytest.mark.parametrize(
    "path",
    [
        ("f:metadata", "f:labels", "f:a"),
        ("f:metadata", "f:ownerReferences", 'k:{"uid":"u-1"}'),
        ("f:metadata", "f:finalizers", 'v:"keep"'),
        ("f:spec", "f:replicas"),
        ("f:spec", "f:template", "f:spec", "f:volumes", 'k:{"name":"tmp"}'),
        ("f:spec", "f:template", "f:spec", "f:volumes", 'k:{"name":"tmp"}', "f:emptyDir"),
        ("f:spec", "f:template", "f:spec", "f:containers", 'k:{"name":"worker"}', "f:args"),
        ("f:spec", "f:template", "f:spec", "f:containers", 'k:{"name":"worker"}', "f:resources", "f:limits", "f:cpu"),
        (
            "f:spec",
            "f:template",
            "f:spec",
            "f:containers",
            'k:{"name":"worker"}',
            "f:ports",
            'k:{"containerPort":8000,"protocol":"TCP"}',
        ),
    ],
)
def test_a_field_that_somebody_took_or_removed_is_seen(path: tuple[str, ...]) -> None:
    fields = live_fields()
    without(fields, path)
    assert not as_applied(live(fields), stamped(DESIRED))


def test_another_wish_needs_a_write() -> None:
    changed = copy.deepcopy(DESIRED)
    changed["spec"]["replicas"] = 3
    assert not as_applied(live(live_fields()), stamped(changed))
    assert not same_wish(live(live_fields()), stamped(changed))


@pytest.mark.parametrize(
    "other",
    [
        {"manager": "somebody"},
        {"operation": "Update"},
        {"subresource": "status"},
    ],
)
def test_only_our_own_apply_counts(other: dict) -> None:
    assert not as_applied(live(live_fields(), **other), stamped(DESIRED))


def test_preconditions_are_no_part_of_the_wish() -> None:
    wish = stamped(DESIRED)
    wish["metadata"]["uid"] = "u-2"
    wish["metadata"]["resourceVersion"] = "7"
    assert as_applied(live(live_fields()), wish)


def test_owns_follows_a_path_of_fields() -> None:
    found = live(live_fields())
    assert owns(found, "spec", "replicas")
    assert not owns(found, "spec", "paused")


def test_the_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})


@pytest.mark.parametrize(
    ("metadata", "ours"),
    [
        ({"ownerReferences": [{"uid": "u-1", "controller": True}]}, True),
        ({"ownerReferences": [{"uid": "u-2", "controller": True}]}, False),
        ({"labels": {"tailkeeper.dev/policy": "chat"}}, True),
        (
            {
                "labels": {"tailkeeper.dev/policy": "chat"},
                "ownerReferences": [{"uid": "u-2", "controller": True}],
            },
            False,
        ),
        ({"labels": {"tailkeeper.dev/policy": "other"}}, False),
        ({}, False),
    ],
)
def test_only_what_the_policy_controls_or_orphans_of_its_name_are_ours(metadata: dict, ours: bool) -> None:
    assert may_manage({"metadata": metadata}, "chat", "u-1") is ours
