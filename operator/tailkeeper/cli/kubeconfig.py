"""Who to speak with and as whom, as kubectl finds it: flags, $KUBECONFIG, ~/.kube/config, or the pod's own account.

The Kubernetes client library would take over half a second to import, longer than the commands take to run."""

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tailkeeper.cli.errors import UserError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_WITHIN_S: Final = 60.0
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C reads a kubeconfig with certificates in it 10 times as fast."""


@dataclass(frozen=True)
class Access:
    """An API server and an identity. Certificates are PEM."""

    server: str
    namespace: str = "default"
    ca: bytes | None = None
    """None: the system's own authorities."""
    verify: bool = True
    server_name: str | None = None
    """The name in the server's certificate, when it is not the address."""
    token: str | None = None
    basic: tuple[str, str] | None = None
    certificate: bytes | None = None
    key: bytes | None = None


def find_access(kubeconfig: str | None, context: str | None, environment: Mapping[str, str]) -> Access:
    """Raises UserError when there is none, or it makes no sense."""
    paths = _paths(kubeconfig, environment)
    there = [path for path in paths if path.exists()]
    if there:
        return _of_context(there, context)
    if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in environment and ACCOUNT.exists():
        return _of_pod(environment)
    raise UserError(
        f"no kubeconfig: {', '.join(map(str, paths))} is not there; name one with --kubeconfig or set KUBECONFIG"
    )


def _paths(kubeconfig: str | None, environment: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        return [Path(kubeconfig)]
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"]


def _of_context(paths: Sequence[Path], wanted: str | None) -> Access:
    """Of several files the first that names a thing counts, as with kubectl."""
    files = [(path, _read(path)) for path in paths]
    current = wanted or next((text for _, file in files if (text := file.get("current-context"))), None)
    names = [entry["name"] for _, file in files for entry in file.get("contexts") or []]
    what = ", ".join(map(str, paths))
    if not current:
        raise UserError(f"{what}: no current context; choose one with --context: {', '.join(names) or 'there is none'}")
    if current not in names:
        raise UserError(f"{what}: no context {current}; there are {', '.join(names) or 'none'}")
    _, context = _entry(files, "context", current)
    cluster_path, cluster = _entry(files, "cluster", context.get("cluster", ""))
    user_path, user = _entry(files, "user", context["user"]) if context.get("user") else (cluster_path, {})
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise UserError(f"{cluster_path}: cluster {context.get('cluster')} has no server address")
    if cluster.get("proxy-url"):
        raise UserError(f"{cluster_path}: proxy-url is not supported: forward a port with `kubectl proxy` instead")
    if user.get("exec"):
        user = {**user, **_of_plugin(user["exec"], user_path)}
    token = user.get("token")
    if token is None and user.get("tokenFile"):
        token = _file(user_path, user["tokenFile"]).decode().strip()
    basic = (str(user["username"]), str(user.get("password", ""))) if user.get("username") else None
    return Access(
        server=server.rstrip("/"),
        namespace=context.get("namespace") or "default",
        ca=_pem(cluster, "certificate-authority", cluster_path),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
        token=token,
        basic=basic,
        certificate=_pem(user, "client-certificate", user_path),
        key=_pem(user, "client-key", user_path),
    )


def _of_pod(environment: Mapping[str, str]) -> Access:
    host = environment["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}",
        namespace=(ACCOUNT / "namespace").read_text().strip(),
        ca=(ACCOUNT / "ca.crt").read_bytes(),
        token=(ACCOUNT / "token").read_text().strip(),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text("utf-8"), _Loader)  # noqa: S506  (a safe one)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a kubeconfig: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a kubeconfig")
    return content


def _entry(files: Sequence[tuple[Path, dict[str, Any]]], what: str, name: str) -> tuple[Path, dict[str, Any]]:
    for path, file in files:
        for entry in file.get(f"{what}s") or []:
            if entry.get("name") == name:
                return path, entry.get(what) or {}
    raise UserError(f"{', '.join(str(path) for path, _ in files)}: no {what} {name}")


def _pem(entry: Mapping[str, Any], name: str, kubeconfig: Path) -> bytes | None:
    """Said in place as base64, or as a file beside the kubeconfig."""
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise UserError(f"{kubeconfig}: {name}-data is not base64") from None
    return _file(kubeconfig, entry[name]) if entry.get(name) else None


def _file(kubeconfig: Path, name: str) -> bytes:
    path = kubeconfig.parent / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{kubeconfig}: {path}: {error.strerror}") from None


def _of_plugin(plugin: Mapping[str, Any], kubeconfig: Path) -> dict[str, Any]:
    """What a credential plugin says, under the names of a kubeconfig's user."""
    command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or [])]
    version = plugin.get("apiVersion", "client.authentication.k8s.io/v1")
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    said = {str(each["name"]): str(each["value"]) for each in plugin.get("env") or []}
    try:
        ran = subprocess.run(  # noqa: S603  (the user's own kubeconfig names it)
            command,
            env={**os.environ, **said, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=EXEC_WITHIN_S,
        )
        status = json.loads(ran.stdout)["status"]
    except FileNotFoundError:
        raise UserError(f"{kubeconfig}: {command[0]}, which gives the credentials, is not installed") from None
    except (subprocess.SubprocessError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{kubeconfig}: {command[0]} gave no credentials: {error}") from None
    found: dict[str, Any] = {"token": status["token"]} if status.get("token") else {}
    for ours, theirs in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData")):
        if status.get(theirs):
            found[f"{ours}-data"] = base64.b64encode(str(status[theirs]).encode()).decode()
    return found
