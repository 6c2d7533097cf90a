"""Who the operator is to the API server: its service account's rotating token in the cluster, else a kubeconfig.

Tokens rotate: the kubelet writes a new one when 80 % of the old one's life is over, which leaves two minutes at least
(tokens live ten minutes or more). Our own calls look at the file each time; kopf's watches log in anew every 100 s,
which ends their connections, and they go on from where they were."""

import datetime
import logging
import os
from pathlib import Path

import kopf

from tailkeeper.reconcile.kube import Access

logger = logging.getLogger(__name__)


class Credentials:
    """Reads the credentials; `access` is for our calls, `login` for kopf."""

    def __init__(self, service_account_dir: Path, login_lasts_s: float) -> None:
        self._folder = service_account_dir
        self._login_lasts_s = login_lasts_s
        self._in_cluster = (service_account_dir / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ
        self._versions: tuple[_Version, ...] = ()
        self._access: Access | None = None

    def access(self) -> Access:
        """Server, certificate authority and headers as they are now. Raises OSError when the files are gone."""
        versions = tuple(_version(self._folder / name) for name in ("token", "ca.crt")) if self._in_cluster else ()
        if self._access is None or versions != self._versions:
            info = self.login()
            self._access = Access(info.server.rstrip("/"), info.as_ssl_context(), info.as_http_headers())
            self._versions = versions
        return self._access

    def login(self) -> kopf.ConnectionInfo:
        """The same for kopf, with the moment at which it has to ask again."""
        if not self._in_cluster:
            found = kopf.login_with_kubeconfig(logger=logger, settings=kopf.OperatorSettings())
            if found is None:
                raise kopf.LoginError("neither a service account nor a kubeconfig: set KUBECONFIG")
            return found
        return kopf.ConnectionInfo(
            server=_server(),
            ca_path=str(self._folder / "ca.crt"),
            token=(self._folder / "token").read_text().strip(),
            expiration=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self._login_lasts_s),
        )


_Version = tuple[int, int]
"""Changes when the kubelet swaps the link behind a file: inode and time of change."""


def _version(path: Path) -> _Version:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _server() -> str:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
