"""The few API calls that the operator makes: plain JSON over one aiohttp session.

Server-side apply is the only way in which anything of an instance is written."""

import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tailkeeper.api.names import MANAGER
from tailkeeper.reconcile.kinds import EVENT, Kind, Manifest, kind_of

REQUEST_TIMEOUT_S = 30.0
PAGE = 500


@dataclass(frozen=True)
class Access:
    """Where the API server is and how to speak with it now; tokens rotate, so this is asked for anew at each call."""

    server: str
    tls: ssl.SSLContext | bool
    headers: Mapping[str, str]


UNTYPED = "failed to create typed"
"""The server's words, with status 500, for an applied object whose fields do not fit its schema: it will never fit."""


class ApiError(Exception):
    """An answer other than success, or none at all (status 0)."""

    def __init__(self, status: int, reason: str, message: str, causes: frozenset[str] = frozenset()) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes

    @property
    def refused(self) -> bool:
        """The server understood and said no; trying the same again needs something else to change first."""
        return self.status in (400, 403, 405, 413, 422) or (self.status == 500 and UNTYPED in self.message)

    @property
    def namespace_ends(self) -> bool:
        """The whole namespace is being deleted; nothing new can be made in it."""
        return "NamespaceTerminating" in self.causes


class Kube:
    """A client for one API server. `access` is called per request, `observe` after each with verb, kind and status."""

    def __init__(
        self, access: Callable[[], Access], observe: Callable[[str, str, int], None] = lambda verb, kind, status: None
    ) -> None:
        self._access = access
        self._observe = observe
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object; None when there is none."""
        try:
            return await self._call("get", "GET", kind, kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str | None) -> tuple[list[Manifest], str]:
        """All objects of a kind that carry our label (policies: all), and the version at which the list was true."""
        items: list[Manifest] = []
        version = ""
        async for page in self._pages(kind, namespace):
            version = page["metadata"]["resourceVersion"]
            items += ({"apiVersion": kind.api_version, "kind": kind.name, **item} for item in page["items"])
        return items, version

    async def apply(self, manifest: Manifest, subresource: str | None = None, manager: str = MANAGER) -> Manifest:
        """Server-side apply: what it says becomes so, and ours. Returns the object as it is now."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        return await self._call(
            "apply" if subresource is None else f"apply-{subresource}",
            "PATCH",
            kind,
            kind.path(metadata["namespace"], metadata["name"], subresource),
            params={"fieldManager": manager, "force": "true"},
            body=manifest,
            content_type="application/apply-patch+yaml",  # JSON is YAML
        )

    async def overwrite(self, manifest: Manifest) -> Manifest:
        """Merge patch: what it says becomes so, and its lists lose what others put into them."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        return await self._call(
            "overwrite",
            "PATCH",
            kind,
            kind.path(metadata["namespace"], metadata["name"]),
            params={"fieldManager": MANAGER},
            body=manifest,
            content_type="application/merge-patch+json",
        )

    async def annotate(self, kind: Kind, manifest: Manifest, annotations: Mapping[str, str]) -> Manifest:
        """Sets annotations of exactly this object, which must not have been replaced by another of its name."""
        metadata = manifest["metadata"]
        return await self._call(
            "annotate",
            "PATCH",
            kind,
            kind.path(metadata["namespace"], metadata["name"]),
            params={"fieldManager": MANAGER},
            body={"metadata": {"uid": metadata["uid"], "annotations": dict(annotations)}},
            content_type="application/merge-patch+json",
        )

    async def delete(self, kind: Kind, manifest: Manifest) -> None:
        """Deletes exactly this object, in whatever state it is; what it owns goes after it. Gone already is fine."""
        metadata = manifest["metadata"]
        try:
            await self._call(
                "delete",
                "DELETE",
                kind,
                kind.path(metadata["namespace"], metadata["name"]),
                body={"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}},
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def create_event(self, event: Manifest) -> None:
        """Posts an Event."""
        await self._call("create", "POST", EVENT, EVENT.path(event["metadata"]["namespace"]), body=event)

    async def _pages(self, kind: Kind, namespace: str | None) -> AsyncIterator[Manifest]:
        params = {"limit": str(PAGE)}
        if kind.label_selector:
            params["labelSelector"] = kind.label_selector
        while True:
            page = await self._call("list", "GET", kind, kind.path(namespace), params=params)
            yield page
            follow = page["metadata"].get("continue")
            if not follow:
                return
            params["continue"] = follow

    async def _call(
        self,
        verb: str,
        method: str,
        kind: Kind,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Manifest:
        access = self._access()
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S))
        headers = dict(access.headers)
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = content_type
        status = 0
        try:
            async with self._session.request(
                method, access.server + path, params=params, data=data, headers=headers, ssl=access.tls
            ) as response:
                status = response.status
                content = await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise ApiError(0, type(error).__name__, str(error) or "no answer") from error
        finally:
            self._observe(verb, kind.name, status)
        if status >= 400:
            raise _api_error(status, content)
        answer: Manifest = json.loads(content)
        return answer


def _api_error(status: int, content: bytes) -> ApiError:
    try:
        told = json.loads(content)
    except ValueError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    causes = (told.get("details") or {}).get("causes") or []
    return ApiError(
        status,
        told.get("reason") or "",
        told.get("message") or content[:300].decode(errors="replace"),
        frozenset(cause.get("reason", "") for cause in causes),
    )
