"""Status shows what the *worker* says it applies (case S6). Real worker processes stand in for the pods' containers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP
from tests.integration.operators import Field, always, eventually, one_instance, ready_status
from tests.integration.worker_process import REPOSITORY, WorkerProcess


@pytest.fixture
def worker(field: Field, tmp_path: Path) -> Iterator[WorkerProcess]:
    """The worker of instance `small`; it reads its settings from a file that the test writes."""
    program = [sys.executable, "-m", "tests.integration.worker_process"]
    flags = ["--policy", f"{field.namespace}/chat", "--model-instance", "small"]
    path = {"PYTHONPATH": f"{REPOSITORY / 'operator'}:{REPOSITORY}"}
    process = WorkerProcess(tmp_path, program, flags, path)
    yield process
    process.process.kill()
    process.process.wait()


def deliver(field: Field, worker: WorkerProcess) -> None:
    """What the kubelet does with the mounted ConfigMap."""
    config_map = field.get(CONFIG_MAP, "chat-small-settings")
    assert config_map is not None
    replacement = worker.settings_file.with_suffix(".new")
    replacement.write_text(config_map["data"]["settings.json"])
    replacement.rename(worker.settings_file)


def asked_on(port: int) -> dict:
    """An instance whose workers have their metrics port there."""
    ports = [{"containerPort": 9000, "$patch": "delete"}, {"containerPort": port, "name": "metrics"}]
    return one_instance(template={"spec": {"containers": [{"name": "worker", "ports": ports}]}})


def serve(field: Field, worker: WorkerProcess) -> None:
    """A policy whose one pod is this worker, in sync."""
    field.apply(spec=asked_on(worker.metrics_port))
    eventually(field.has)
    deliver(field, worker)
    worker.until_ready()
    field.set_pods(ready_status("127.0.0.1"))
    eventually(lambda: field.condition("SettingsApplied").get("status") == "True")


def test_what_a_worker_applies_shows_in_the_status(field, operator, worker) -> None:
    serve(field, worker)
    assert field.instance()["appliedGeneration"] == 1
    field.apply(spec=asked_on(worker.metrics_port), annotations={"tailkeeper.dev/set.small": "ceiling=4"})
    eventually(lambda: field.instance()["settingsGeneration"] == 2)
    deliver(field, worker)
    eventually(lambda: field.instance()["appliedGeneration"] == 2)
    assert field.condition("SettingsApplied")["status"] == "True"


def test_a_worker_that_stays_behind_for_over_ten_seconds_is_a_condition(field, operator, worker) -> None:
    serve(field, worker)
    field.apply(spec=asked_on(worker.metrics_port), annotations={"tailkeeper.dev/set.small": "ceiling=4"})
    eventually(lambda: field.instance()["settingsGeneration"] == 2)
    always(lambda: field.condition("SettingsApplied")["status"] == "True", for_s=7)
    applied = eventually(lambda: (c := field.condition("SettingsApplied"))["status"] == "False" and c)
    assert "applies generation 1, not 2" in applied["message"]
    assert field.instance()["appliedGeneration"] == 1
    eventually(lambda: field.events("SettingsNotApplied"))
    deliver(field, worker)
    eventually(lambda: field.condition("SettingsApplied")["status"] == "True")


def test_a_worker_that_refuses_says_why(field, operator, worker) -> None:
    serve(field, worker)
    worker.settings_file.write_text('{"generation": 2}')
    field.apply(spec=asked_on(worker.metrics_port), annotations={"tailkeeper.dev/set.small": "ceiling=4"})
    applied = eventually(lambda: (c := field.condition("SettingsApplied"))["status"] == "False" and c)
    assert "applies generation 1, not 2: " in applied["message"]


def test_a_worker_that_falls_silent_is_unknown(field, operator, worker) -> None:
    serve(field, worker)
    worker.process.kill()
    applied = eventually(lambda: (c := field.condition("SettingsApplied"))["status"] == "Unknown" and c)
    assert "does not answer" in applied["message"]


def test_generations_go_past_what_workers_apply_already(field, operator, worker) -> None:
    """As after a restore of the cluster from a backup: a worker refuses what is older than what it applies."""
    serve(field, worker)
    ahead = worker.settings_file.read_text().replace('"generation": 1,', '"generation": 40,')
    worker.settings_file.write_text(ahead)
    eventually(lambda: field.settings()["generation"] == 41)
    deliver(field, worker)
    eventually(lambda: field.instance()["appliedGeneration"] == 41)


def test_what_a_worker_says_while_it_loads_is_the_message(field, operator, worker) -> None:
    field.apply(spec=asked_on(worker.metrics_port))
    eventually(field.has)
    status = {**ready_status("127.0.0.1"), "conditions": []}
    field.set_pods(status)
    ready = eventually(lambda: (c := field.condition("Ready")) and "no settings" in c["message"] and c)
    assert ready["reason"] == "Starting"
