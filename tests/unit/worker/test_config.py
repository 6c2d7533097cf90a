"""The command line: flags, environment, and what is refused."""

from pathlib import Path

import pytest

from gpu_worker.config import Identity, Pod, parse
from gpu_worker.engines.cpus import cpus_available
from tailkeeper.api.enums import Engine

NEEDED = [
    *("--engine", "encoder", "--model-name", "minilm", "--model-path", "/models/minilm"),
    *("--policy", "default/chat", "--model-instance", "minilm"),
    *("--settings-file", "/etc/tailkeeper/settings/settings.json"),
]


def test_flags_and_defaults() -> None:
    config = parse(NEEDED, {"POD_NAME": "chat-minilm-0", "POD_UID": "u", "POD_NAMESPACE": "default"})
    assert config.engine is Engine.ENCODER
    assert config.identity == Identity("default", "chat", "minilm")
    assert config.pod == Pod("chat-minilm-0", "u", "default")
    assert (config.http_port, config.metrics_port, config.drain_s, config.endpoint_delay_s) == (8000, 9000, 45, 5)
    assert config.settings_file == Path("/etc/tailkeeper/settings/settings.json")
    assert config.settings_config_map is None


def test_every_flag_may_come_from_the_environment_and_the_flag_wins() -> None:
    environment = {"TAILKEEPER_DRAIN_SECONDS": "12", "TAILKEEPER_ENGINE": "encoder", "TAILKEEPER_HTTP_PORT": "1"}
    config = parse([*NEEDED[2:], "--http-port", "8080"], environment)
    assert (config.drain_s, config.engine, config.http_port) == (12, Engine.ENCODER, 8080)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--engine", "warp"], "no engine 'warp'"),
        (["--policy", "chat"], "not NAMESPACE/NAME"),
        (["--settings-config-map", "a/b/c"], "not NAMESPACE/NAME"),
        (["--http-port", "70000"], "between 0 and 65535"),
        (["--drain-seconds", "-1"], "between 0 and 86400"),
        (["--drain-seconds", "3"], "must not exceed --drain-seconds"),
        (["--hugging-face-id", "a/b"], "two sources"),
        (["--log-level", "loud"], "not one of DEBUG"),
    ],
)
def test_a_wrong_flag_ends_with_status_2_and_says_what_is_wrong(
    change: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*NEEDED, *change], {})
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_wrong_flag_is_said_where_the_kubelet_looks(tmp_path: Path) -> None:
    last_words = tmp_path / "termination-log"
    last_words.touch()
    with pytest.raises(SystemExit):
        parse([*NEEDED, "--engine", "warp"], {"TAILKEEPER_TERMINATION_LOG": str(last_words)})
    assert "no engine 'warp'" in last_words.read_text()


def test_settings_must_come_from_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(NEEDED[:-2], {})
    assert "--settings-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("v2", "v1", "cpus"),
    [("200000 100000", None, 2), ("150000 100000", None, 2), ("20000 100000", None, 1), (None, (100000, 100000), 1)],
)
def test_threads_follow_the_containers_quota(
    tmp_path: Path, v2: str | None, v1: tuple[int, int] | None, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    if v2 is not None:
        (tmp_path / "cpu.max").write_text(v2)
    if v1 is not None:
        (tmp_path / "cpu.cfs_quota_us").write_text(str(v1[0]))
        (tmp_path / "cpu.cfs_period_us").write_text(str(v1[1]))
    assert cpus_available(tmp_path / "cpu.max", tmp_path) == cpus


def test_no_quota_leaves_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert cpus_available(tmp_path / "cpu.max", tmp_path) == 3
    (tmp_path / "cpu.max").write_text("max 100000")
    assert cpus_available(tmp_path / "cpu.max", tmp_path) == 3
