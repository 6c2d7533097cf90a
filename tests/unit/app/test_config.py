"""Configuration by flags and environment."""

from pathlib import Path

import pytest

from tailkeeper.app.config import Config, read_config
from tailkeeper.signals.sources import Signals

IMAGE = {"TAILKEEPER_WORKER_IMAGE": "worker:1"}


def test_the_defaults_serve_all_namespaces() -> None:
    config = read_config([], IMAGE)
    assert (config.worker_image, config.namespaces, config.worker_template) == ("worker:1", (), {})
    assert (config.tick_s, config.http_port) == (5.0, 8080)


def test_the_flag_wins_over_the_environment() -> None:
    config = read_config(["--worker-image=worker:2", "--tick-seconds=2"], {**IMAGE, "TAILKEEPER_TICK_SECONDS": "9"})
    assert (config.worker_image, config.tick_s) == ("worker:2", 2.0)


def test_namespaces_are_a_list() -> None:
    assert read_config([], {**IMAGE, "TAILKEEPER_NAMESPACES": "b, a,,a"}).namespaces == ("a", "b")


@pytest.mark.parametrize("text", ["spec: {nodeSelector: {gpu: 'yes'}}", '{"spec": {"nodeSelector": {"gpu": "yes"}}}'])
def test_the_worker_template_is_yaml_or_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "template"
    path.write_text(text)
    config = read_config([], {**IMAGE, "TAILKEEPER_WORKER_TEMPLATE": str(path)})
    assert config.worker_template == {"spec": {"nodeSelector": {"gpu": "yes"}}}


@pytest.mark.parametrize(
    ("arguments", "environment", "complaint"),
    [
        ([], {}, "--worker-image"),
        (["--tick-seconds=0"], IMAGE, "--tick-seconds"),
        (["--tick-seconds=soon"], IMAGE, "--tick-seconds"),
        (["--log-format=xml"], IMAGE, "--log-format"),
        (["--worker-template=/does/not/exist"], IMAGE, "--worker-template"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: list[str], environment: dict[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        read_config(arguments, environment)
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("text", ["- a list", "containers: []", "{", "spec: {containers: [{image: x}]}", "spec: 5"])
def test_a_worker_template_of_the_wrong_shape_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "template"
    path.write_text(text)
    with pytest.raises(SystemExit):
        read_config(["--worker-template", str(path)], IMAGE)
    assert str(path) in capsys.readouterr().err


def test_config_is_plain_data() -> None:
    assert isinstance(read_config([], IMAGE), Config)


def test_signals_come_from_the_workers_unless_there_is_a_prometheus() -> None:
    assert (read_config([], IMAGE).signals, read_config([], IMAGE).prometheus) == (Signals.DIRECT, None)
    config = read_config(
        ["--prometheus-credentials=/secret", "--prometheus-headers=X-Scope-OrgID=a, X-B=c=d"],
        {**IMAGE, "TAILKEEPER_PROMETHEUS_URL": "http://p:9090"},
    )
    assert config.signals is Signals.BOTH
    assert config.prometheus is not None
    assert config.prometheus.headers == {"X-Scope-OrgID": "a", "X-B": "c=d"}
    assert config.prometheus.credentials == Path("/secret")
    assert (
        read_config(["--signals=direct"], {**IMAGE, "TAILKEEPER_PROMETHEUS_URL": "http://p"}).signals is Signals.DIRECT
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "complaint"),
    [
        (["--signals=both"], {}, "--signals=both needs --prometheus-url"),
        ([], {"TAILKEEPER_SIGNALS": "all"}, "all"),
        (["--prometheus-url=prometheus:9090"], {}, "prometheus:9090 is no address: write http://HOST:PORT"),
        (["--prometheus-url=http://p", "--prometheus-headers=X"], {}, "write NAME=VALUE"),
    ],
)
def test_signals_that_cannot_be_are_refused(
    arguments: list[str], environment: dict[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        read_config(arguments, {**IMAGE, **environment})
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err
