"""The worker's command line. Every flag may come as an environment variable TAILKEEPER_<FLAG>; the flag wins.

What may change while the worker runs is not here: that is the settings document."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpu_worker.engines.catalog import BUILDERS
from gpu_worker.engines.source import HuggingFace, LocalFolder, ModelSource
from gpu_worker.last_words import DEFAULT, write_last_words
from tailkeeper.api import names
from tailkeeper.api.enums import Engine

ENVIRONMENT_PREFIX = "TAILKEEPER_"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose worker this is; the constant labels of its metrics, and what a settings document must name."""

    policy_namespace: str
    policy: str
    model_instance: str


@dataclass(frozen=True, slots=True)
class Pod:
    """From the downward API; empty outside a cluster."""

    name: str = ""
    uid: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What one worker process is told at its start."""

    engine: Engine
    model_name: str
    identity: Identity
    pod: Pod
    model: ModelSource | None
    settings_config_map: tuple[str, str] | None
    """Namespace and name."""
    settings_file: Path | None
    service_account: Path
    host: str
    http_port: int
    metrics_port: int
    drain_s: float
    endpoint_delay_s: float
    api_keys: Path | None
    device: str
    threads: int
    kv_tokens: int
    most_sequences: int
    max_body_bytes: int
    max_inputs: int
    hang_s: float
    keep_alive_s: int
    termination_log: Path
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> WorkerConfig:
    """Reads flags and environment. Prints what is wrong and exits with status 2, as argparse does."""
    environment = os.environ if environment is None else environment
    parser = _parser(environment)
    given = parser.parse_args(arguments)
    if given.settings_config_map is None and given.settings_file is None:
        parser.error("one of --settings-config-map and --settings-file is needed")
    if given.endpoint_delay_seconds > given.drain_seconds:
        parser.error("--endpoint-delay-seconds must not exceed --drain-seconds, of which it is a part")
    if given.model_path is not None and given.hugging_face_id is not None:
        parser.error("--model-path and --hugging-face-id are two sources; give one")
    namespace, policy = given.policy
    return WorkerConfig(
        engine=given.engine,
        model_name=given.model_name,
        identity=Identity(namespace, policy, given.model_instance),
        pod=Pod(environment.get("POD_NAME", ""), environment.get("POD_UID", ""), environment.get("POD_NAMESPACE", "")),
        model=_source(given),
        settings_config_map=given.settings_config_map,
        settings_file=given.settings_file,
        service_account=given.service_account_dir,
        host=given.host,
        http_port=given.http_port,
        metrics_port=given.metrics_port,
        drain_s=given.drain_seconds,
        endpoint_delay_s=given.endpoint_delay_seconds,
        api_keys=given.api_keys_dir,
        device=given.device,
        threads=given.threads,
        kv_tokens=given.kv_tokens,
        most_sequences=given.max_sequences,
        max_body_bytes=given.max_body_bytes,
        max_inputs=given.max_inputs,
        hang_s=given.hang_seconds,
        keep_alive_s=given.keep_alive_seconds,
        termination_log=given.termination_log,
        log_level=given.log_level,
    )


class _EnvironmentDefaults(argparse.ArgumentParser):
    """Takes the default of every flag from its environment variable, as text that goes through the flag's own check."""

    def __init__(self, environment: Mapping[str, str], prog: str, description: str, epilog: str) -> None:
        self._environment = environment
        super().__init__(prog=prog, description=description, epilog=epilog)

    def error(self, message: str) -> NoReturn:
        """Also to where the kubelet looks: a pod that cannot start must say why."""
        write_last_words(Path(self._environment.get(f"{ENVIRONMENT_PREFIX}TERMINATION_LOG", DEFAULT)), message)
        super().error(message)

    def flag(self, name: str, **how: object) -> None:
        value = self._environment.get(ENVIRONMENT_PREFIX + name.upper().replace("-", "_"))
        if value is not None:
            how |= {"default": value, "required": False}
        self.add_argument(f"--{name}", **how)  # type: ignore[arg-type]


