"""What others add is theirs, except where it would stop an instance from serving or its settings from travelling."""

import time

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT
from tests.integration.operators import Field, eventually, one_instance, writes_of_operator


@pytest.fixture
def made(field: Field, operator) -> Field:
    field.apply()
    eventually(field.has)
    return field


def test_a_key_that_others_add_is_not_taken_for_the_settings(made) -> None:
    before = made.settings()
    made.edit(CONFIG_MAP, {"data": {"a-note": "mine"}}, "chat-small-settings")
    made.edit(CONFIG_MAP, {"metadata": {"labels": {"app.kubernetes.io/component": "x"}}}, "chat-small-settings")
    eventually(
        lambda: made.get(CONFIG_MAP, "chat-small-settings")["metadata"]["labels"]["app.kubernetes.io/component"] != "x"
    )
    assert made.settings() == before


@pytest.mark.parametrize(
    "added",
    [
        {"schedulingGates": [{"name": "example.org/wait"}]},
        {"hostNetwork": True},
        {"nodeSelector": {"no": "where"}},
        {"nodeName": "nowhere"},
    ],
    ids=lambda added: next(iter(added)),
)
def test_what_keeps_pods_from_starting_is_taken_out_of_the_template(made, added) -> None:
    wanted = made.template()
    made.edit(DEPLOYMENT, {"spec": {"template": {"spec": added}}})
    eventually(lambda: made.template() == wanted, within_s=8)


def test_what_the_policys_own_template_sets_stays(field, operator) -> None:
    own = {"spec": {"nodeSelector": {"gpu": "yes"}, "hostNetwork": True}}
    field.apply(spec=one_instance(template=own))
    eventually(field.has)
    time.sleep(2)
    spec = field.template()["spec"]
    assert spec["nodeSelector"] == {"gpu": "yes"}
    assert spec["hostNetwork"] is True


def test_a_repair_that_the_server_refuses_is_no_fight(made) -> None:
    """The deadline that we want is under what others made the least wait: every apply of ours is refused."""
    made.edit(DEPLOYMENT, {"spec": {"minReadySeconds": 10_000, "progressDeadlineSeconds": 10_001}})
    eventually(lambda: made.condition("Ready").get("reason") == "Refused")
    refused = ("deployments", 422)
    eventually(
        lambda: sum(write[1:] == refused for write in writes_of_operator(made.plane, made.namespace)) > 12, within_s=75
    )
    assert not made.events("ChangedByOthers")
    made.edit(DEPLOYMENT, {"spec": {"minReadySeconds": None}})
    eventually(lambda: made.get(DEPLOYMENT)["spec"]["progressDeadlineSeconds"] < 10_000, within_s=60)
