"""What others may not add to our objects, because nobody would be served, or nothing could be changed any more."""

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, SERVICE, Kind, Manifest
from tailkeeper.reconcile.spoiled import spoiled


def desired(kind: Kind, **pods: object) -> Manifest:
    return {"apiVersion": kind.api_version, "kind": kind.name, "spec": {"template": {"spec": pods}}}


@pytest.mark.parametrize(
    ("kind", "live", "what"),
    [
        (SERVICE, {"spec": {"type": "ExternalName", "externalName": "x.example"}}, "spec.type: ExternalName"),
        (SERVICE, {"spec": {"publishNotReadyAddresses": True}}, "spec.publishNotReadyAddresses: true"),
        (DEPLOYMENT, {"spec": {"paused": True}}, "spec.paused: true"),
        (DISRUPTION_BUDGET, {"spec": {"minAvailable": 2}}, "spec.minAvailable: 2"),
        (CONFIG_MAP, {"data": {}, "immutable": True}, "immutable: true"),
    ],
)
def test_what_stops_serving_or_settings_has_to_go(kind: Kind, live: Manifest, what: str) -> None:
    found = spoiled(live, desired(kind))
    assert found is not None
    assert found.what == what
    assert (found.patch is None) == (kind is CONFIG_MAP)


@pytest.mark.parametrize(
    ("kind", "live"),
    [
        (SERVICE, {"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}}),
        (DEPLOYMENT, {"spec": {"paused": False, "minReadySeconds": 5, "template": {"spec": {"tolerations": [{}]}}}}),
        (DISRUPTION_BUDGET, {"spec": {"maxUnavailable": 1}}),
        (CONFIG_MAP, {"data": {}}),
    ],
)
def test_everything_else_that_others_add_stays(kind: Kind, live: Manifest) -> None:
    assert spoiled(live, desired(kind)) is None


@pytest.mark.parametrize("field", ["schedulingGates", "nodeName", "nodeSelector", "hostNetwork"])
def test_what_keeps_pods_from_starting_has_to_go_unless_the_policy_says_so_itself(field: str) -> None:
    live = {"spec": {"template": {"spec": {field: {"set": "by others"}}}}}
    found = spoiled(live, desired(DEPLOYMENT))
    assert found == (f"spec.template.spec.{field}", {"spec": {"template": {"spec": {field: None}}}})
    assert spoiled(live, desired(DEPLOYMENT, **{field: "ours"})) is None
