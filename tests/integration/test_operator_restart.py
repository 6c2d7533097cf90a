"""Restarts, upgrades, and peace: nothing is written that need not be (cases O9, O10)."""

import time

from tailkeeper.reconcile.kinds import DEPLOYMENT, POD, POLICY, SERVICE
from tests.integration.operators import always, eventually, one_instance, ready_status, writes_of_operator


def settle(field) -> None:
    """A policy whose pods serve, with the last status written."""
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=8"})
    field.set_pods(ready_status())
    eventually(lambda: field.condition("Ready").get("status") == "True")
    eventually(lambda: field.condition("SettingsApplied").get("reason") == "WorkersSilent")  # nothing runs the pods
    time.sleep(1)


def test_at_rest_nothing_is_written(field, operate) -> None:
    """Ticks, lists and reconciles go on all the time: the server's audit log and every version stay as they are."""
    operator = operate("--relist-seconds=1", "--tick-seconds=0.5")
    settle(field)
    before, written = field.versions(), writes_of_operator(field.plane, field.namespace)
    ticks = operator.metric("tailkeeper_operator_ticks_total")
    always(lambda: field.versions() == before, for_s=12)
    assert writes_of_operator(field.plane, field.namespace) == written
    assert operator.metric("tailkeeper_operator_ticks_total") > ticks + 10


def test_a_restarted_operator_adopts_without_a_write(field, operate) -> None:
    operator = operate()
    settle(field)
    before, written = field.versions(), len(writes_of_operator(field.plane, field.namespace))
    assert operator.stop() == 0
    successor = operate()
    eventually(lambda: successor.metric("tailkeeper_operator_reconciles_total", result="ok") >= 1)
    time.sleep(2)
    assert field.versions() == before
    assert len(writes_of_operator(field.plane, field.namespace)) == written


def test_a_new_operator_version_restarts_no_worker(field, operate, tmp_path) -> None:
    """Case O9: another worker image and other defaults reach new instances, and old ones when somebody says so."""
    operate().stop()
    operator = operate()
    settle(field)
    template, pods = field.template(), {pod["metadata"]["uid"] for pod in field.all_of(POD)}
    operator.stop()

    overlay = tmp_path / "template.yaml"
    overlay.write_text("spec: {priorityClassName: system-node-critical, hostname: renamed}")
    operate("--worker-image=worker:2", f"--worker-template={overlay}")
    field.apply(annotations={"tailkeeper.dev/set.small": "ceiling=4"})  # proof that the new one is at work
    eventually(lambda: field.settings()["ceiling"] == 4)
    assert field.template() == template
    assert {pod["metadata"]["uid"] for pod in field.all_of(POD)} == pods
    assert field.get(DEPLOYMENT)["metadata"]["generation"] == 1

    field.apply(annotations={"tailkeeper.dev/roll": "2"})
    eventually(lambda: field.template()["spec"]["containers"][0]["image"] == "worker:2")
    assert field.template()["spec"]["hostname"] == "renamed"
    field.apply("fresh")
    fresh = eventually(lambda: field.get(DEPLOYMENT, "fresh-small"))
    assert fresh["spec"]["template"]["spec"]["containers"][0]["image"] == "worker:2"


def test_what_happened_while_no_operator_ran_is_made_good(field, operate) -> None:
    operator = operate()
    field.apply()
    field.apply("leaves")
    eventually(lambda: field.has() and field.has("leaves"))
    operator.stop()
    field.edit(DEPLOYMENT, {"spec": {"replicas": 9}})
    field.apply("comes")
    operate()
    eventually(lambda: field.has("comes"))
    eventually(lambda: field.get(DEPLOYMENT)["spec"]["replicas"] == 1)


def test_it_stops_quickly_when_asked_and_starts_again_when_killed(field, operate) -> None:
    operator = operate()
    field.apply()
    eventually(field.has)
    began_s = time.monotonic()
    assert operator.stop() == 0
    assert time.monotonic() - began_s < 3
    operator = operate()
    operator.process.kill()
    operator.process.wait()
    operate()
    field.apply("second")
    eventually(lambda: field.has("second"))


def test_a_deleted_policy_takes_everything_with_it_although_no_operator_runs(field, operate) -> None:
    """Case O4: after `helm uninstall` nothing may stand in the way of `kubectl delete`."""
    operator = operate()
    field.apply()
    eventually(field.has)
    operator.stop()
    field.delete(POLICY, "chat")
    assert field.get(POLICY, "chat") is None
    eventually(lambda: not field.ours(), within_s=60)  # the collector learns of new kinds every 30 s


def test_other_namespaces_are_left_alone(field, operate) -> None:
    other = f"{field.namespace}-other"
    field.client.post("/api/v1/namespaces", json={"metadata": {"name": other}}).raise_for_status()
    try:
        operate()
        path = POLICY.path(other)
        policy = {"apiVersion": POLICY.api_version, "kind": POLICY.name, "metadata": {"name": "chat"}}
        field.client.post(path, json={**policy, "spec": one_instance()}).raise_for_status()
        field.apply()
        eventually(field.has)
        assert field.client.get(SERVICE.path(other)).json()["items"] == []
        assert "status" not in field.client.get(f"{path}/chat").json()
    finally:
        field.client.delete(f"/api/v1/namespaces/{other}").raise_for_status()
