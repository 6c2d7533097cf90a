"""kopf, reduced to what it is best at: login, watches, life cycle. Its handlers only feed the store and the queue.

Found by experiment with kopf 1.45: create/update handlers cost two PATCHes an object and timers force finalizers, an
`on.event` handler costs none; a watcher task that ends by cancellation is not started again while the operator lives
on, deaf, so our liveness looks for each of `watcher_names`; `kopf.index` keeps what is deleted while no watch is up."""

from collections.abc import Callable, Coroutine
from typing import Any

import kopf

from tailkeeper.app.access import Credentials
from tailkeeper.reconcile.kinds import WATCHED, Kind
from tailkeeper.reconcile.store import Key, Store, key_of

SERVER_TIMEOUT_S = 240
"""The server ends each watch after this, and it goes on from where it was: no connection may be dead for longer."""
CONNECT_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 60
ERROR_BACKOFFS_S = (0.2, 0.5, 1, 2, 3, 5, 5, 5, 5, 5)
"""While the server is away a watch tries again at least this often; kopf's own pauses grow to 21 s."""
INACTIVITY_TIMEOUT_S = 90
"""The server sends a bookmark a minute."""


def build_registry(
    credentials: Credentials, store: Store, changed: Callable[[Key], None], relist: Callable[[], None]
) -> kopf.OperatorRegistry:
    """Handlers of all kinds that we watch. `relist` is called when a watch began anew."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return credentials.login()

    for kind in WATCHED:
        handler = _handler(kind, store, changed, relist)
        kopf.on.event(kind.group, kind.version, kind.plural, id=f"see-{kind.plural}", registry=registry)(handler)
    return registry


def build_settings() -> kopf.OperatorSettings:
    """kopf without peering, scanning, Events of its own, or waits without end."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True  # else it lists namespaces and CRDs, which our role does not grant
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = 15
    settings.queueing.exit_timeout = 0.5
    settings.queueing.idle_timeout = 1.0
    settings.watching.server_timeout = SERVER_TIMEOUT_S
    settings.watching.client_timeout = SERVER_TIMEOUT_S + 60
    settings.watching.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.inactivity_timeout = INACTIVITY_TIMEOUT_S
    settings.watching.chunk_size = 500
    settings.networking.connect_timeout = CONNECT_TIMEOUT_S
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.networking.error_backoffs = ERROR_BACKOFFS_S
    for kind in WATCHED:
        if kind.label_selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.label_selector
    return settings


def watcher_names(namespaces: tuple[str, ...]) -> set[str]:
    """The tasks that kopf runs, one for each kind and namespace, by the names that it gives them."""
    scopes = namespaces or (None,)
    return {f"watcher for {_resource(kind)}@{scope}" for kind in WATCHED for scope in scopes}


def _resource(kind: Kind) -> str:
    return ".".join(part for part in (kind.plural, kind.version, kind.group) if part)


def _handler(
    kind: Kind, store: Store, changed: Callable[[Key], None], relist: Callable[[], None]
) -> Callable[..., Coroutine[Any, Any, None]]:
    async def see(event: Any, **_: Any) -> None:
        manifest = event["object"]
        if event["type"] is None:  # the watch began anew: what was deleted before is not told
            relist()
        if event["type"] == "DELETED":
            store.remove(kind, manifest)
        elif not store.put(kind, manifest):
            return
        if key := key_of(kind, manifest):
            changed(key)

    return see
