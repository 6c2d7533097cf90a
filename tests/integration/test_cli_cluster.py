"""`tailkeeper set`, `pause`, `resume`, `status` on a real API server, with a real operator and a worker."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tailkeeper.reconcile.kinds import POLICY
from tests.integration.control_plane import free_port
from tests.integration.operators import Field, OperatorProcess, always, eventually, one_instance, ready_status
from tests.integration.pretend_worker import PretendWorker

TAILKEEPER = str(Path(sys.executable).with_name("tailkeeper"))
DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
SPEC = {
    "batching": {"tailLatencySlaMs": 200, "windowIdle": 64, "windowBusy": 16},
    "tiers": [{"name": "interactive", "timeoutMs": 400}, {"name": "batch", "deadlineMs": 12_000}],
    "retune": {"mode": "Off"},
    **one_instance(),
}


def metrics_on(port: int) -> dict:
    """The policy with the workers' metrics port there: a connection that is kept alive outlives a test's worker."""
    ports = [{"containerPort": 9000, "$patch": "delete"}, {"containerPort": port, "name": "metrics"}]
    return {**SPEC, **one_instance(template={"spec": {"containers": [{"name": "worker", "ports": ports}]}})}


def own_address() -> str:
    """The API server proxies to no loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address


class Cli:
    """The command in a process of its own, as the administrator of the test's namespace."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.access = ("--kubeconfig", str(field.plane.kubeconfig), "-n", field.namespace)

    def __call__(self, *arguments: str, access: tuple[str, ...] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TAILKEEPER, *arguments, *(self.access if access is None else access)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env={**os.environ, "HOME": "/nowhere"},
        )


@pytest.fixture
def cli(field: Field, operator: OperatorProcess) -> Cli:
    """A policy `chat` without workers."""
    field.apply(spec=SPEC)
    eventually(field.has)
    return Cli(field)


@pytest.fixture
def served(field: Field, operator: OperatorProcess) -> Iterator[Cli]:
    """With one worker, in sync, that serves 50 requests a second."""
    port = free_port()
    field.apply(spec=metrics_on(port))
    eventually(field.has)
    view = Field(field.plane, field.namespace)  # a client of its own: it is asked from another thread
    with view.client:
        worker = PretendWorker(lambda: json.dumps(view.settings()), 50)
        worker.ip, worker.port = own_address(), port
        with worker.running():
            field.set_pods(ready_status(worker.ip))
            eventually(lambda: field.instance().get("appliedGeneration") == 1)
            yield Cli(field)


def row(cli: Cli, *arguments: str) -> dict:
    ran = cli("status", "chat", "-o", "json", *arguments)
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(ran.stdout)["instances"]
    return found


def test_a_move_by_hand_is_applied_and_said(served: Cli, field: Field) -> None:
    ran = served("set", "chat/small", "ceiling=8", "maxHold.interactive=5ms", "--yes")
    assert ran.returncode == 0, ran.stderr
    assert "chat/small: ceiling 64 → 8, maxHold.interactive 4ms → 5ms" in ran.stdout
    assert "generation 2 is applied by 1 worker" in ran.stdout
    assert (field.settings()["ceiling"], field.settings()["tiers"][0]["maxHoldMs"]) == (8, 5)
    again = served("set", "chat/small", "ceiling=8")
    assert (again.returncode, again.stdout) == (0, "chat/small: ceiling=8 already holds\n")


def test_asking_for_the_same_again_after_it_was_undone_acts_again(cli: Cli, field: Field) -> None:
    """The operator acts once on each text of the annotation."""
    assert cli("set", "chat/small", "ceiling=8", "-y").returncode == 0
    for idle in (8, 64):  # where the ceiling is what the spec says it counts as never moved, and follows it
        field.apply(spec={**SPEC, "batching": {**SPEC["batching"], "windowBusy": 8, "windowIdle": idle}})
        eventually(lambda idle=idle: field.instance()["effective"]["windowIdle"] == idle)
    assert field.settings()["ceiling"] == 64
    ran = cli("set", "chat/small", "ceiling=8", "-y")
    assert ran.returncode == 0, ran.stderr
    assert field.settings()["ceiling"] == 8


def test_without_a_worker_it_is_written_and_that_is_said(cli: Cli, field: Field) -> None:
    ran = cli("set", "chat/small", "ceiling=8", "-y")
    assert ran.returncode == 0, ran.stderr
    assert "generation 2 is written; no worker is ready to apply it yet" in ran.stdout
    assert field.settings()["ceiling"] == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("chat/small", "ceilng=8"), "ceilng: there is no such lever; there are ceiling, "),
        (("chat/small", "ceiling=65"), "ceiling=65 is out of bounds: 1 to 64"),
        (("chat/small", "maxHold.gold=5"), "there is no such tier; there are interactive, batch"),
        (("chat/small", "ceiling"), "ceiling: write LEVER=VALUE"),
        (("chat/big", "ceiling=8"), "chat has no instance big; there are small"),
        (("chatt/small", "ceiling=8"), "no BatchingPolicy chatt in namespace"),
        (("chat/", "ceiling=8"), "write POLICY/INSTANCE"),
        (("chat/small", "ceiling=8"), "add --yes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_set_is_one_clear_line(cli: Cli, field: Field, arguments: tuple[str, ...], says: str) -> None:
    yes = () if says == "add --yes" else ("-y",)
    ran = cli("set", *arguments, *yes)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert "tailkeeper.dev/set.small" not in field.get(POLICY, "chat")["metadata"].get("annotations", {})


def test_an_operator_that_does_not_answer_is_said_in_time(cli: Cli, operator: OperatorProcess) -> None:
    operator.process.send_signal(signal.SIGSTOP)
    try:
        ran = cli("set", "chat/small", "ceiling=8", "-y", "--timeout", "1")
    finally:
        operator.process.send_signal(signal.SIGCONT)
    assert (ran.returncode, ran.stdout) == (1, "chat/small: ceiling 64 → 8\n")
    assert ran.stderr == "error: not within 1 s: the operator has not written it: is it running?\n"


def test_pause_and_resume(cli: Cli, field: Field) -> None:
    assert cli("pause", "chat", "-y").stdout == "chat/small: the tuner's hands are off\n"
    assert field.instance()["paused"] is True
    assert row(cli)["paused"] is True
    assert cli("pause", "chat/small", "-y").stdout == "chat/small: already paused\n"
    assert cli("resume", "chat/small", "-y").stdout == "chat/small: the tuner may move again\n"
    assert field.instance()["paused"] is False
    assert cli("resume", "chat", "-y").stdout == "chat: already not paused\n"
    assert cli("pause", "chat/big", "-y").returncode == 2


def test_status_reads_the_workers_through_the_api_server(served: Cli) -> None:
    served("set", "chat/small", "ceiling=8", "-y")
    found = row(served)
    assert (found["readyReplicas"], found["slaMs"], found["ceiling"], found["windowBusy"]) == (1, 200, 8, 16)
    assert (found["generationWritten"], found["generationApplied"]) == (2, 2)
    assert (found["lastMove"]["cause"], found["lastMove"]["outcome"]) == ("Manual", "Pending")
    assert (found["workersRead"], found["timeoutRatio"]) == (1, 0)
    assert 0.05 < found["busyFraction"] < 0.9
    assert found["window"] is not None
    table = served("status").stdout
    assert re.search(r"^chat/small +1/1 +200ms .* 16…64 ≤8 .* 2 +request/Off +Manual: ceiling 64→8", table, re.M)
    assert yaml.safe_load(served("status", "-o", "yaml").stdout)["instances"][0]["policy"] == "chat"


def test_status_tells_what_is_wrong(cli: Cli, field: Field) -> None:
    ran = cli("status", "chat/small")
    assert ran.returncode == 0
    assert re.search(r"^chat/small: \w+", ran.stdout, re.M), ran.stdout
    everywhere = cli("status", "-A", access=cli.access[:2]).stdout
    assert re.search(rf"^{field.namespace} +chat/small", everywhere, re.M)
    assert cli("status", "other").returncode == 2
    assert "no BatchingPolicy here" in cli("status", access=(*cli.access[:2], "-n", "default")).stdout


def test_status_with_a_prometheus_that_is_none(cli: Cli) -> None:
    ran = cli("status", "--prometheus", "http://127.0.0.1:9")
    assert ran.returncode == 2
    assert "cannot be reached" in ran.stderr


def test_a_server_that_is_away_or_does_not_know_us_is_one_line(cli: Cli, tmp_path: Path) -> None:
    content = json.loads(cli.field.plane.kubeconfig.read_text())
    other = tmp_path / "config"
    content["users"][0]["user"]["token"] = "wrong"
    other.write_text(json.dumps(content))
    ran = cli("status", access=("--kubeconfig", str(other)))
    assert (ran.returncode, "does not know who you are" in ran.stderr) == (2, True)
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    other.write_text(json.dumps(content))
    ran = cli("status", access=("--kubeconfig", str(other)))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "cannot be reached" in ran.stderr


def test_an_interrupt_ends_a_watch_with_130(cli: Cli) -> None:
    watch = subprocess.Popen(
        [TAILKEEPER, "status", "--watch", *cli.access], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watch.stdout is not None
    assert "INSTANCE" in watch.stdout.readline()
    while "INSTANCE" not in watch.stdout.readline():  # until it draws again
        assert watch.poll() is None
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=10)
    assert watch.returncode == 130
    assert "Traceback" not in err


def test_what_the_command_does_is_only_an_annotation(cli: Cli, field: Field) -> None:
    cli("set", "chat/small", "ceiling=8", "-y")
    policy = field.get(POLICY, "chat")
    assert policy["metadata"]["annotations"]["tailkeeper.dev/set.small"] == "ceiling=8"
    (ours,) = [each for each in policy["metadata"]["managedFields"] if each["manager"] == "tailkeeper-cli"]
    assert list(ours["fieldsV1"]) == ["f:metadata"]
    always(lambda: field.settings()["generation"] == 2, for_s=2)


def documented() -> list[str]:
    text = DOCS.read_text().replace("\\\n", " ")
    return re.findall(r"^tailkeeper (?:status|set|pause|resume) .*$", text, re.MULTILINE)


def test_the_examples_of_the_docs_run(served: Cli) -> None:
    commands = documented()
    assert {command.split()[1] for command in commands} == {"status", "set", "pause", "resume"}
    for command in commands:
        arguments = shlex.split(command)[1:]
        if "--watch" in arguments or "--prometheus" in arguments:
            continue  # they have tests of their own
        ran = served(*arguments, *([] if arguments[0] == "status" else ["--yes"]))
        assert ran.returncode == 0, (command, ran.stderr)
