"""What others may not add to our objects, because nobody would be served, or nothing could be changed any more."""

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, SERVICE, Kind, Manifest
from tailkeeper.reconcile.spoiled import spoiled


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
    found = spoiled(kind, live)
    assert found is not None
    assert found.what == what
    assert (found.patch is None) == (kind is CONFIG_MAP)


@pytest.mark.parametrize(
    ("kind", "live"),
    [
        (SERVICE, {"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}}),
        (DEPLOYMENT, {"spec": {"paused": False, "minReadySeconds": 5}}),
        (DISRUPTION_BUDGET, {"spec": {"maxUnavailable": 1}}),
        (CONFIG_MAP, {"data": {}}),
    ],
)
def test_everything_else_that_others_add_stays(kind: Kind, live: Manifest) -> None:
    assert spoiled(kind, live) is None
