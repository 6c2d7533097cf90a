"""`tailkeeper run`: real workers on MiniLM without a cluster, live settings, and nothing left behind."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tailkeeper.control.record import replay
from tests.integration.local_run import TAILKEEPER, LocalRun, gone, policy, running, stopped, write
from tests.integration.worker_process import MINILM


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    with running(tmp_path_factory.mktemp("run"), policy()) as run:
        run.until("ready", model="minilm")
        yield run
        assert run.end() == 0, run.told()
        assert all(gone(pid) for pid in run.pids)


def embed(run: LocalRun, **more: Any) -> httpx.Response:
    return httpx.post(f"{run.url}/v1/embeddings", json={"model": "minilm", "input": "hello", **more}, timeout=120)


def test_a_request_is_served_and_the_way_to_send_one_is_told(served: LocalRun) -> None:
    answer = embed(served)
    assert answer.status_code == 200
    assert "exec;dur=" in answer.headers["server-timing"]
    told = served.until("ready", model="minilm")
    assert told["tiers"] == {"interactive": 10_000, "standard": 50_000, "batch": 600_000}
    ran = subprocess.run(["bash", "-c", told["curl"]], capture_output=True, text=True, timeout=60, check=True)
    assert '"embedding"' in ran.stdout


def test_an_edit_reaches_the_worker_within_two_seconds_and_restarts_nothing(served: LocalRun) -> None:
    pids, before = served.pids, served.settings()["generation"]
    write(served.file, policy(batching={"tailLatencySlaMs": 10_000, "windowIdle": 32}))
    deadline = time.monotonic() + 2
    while (now := served.settings())["settings"]["windowIdle"] != 32:
        assert time.monotonic() < deadline, served.told()
        time.sleep(0.02)
    assert now["generation"] > before
    served.until("applied", generation=now["generation"])
    assert served.pids == pids


def test_an_annotation_moves_a_lever_and_a_bad_one_is_refused(served: LocalRun) -> None:
    document = policy()
    document["metadata"]["annotations"] = {"tailkeeper.dev/set.minilm": "ceiling=8"}
    since = len(served.lines)
    write(served.file, document)
    moved = served.until("settings", since, cause="Manual")
    assert moved["changes"][0]["after"] == "8"
    served.until("applied", since, generation=moved["generation"])
    assert served.settings()["settings"]["ceiling"] == 8
    document["metadata"]["annotations"] = {"tailkeeper.dev/set.minilm": "ceiling=800"}
    write(served.file, document)
    assert "ceiling=800 is out of bounds" in served.until("refused", since)["text"]
    assert served.settings()["settings"]["ceiling"] == 8


def test_an_edit_that_makes_no_sense_changes_nothing(served: LocalRun) -> None:
    since, before = len(served.lines), served.settings()
    write(served.file, policy(batching={"windowIdle": 2, "windowBusy": 4}))
    assert "windowBusy (4) must not exceed windowIdle (2)" in served.until("refused", since)["text"]
    served.file.write_text("")
    time.sleep(1)
    assert served.settings()["generation"] == before["generation"]
    assert embed(served).status_code == 200


def test_a_killed_worker_comes_back_with_the_newest_settings(served: LocalRun) -> None:
    since, generation = len(served.lines), served.settings()["generation"]
    url = served.url
    os.kill(served.pids[-1], signal.SIGKILL)
    assert "was killed by SIGKILL" in served.until("died", since)["text"]
    served.until("restarted", since)
    served.until("ready", since, worker="minilm-0")
    assert served.url == url
    assert served.settings()["generation"] == generation
    assert embed(served).status_code == 200


def test_decisions_are_kept_and_are_decided_alike_again(served: LocalRun) -> None:
    served.until("status", len(served.lines))  # longer than a look
    lines = (served.file.parent / "run" / "minilm" / "ticks.jsonl").read_text().splitlines()
    assert lines
    assert list(replay(lines)) == []


def test_sigterm_lets_a_request_in_flight_finish(tmp_path: Path) -> None:
    with running(tmp_path, policy()) as run:
        url = run.url
        answers: list[httpx.Response] = []
        texts = ["many words " * 100] * 48
        body = {"model": "minilm", "input": texts, "tier": "batch"}
        sending = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/embeddings", json=body, timeout=120))
        )
        sending.start()
        time.sleep(0.4)
        assert not answers, "too fast to be in flight"
        assert run.end() == 0, run.told()
        sending.join(10)
        assert answers[0].status_code == 200
        assert len(answers[0].json()["data"]) == len(texts)
        assert all(gone(pid) for pid in run.pids)
        assert run.lines[-1]["event"] == "stopped"


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    with running(tmp_path, policy()) as run:
        pid = run.until("started")["pid"]
        assert stopped(pid)  # a worker that does not listen
        run.process.send_signal(signal.SIGINT)
        run.until("stopping")
        assert run.end(signal.SIGINT, 10) == 130, run.told()
        assert gone(pid)


def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, policy(), "--replicas", "2") as run:
        run.until("started", worker="minilm-1")
        assert len(run.pids) == 2
        run.end(signal.SIGKILL)
        assert all(gone(pid) for pid in run.pids)


def refused(*arguments: str) -> str:
    """The one line that it says before it ends with status 2."""
    ran = subprocess.run([TAILKEEPER, "run", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, ran.stderr
    return lines[0]


def test_what_cannot_be_run_is_one_line_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"

    def said(document: Any, *flags: str) -> str:
        file.write_text(document if isinstance(document, str) else yaml.safe_dump_all(document))
        return refused(str(file), "--dir", str(tmp_path / "run"), *flags)

    other = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chat"}}
    assert "No such file" in refused(str(tmp_path / "nowhere.yaml"))
    assert "no BatchingPolicy in it" in said([other])
    assert "not YAML" in said("a: [")
    assert "windowBusy (4) must not exceed" in said([other, policy(batching={"windowIdle": 2, "windowBusy": 4})])
    assert "spec.trafficClass" in said([policy(trafficClass="night")])
    assert "there is no folder /models/model here; --models DIR" in said([policy()])
    claim = policy()
    claim["spec"]["instances"][0]["model"] = {
        "name": "minilm",
        "engine": "encoder",
        "persistentVolumeClaim": {"claimName": "weights", "path": "minilm"},
    }
    assert "a claim needs a cluster; --models DIR takes DIR for the volume of claim weights" in said([claim])
    assert "no instance other; there are minilm" in said([policy()], "--instance", "other")
    server = policy()
    server["spec"]["instances"][0]["model"] = {"name": "x", "engine": "triton", "url": "grpc://127.0.0.1:1"}
    assert "no engine 'triton'" in said([server])


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    write(file, policy())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(str(file), "--models", str(MINILM.parent), "--port", port)
        assert f"127.0.0.1 port {port}: Address already in use; --port takes another one" in line
