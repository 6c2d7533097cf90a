"""What others change on our objects is put back; what they add is theirs."""

import time

from tailkeeper.reconcile.kinds import CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, ROLE, SERVICE
from tests.integration.operators import eventually, writes_of_operator


def test_an_edited_deployment_is_put_back_and_said(field, operator) -> None:
    field.apply()
    eventually(field.has)
    wanted = field.template()
    worker = wanted["spec"]["containers"][0]
    edited = {"spec": {"replicas": 7, "template": {"spec": {"containers": [{**worker, "image": "mine:1"}]}}}}
    field.edit(DEPLOYMENT, edited)
    eventually(lambda: field.template() == wanted, within_s=5)
    assert field.get(DEPLOYMENT)["spec"]["replicas"] == 1
    eventually(lambda: field.events("Repaired"))


def test_what_others_add_stays(field, operator) -> None:
    field.apply()
    eventually(field.has)
    field.edit(DEPLOYMENT, {"metadata": {"annotations": {"mesh": "on"}}, "spec": {"paused": False}})
    restarted = {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}
    field.edit(DEPLOYMENT, restarted)
    field.edit(SERVICE, {"spec": {"sessionAffinity": "ClientIP"}})
    field.delete(DISRUPTION_BUDGET)
    eventually(lambda: field.get(DISRUPTION_BUDGET))
    deployment = field.get(DEPLOYMENT)
    assert deployment["metadata"]["annotations"]["mesh"] == "on"
    assert deployment["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] == "now"
    assert field.get(SERVICE)["spec"]["sessionAffinity"] == "ClientIP"


def test_what_others_add_goes_where_nobody_would_be_served_or_settings_could_not_change(field, operator) -> None:
    field.apply()
    eventually(field.has)
    eventually(lambda: field.instance().get("effective"))
    before = field.settings()["generation"]
    field.edit(SERVICE, {"spec": {"type": "ExternalName", "externalName": "elsewhere.example", "clusterIP": None}})
    field.edit(DEPLOYMENT, {"spec": {"paused": True}})
    field.edit(DISRUPTION_BUDGET, {"spec": {"maxUnavailable": None, "minAvailable": 1}})
    field.edit(CONFIG_MAP, {"immutable": True}, "chat-small-settings")
    eventually(lambda: field.get(SERVICE)["spec"]["type"] == "ClusterIP", within_s=5)
    service = field.get(SERVICE)["spec"]
    assert service["clusterIP"]
    assert "externalName" not in service
    assert service["selector"]["tailkeeper.dev/policy"] == "chat"
    eventually(lambda: not field.get(DEPLOYMENT)["spec"].get("paused"))
    eventually(lambda: "minAvailable" not in field.get(DISRUPTION_BUDGET)["spec"])
    assert field.get(DISRUPTION_BUDGET)["spec"]["maxUnavailable"] == 1
    made = eventually(lambda: (c := field.get(CONFIG_MAP, "chat-small-settings")) and not c.get("immutable") and c)
    assert made["data"]
    assert field.settings()["generation"] >= before
    field.edit(SERVICE, {"spec": {"publishNotReadyAddresses": True}})
    eventually(lambda: not field.get(SERVICE)["spec"].get("publishNotReadyAddresses"))
    said = eventually(lambda: (e := {event["message"] for event in field.events("Repaired")}) and len(e) >= 5 and e)
    assert "Deployment chat-small was changed by others (spec.paused: true): put back" in said
    # And nothing is written for ever after.
    time.sleep(1)
    written = len(writes_of_operator(field.plane, field.namespace))
    time.sleep(5)
    assert len(writes_of_operator(field.plane, field.namespace)) == written


def test_another_controller_that_insists_is_not_fought_at_full_speed(field, operator) -> None:
    field.apply()
    eventually(field.has)
    before = len(writes_of_operator(field.plane, field.namespace))
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        field.edit(SERVICE, {"spec": {"selector": {"tailkeeper.dev/policy": "theirs"}}})
        time.sleep(0.1)
    event = eventually(lambda: field.events("ChangedByOthers"))[0]
    assert event["message"] == "Service chat-small is changed again and again by somebody"
    writes = writes_of_operator(field.plane, field.namespace)[before:]
    assert len([w for w in writes if w[1] == "services"]) <= 6


def test_a_deleted_service_comes_back(field, operator) -> None:
    field.apply()
    eventually(field.has)
    before = field.get(SERVICE)["metadata"]["uid"]
    field.delete(SERVICE)
    eventually(lambda: (s := field.get(SERVICE)) and s["metadata"]["uid"] != before, within_s=5)
    (event,) = eventually(lambda: field.events("Repaired"))
    assert event["message"] == "Service chat-small was deleted: made anew"


def test_fields_of_every_depth_are_put_back(field, operator) -> None:
    field.apply()
    eventually(field.has)
    role = field.get(ROLE)["rules"]
    field.edit(ROLE, {"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]})
    field.edit(SERVICE, {"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 1234}]}})
    field.edit(DEPLOYMENT, {"metadata": {"ownerReferences": None, "labels": {"tailkeeper.dev/model-instance": "x"}}})
    eventually(lambda: field.get(ROLE)["rules"] == role)
    eventually(lambda: 8000 in {port["port"] for port in field.get(SERVICE)["spec"]["ports"]})
    eventually(lambda: field.get(DEPLOYMENT)["metadata"].get("ownerReferences"))
    eventually(lambda: field.get(DEPLOYMENT)["metadata"]["labels"]["tailkeeper.dev/model-instance"] == "small")


def test_an_object_that_lost_our_label_is_found_and_labelled_again(field, operator) -> None:
    field.apply()
    eventually(field.has)
    before = field.get(SERVICE)["metadata"]["uid"]
    field.edit(SERVICE, {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})
    eventually(lambda: field.get(SERVICE)["metadata"]["labels"].get("app.kubernetes.io/managed-by") == "tailkeeper")
    assert field.get(SERVICE)["metadata"]["uid"] == before
    field.edit(SERVICE, {"spec": {"selector": {"app": "mine"}}})
    eventually(lambda: field.get(SERVICE)["spec"]["selector"].get("tailkeeper.dev/policy") == "chat")


def test_an_edited_settings_document_is_overruled_by_a_newer_generation(field, operator) -> None:
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=8"})
    eventually(lambda: field.settings().get("ceiling") == 8)
    eventually(lambda: field.instance().get("effective"))
    field.edit(CONFIG_MAP, {"data": {"settings.json": '{"generation": 41}'}}, "chat-small-settings")
    settings = eventually(lambda: (s := field.settings())["generation"] > 41 and s)
    assert settings["ceiling"] == 8
    said = eventually(
        lambda: [e["message"] for e in field.events("Repaired") if "same values once more" in e["message"]]
    )
    assert said[0].startswith(f"small: generation {settings['generation']}, ")


def test_a_deleted_settings_map_comes_back_with_its_levers_and_a_newer_generation(field, operator) -> None:
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=8"})
    eventually(lambda: field.settings().get("ceiling") == 8)
    eventually(lambda: field.instance().get("effective"))
    before = field.settings()
    field.delete(CONFIG_MAP, "chat-small-settings")
    settings = eventually(lambda: (s := field.settings()).get("generation", 0) > before["generation"] and s)
    assert settings["ceiling"] == 8