def _parser(environment: Mapping[str, str]) -> _EnvironmentDefaults:
    parser = _EnvironmentDefaults(
        environment,
        prog="python -m gpu_worker",
        description="Serves one model with batching under live settings.",
        epilog=f"Every flag may come as {ENVIRONMENT_PREFIX}FLAG_NAME. Also read: POD_NAME, POD_UID, POD_NAMESPACE.",
    )
    flag = parser.flag
    flag("engine", required=True, type=_engine, help=f"one of {', '.join(BUILDERS)}")
    flag("model-name", required=True, help="the name that clients ask for")
    flag("model-path", help="folder of the model")
    flag("hugging-face-id", help="repository of the hub; HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are the hub client's own")
    flag("hugging-face-revision", help="its commit, tag or branch")
    flag("policy", required=True, type=_pair, metavar="NAMESPACE/NAME", help="the policy that this worker belongs to")
    flag("model-instance", required=True, help="its instance in that policy")
    flag("settings-config-map", type=_pair, metavar="NAMESPACE/NAME", help="ConfigMap to watch for settings")
    flag("settings-file", type=Path, help="the same document where it is mounted; the fallback, or the only source")
    flag("service-account-dir", type=Path, default=SERVICE_ACCOUNT, help="token and CA for the watch (%(default)s)")
    flag("host", default="", help="address to listen on; every address of both families when empty")
    flag("http-port", type=_whole(0, 65535), default=names.PORT_HTTP, help="API and probes (%(default)s)")
    flag("metrics-port", type=_whole(0, 65535), default=names.PORT_METRICS, help="/metrics, /settings (%(default)s)")
    flag("drain-seconds", type=_seconds, default=45.0, help="for what is in flight at SIGTERM (%(default)s)")
    flag(
        "endpoint-delay-seconds",
        type=_seconds,
        default=5.0,
        help="how long after SIGTERM new requests are still served, until endpoints are updated; "
        "part of the drain seconds (%(default)s)",
    )
    flag("api-keys-dir", type=Path, help="mounted Secret, a file TENANT holds `KEY` or `KEY tier,tier`; absent: open")
    flag("device", default="auto", help="auto, cpu, cuda or cuda:N; auto takes CUDA where there is one")
    flag("threads", type=_whole(0, 1024), default=0, help="CPU threads of a forward pass; 0: the container's CPU limit")
    flag(
        "kv-tokens",
        type=_whole(0, 1 << 31),
        default=0,
        help="causal-lm: prompt and output tokens that the KV memory holds; 0: as many as there is memory for",
    )
    flag("max-sequences", type=_whole(1, 65536), default=64, help="causal-lm: texts made at a time (%(default)s)")
    flag("max-body-bytes", type=_whole(1, 1 << 30), default=4 << 20, help="larger bodies get 413 (%(default)s)")
    flag("max-inputs", type=_whole(1, 65536), default=2048, help="inputs of one call (%(default)s)")
    flag("hang-seconds", type=_seconds, default=60.0, help="a longer step fails /healthz (%(default)s)")
    flag("keep-alive-seconds", type=_whole(1, 3600), default=75, help="idle connections are kept (%(default)s)")
    flag("termination-log", type=Path, default=DEFAULT, help="last words, for the kubelet")
    flag("log-level", type=_level, default="INFO", help=f"{', '.join(_LEVELS)} (%(default)s)")
    return parser


def _source(given: argparse.Namespace) -> ModelSource | None:
    if given.model_path is not None:
        return LocalFolder(Path(given.model_path))
    if given.hugging_face_id is not None:
        return HuggingFace(given.hugging_face_id, given.hugging_face_revision)
    return None


def _engine(text: str) -> Engine:
    built = {engine.value: engine for engine in BUILDERS}
    if text not in built:
        raise argparse.ArgumentTypeError(f"this build has no engine {text!r}; it has {', '.join(built)}")
    return built[text]


def _pair(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
    return value


def _level(text: str) -> str:
    if text.upper() not in _LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(_LEVELS)}")
    return text.upper()


class _whole:
    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def __call__(self, text: str) -> int:
        value = int(text)
        if not self._least <= value <= self._most:
            raise argparse.ArgumentTypeError(f"{text} is not between {self._least} and {self._most}")
        return value
