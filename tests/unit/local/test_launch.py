"""How the workers of a policy are started where there is no cluster."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.local.launch import CannotStart, Wishes, launches
from tailkeeper.local.model_source import NoModel


def policy(*models: dict[str, Any], replicas: int | None = None) -> BatchingPolicy:
    instances = [
        {"name": f"m{number}", "model": {"name": "m", "engine": "encoder", **model}, "replicas": replicas}
        for number, model in enumerate(models)
    ]
    document = {"metadata": {"name": "p", "namespace": "shop"}, "spec": {"instances": instances, "drainSeconds": 7}}
    return BatchingPolicy.model_validate(document)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models" / "minilm").mkdir(parents=True)
    return tmp_path / "models"


BY_PATH = {"path": "/models/minilm"}
BY_CLAIM = {"persistentVolumeClaim": {"claimName": "weights", "path": "minilm"}}


@pytest.mark.parametrize("source", [BY_PATH, BY_CLAIM])
def test_a_folder_stands_for_the_mount_and_for_a_claim(source: dict[str, Any], models: Path) -> None:
    (launch,) = launches(policy(source), Wishes(models.parent, models))
    assert f"--model-path={models / 'minilm'}" in launch.program
    assert {"--policy=shop/p", "--model-instance=m0", "--drain-seconds=7", "--endpoint-delay-seconds=0"} <= set(
        launch.program
    )


def test_a_hub_model_needs_no_folder(tmp_path: Path) -> None:
    (launch,) = launches(policy({"huggingFace": {"id": "a/b", "revision": "main"}}), Wishes(tmp_path))
    assert {"--hugging-face-id=a/b", "--hugging-face-revision=main"} <= set(launch.program)


def test_a_missing_folder_is_told_by_its_field(models: Path) -> None:
    with pytest.raises(NoModel, match=r"spec.instances\[m0\].model.path: there is no folder /models/minilm here"):
        launches(policy(BY_PATH), Wishes(models.parent))
    with pytest.raises(
        NoModel, match="a claim needs a cluster; --models DIR takes DIR for the volume of claim weights"
    ):
        launches(policy(BY_CLAIM), Wishes(models.parent))
    with pytest.raises(NoModel, match=f"there is no folder {models.parent}/minilm here"):
        launches(policy(BY_CLAIM), Wishes(models.parent, models.parent))


@pytest.mark.parametrize(("said", "asked", "run"), [(None, None, 1), (3, None, 1), (3, 2, 2), (0, 1, 1)])
def test_one_worker_of_each_unless_asked_otherwise(said: int | None, asked: int | None, run: int, models: Path) -> None:
    found = launches(policy(BY_PATH, replicas=said), Wishes(models.parent, models, replicas=asked))
    assert [launch.name for launch in found] == [f"m0-{number}" for number in range(run)]


def test_nothing_to_run_is_said(models: Path) -> None:
    with pytest.raises(CannotStart, match="replicas are 0 everywhere; --replicas 1"):
        launches(policy(BY_PATH, replicas=0), Wishes(models.parent, models))
    with pytest.raises(CannotStart, match="no instance x; there are m0"):
        launches(policy(BY_PATH), Wishes(models.parent, models, instances=("x",)))


def test_ports_follow_the_first_and_all_differ(models: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        first = probe.getsockname()[1]
    found = launches(policy(BY_PATH, BY_CLAIM), Wishes(models.parent, models, replicas=2, port=first))
    assert [launch.http_port for launch in found] == [first, first + 1, first + 2, first + 3]
    assert len({port for launch in found for port in (launch.http_port, launch.metrics_port)}) == 8
    free = launches(policy(BY_PATH), Wishes(models.parent, models))[0]
    assert free.url == f"http://127.0.0.1:{free.http_port}"


def test_a_taken_port_is_refused(models: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CannotStart, match="already in use; --port"):
        launches(policy(BY_PATH), Wishes(models.parent, models, port=taken.getsockname()[1]))
    with pytest.raises(CannotStart, match="port 65536: no such port"):
        launches(policy(BY_PATH), Wishes(models.parent, models, replicas=2, port=65535))


def test_who_listens_everywhere_is_reached_on_loopback(models: Path) -> None:
    (launch,) = launches(policy(BY_PATH), Wishes(models.parent, models, host="0.0.0.0"))
    assert launch.url.startswith("http://127.0.0.1:")
    assert "--host=0.0.0.0" in launch.program


def test_workers_share_the_cpus(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    two = launches(policy(BY_PATH), Wishes(models.parent, models, replicas=2))
    assert all("--threads=4" in launch.program for launch in two)
    one = launches(policy(BY_PATH), Wishes(models.parent, models))
    assert not any(flag.startswith("--threads") for flag in one[0].program)
