"""Who the operator is to the API server: its service account's rotating token in the cluster, else a kubeconfig.

Tokens rotate: the kubelet writes a new one when 80 % of the old one's life is over, which leaves two minutes at least
(tokens live ten minutes or more). Our own calls look at the file each time; kopf's watches log in anew every 100 s."""

import datetime
import functools
import logging
import os
import ssl
from pathlib import Path

import kopf

from tailkeeper.reconcile.kube import Access

LOGIN_LASTS_S = 100

logger = logging.getLogger(__name__)


class Credentials:
    """Reads the credentials; `access` is for our calls, `login` for kopf."""

    def __init__(self, service_account_dir: Path) -> None:
        self._folder = service_account_dir
        self._in_cluster = (service_account_dir / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ

    def access(self) -> Access:
        """Server, certificate authority and headers as they are now."""
        if not self._in_cluster:
            return _kubeconfig_access()
        tls = _trusting(str(self._folder / "ca.crt"), _changed(self._folder / "ca.crt"))
        token = _read(str(self._folder / "token"), _changed(self._folder / "token"))
        return Access(_server(), tls, {"Authorization": f"Bearer {token}"})

    def login(self) -> kopf.ConnectionInfo:
        """The same for kopf, with the moment at which it has to ask again."""
        if not self._in_cluster:
            return _kubeconfig()
        return kopf.ConnectionInfo(
            server=_server(),
            ca_path=str(self._folder / "ca.crt"),
            token=(self._folder / "token").read_text().strip(),
            expiration=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LOGIN_LASTS_S),
        )


def _server() -> str:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _changed(path: Path) -> tuple[int, int]:
    """Changes when the kubelet swaps the link behind the file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _read(path: str, version: tuple[int, int]) -> str:
    return Path(path).read_text().strip()


@functools.lru_cache(maxsize=1)
def _trusting(path: str, version: tuple[int, int]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=path)


@functools.lru_cache(maxsize=1)
def _kubeconfig() -> kopf.ConnectionInfo:
    found = kopf.login_with_kubeconfig(logger=logger, settings=kopf.OperatorSettings())
    if found is None:
        raise kopf.LoginError("neither a service account nor a kubeconfig: set KUBECONFIG")
    return found


@functools.lru_cache(maxsize=1)
def _kubeconfig_access() -> Access:
    info = _kubeconfig()
    return Access(info.server.rstrip("/"), info.as_ssl_context(), info.as_http_headers())
