"""The API server by plain HTTP: as little as the commands need, one connection kept alive.

Every failure is a `UserError` that says what to do, except an object that is not there, which callers tell better."""

import base64
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from tailkeeper.cli.errors import UserError
from tailkeeper.cli.kubeconfig import Access

TIMEOUT_S: Final = 15.0
FIELD_MANAGER: Final = "tailkeeper-cli"

Manifest = dict[str, Any]


class NotThere(Exception):
    """404, in the server's words."""


class Unanswered(Exception):
    """The server answered, but what is behind it did not (a pod that is proxied to); its words."""


class KubeClient:
    """Speaks with one API server. Close it at the end."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._address = urlsplit(access.server)
        self._headers = {"Accept": "application/json", "User-Agent": "tailkeeper"}
        if access.token is not None:
            self._headers["Authorization"] = f"Bearer {access.token}"
        elif access.basic is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(':'.join(access.basic).encode()).decode()}"
        self._tls = _tls(access) if self._address.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, **parameters: str) -> Manifest:
        """An object or a list. Raises NotThere, UserError."""
        found: Manifest = json.loads(self._ask("GET", path, parameters))
        return found

    def page(self, path: str) -> str:
        """Text from a pod that the server proxies to. Raises Unanswered, NotThere, UserError."""
        return self._ask("GET", path, {}, proxied=True).decode("utf-8", "replace")

    def annotate(self, path: str, annotations: Mapping[str, str | None]) -> Manifest:
        """Sets annotations of an object, or with None takes them away. Raises NotThere, UserError."""
        body = json.dumps({"metadata": {"annotations": annotations}})
        found: Manifest = json.loads(self._ask("PATCH", path, {"fieldManager": FIELD_MANAGER}, body))
        return found

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> "KubeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, method: str, path: str, parameters: Mapping[str, str], body: str | None = None, proxied: bool = False
    ) -> bytes:
        target = self._address.path + path + (f"?{urlencode(parameters)}" if parameters else "")
        status, answer = self._exchange(method, target, body)
        if status < 300:
            return answer
        words = _words(answer) or f"status {status}"
        server = self.access.server
        if proxied and status >= 500:
            raise Unanswered(words)
        if status == 404:
            raise NotThere(words)
        if status == 401:
            raise UserError(f"{server} does not know who you are: log in anew, or choose another --context")
        raise UserError(f"{server}: {words}")

    def _exchange(self, method: str, target: str, body: str | None) -> tuple[int, bytes]:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        kept_alive = self._connection is not None
        try:
            connection = self._open()
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._connection = None
            if kept_alive and not isinstance(error, TimeoutError):
                return self._exchange(method, target, body)  # a server may close what was idle; the patches repeat well
            raise UserError(
                f"{self.access.server} cannot be reached ({_said(error)}): is the cluster up, and the --context right?"
            ) from None

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = self._address.hostname or "", self._address.port
            if self._tls is None:
                self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
            elif self.access.server_name is None:
                self._connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._tls)
            else:
                self._connection = _Renamed(host, port, self.access.server_name, self._tls)
        return self._connection


class _Renamed(http.client.HTTPSConnection):
    """For a server whose certificate has another name than its address."""

    def __init__(self, host: str, port: int | None, server_name: str, tls: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S, context=tls)
        self._server_name, self._own_tls = server_name, tls

    def connect(self) -> None:
        """Connects to the address and expects the name."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._own_tls.wrap_socket(self.sock, server_hostname=self._server_name)


def _tls(access: Access) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cadata=access.ca.decode() if access.ca else None)
        if not access.verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if access.certificate is not None and access.key is not None:
            _load_identity(tls, access.certificate, access.key)
    except (ssl.SSLError, ValueError) as error:
        raise UserError(f"the kubeconfig's certificates for {access.server} do not read: {_said(error)}") from None
    return tls


def _load_identity(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes them from a file only: one that only we can read, for a moment."""
    import tempfile  # 10 ms that only client certificates need

    handle, path = tempfile.mkstemp(prefix="tailkeeper-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate + b"\n" + key)
        tls.load_cert_chain(path)
    finally:
        os.unlink(path)


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()


def _words(answer: bytes) -> str:
    with suppress(ValueError):
        content = json.loads(answer)
        if isinstance(content, dict) and content.get("message"):
            return " ".join(str(content["message"]).split())
    return " ".join(answer.decode("utf-8", "replace").split())[:300]
