"""One instant query, or the reason why there is no answer, in words that say what to do.

The client library has no timeout unless one is given, retries on its own (its `Retry(3)` multiplies ours), and drops
the `warnings` of an answer, so that a partial one looks whole. So: a timeout always, `Retry(0)`, and a hook that keeps
the response. Retried here is only what a connection that was kept alive too long, or a gateway, may cause."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from tailkeeper.control.samples import Unknown, UnknownReason
from tailkeeper.signals.counters import Point

BACKOFF_S: Final = (0.1, 0.3)
"""Waits before the second and the third try."""
GATEWAY: Final = (502, 503, 504)
ERROR_LENGTH: Final = 300
BAD_ADDRESS: Final = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


@dataclass(frozen=True)
class Access:
    """How to reach a Prometheus."""

    url: str
    """Base address, under which `/api/v1/query` is."""
    timeout_s: float
    """For one whole read; must be below the tick."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """For example the tenant: `X-Scope-OrgID`."""
    credentials: Path | None = None
    """Folder with `token`, or `username` and `password`, and where needed `ca.crt`, `tls.crt` and `tls.key`. Read
    anew each time: Secrets rotate."""


class Failed(Exception):
    """There is no answer."""

    def __init__(self, reason: UnknownReason, text: str) -> None:
        super().__init__(text)
        self.unknown = Unknown(reason, text)


@dataclass(frozen=True, slots=True)
class Answer:
    """An instant vector."""

    points: tuple[Point, ...]
    time_s: float | None
    """When it was evaluated, by the server's clock; None when the vector is empty."""


class QueryClient:
    """Blocking. One thread at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._url = access.url.rstrip("/")
        self._session = requests.Session()
        self._session.hooks["response"].append(self._keep)
        self._connect = PrometheusConnect(url=self._url, session=self._session, retry=Retry(0))
        self._response: requests.Response | None = None

    def query(self, promql: str, by_s: float, at_s: float | None = None) -> Answer:
        """Asks until `by_s` of the monotonic clock. `at_s`: evaluate at that time of the server. Raises Failed."""
        self._authenticate()
        params = {} if at_s is None else {"time": f"{at_s:.3f}"}
        for wait_s in (*BACKOFF_S, None):
            left_s = by_s - time.monotonic()
            if left_s <= 0:
                raise self._slow()
            self._response = None
            try:
                result = self._connect.custom_query(promql, params=params, timeout=left_s)
            except requests.exceptions.SSLError as error:
                raise self._failed(f"TLS: {_short(error)}; is its CA in ca.crt of the credentials?") from error
            except requests.exceptions.Timeout as error:
                raise self._slow() from error
            except requests.exceptions.JSONDecodeError as error:
                raise self._failed(self._not_json()) from error
            except requests.exceptions.ConnectionError as error:
                if wait_s is None:
                    raise self._failed(f"cannot be reached: {_short(error)}") from error
            except PrometheusApiClientException as error:
                if wait_s is None or self._status not in GATEWAY:
                    raise self._failed(self._refused()) from error
            except BAD_ADDRESS as error:
                raise self._failed("is no address: write http://HOST:PORT or https://…") from error
            except (requests.exceptions.RequestException, KeyError, TypeError, ValueError) as error:
                raise self._failed(f"answered with something else than a query's result: {_short(error)}") from error
            else:
                return self._read(result)
            time.sleep(min(wait_s or 0.0, max(0.0, by_s - time.monotonic())))
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """Ends the connections."""
        self._session.close()

    @property
    def _status(self) -> int:
        return self._response.status_code if self._response is not None else 0

    def _keep(self, response: requests.Response, *_: object, **__: object) -> None:
        self._response = response

    def _authenticate(self) -> None:
        headers, folder = dict(self._access.headers), self._access.credentials
        self._connect.auth = None
        if folder is not None:
            token, username = _text(folder / "token"), _text(folder / "username")
            if token:
                headers["Authorization"] = f"Bearer {token}"
            elif username:
                self._connect.auth = (username, _text(folder / "password") or "")
            elif not (folder / "tls.crt").exists() and not (folder / "ca.crt").exists():
                raise self._failed(f"{folder} has neither token, nor username and password, nor tls.crt")
            ca, cert, key = folder / "ca.crt", folder / "tls.crt", folder / "tls.key"
            self._session.verify = str(ca) if ca.exists() else True
            self._session.cert = (str(cert), str(key)) if cert.exists() and key.exists() else None
        self._connect.headers = headers

    def _read(self, result: object) -> Answer:
        self._check_warnings()
        if not isinstance(result, list):
            raise self._failed("answered with something else than a vector")
        points, time_s = [], None
        for series in result:
            match series:
                case {"metric": dict(labels), "value": [int() | float() as at_s, str(text)]}:
                    try:
                        points.append(Point(labels.get("__name__", ""), labels, float(text)))
                    except ValueError as error:
                        raise self._failed(f"answered with a value that is no number: {text[:40]}") from error
                    time_s = float(at_s)
                case _:
                    raise self._failed("answered with something else than a vector")
        return Answer(tuple(points), time_s)

    def _check_warnings(self) -> None:
        """A partial answer is a 200 with warnings; most answers have none, so they are not parsed twice for it."""
        if self._response is None or b'"warnings"' not in self._response.content:
            return
        warnings = self._response.json().get("warnings")
        if warnings:
            said = "; ".join(str(warning) for warning in warnings)[:ERROR_LENGTH]
            raise Failed(UnknownReason.PARTIAL, f"{self._name} answers in part: {said}")

    @property
    def _name(self) -> str:
        return f"Prometheus at {self._url}"

    def _failed(self, text: str) -> Failed:
        return Failed(UnknownReason.ERROR, f"{self._name} {text}")

    def _slow(self) -> Failed:
        return self._failed(f"did not answer within {self._access.timeout_s:g} s")

    def _not_json(self) -> str:
        kind = self._response.headers.get("Content-Type", "no type") if self._response is not None else "nothing"
        return f"answered {kind.split(';')[0]} instead of JSON: is it the base address, and not behind a login page?"

    def _refused(self) -> str:
        match self._status:
            case 401 | 403:
                return f"refuses us ({self._status}): check the credentials"
            case 404 | 405:
                return f"has no /api/v1/query ({self._status}): is it the base address of a Prometheus?"
            case 400 | 422 as status:
                return f"cannot evaluate the query ({status}): {self._said()}"
            case status:
                return f"answered {status}: {self._said()}"

    def _said(self) -> str:
        body = self._response.text if self._response is not None else ""
        return " ".join(body.split())[:ERROR_LENGTH] or "nothing"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _short(error: Exception) -> str:
    """The innermost reason; the library wraps it three times."""
    reason = str(getattr(error.args[0] if error.args else error, "reason", error))
    return reason.rsplit(": ", 1)[-1][:ERROR_LENGTH]
