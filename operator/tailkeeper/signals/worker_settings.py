"""What workers themselves say they apply: `GET /settings` on the metrics port of every running pod."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp

from tailkeeper.api.names import PORT_METRICS, PORT_NAME_METRICS

TIMEOUT_S = 2.0
CONNECTIONS = 100
LONGEST_ANSWER = 262_144


@dataclass(frozen=True)
class WorkerAddress:
    """One worker pod and where its metrics port is."""

    uid: str
    host: str
    port: int = PORT_METRICS


@dataclass(frozen=True)
class WorkerReport:
    """One answer of a worker."""

    generation: int
    """Settings generation that it applies; 0 when it has none yet."""
    ready: bool
    reason: str
    """Why it is not ready, in its words."""
    refusal: str = ""
    """Why it refused the newest document that it has seen; empty when it applies that one."""
    settings: object = None
    """The document that it applies, as JSON; None when it has none yet."""


def address_of(pod: dict[str, object] | None) -> WorkerAddress | None:
    """Where to ask this pod (a plain manifest); None while it has no address or stops."""
    match pod:
        case {"metadata": {"deletionTimestamp": str()}}:
            return None
        case {"metadata": {"uid": str(uid)}, "status": {"podIP": str(host), "phase": "Running"}, "spec": dict(spec)}:
            return WorkerAddress(uid, host, _metrics_port(spec))
        case _:
            return None


def _metrics_port(spec: dict[str, object]) -> int:
    match spec:
        case {"containers": list(containers)}:
            for container in containers:
                for port in container.get("ports", []):
                    if port.get("name") == PORT_NAME_METRICS:
                        return int(port["containerPort"])
    return PORT_METRICS


async def ask_all(session: aiohttp.ClientSession, addresses: Iterable[WorkerAddress]) -> dict[str, WorkerReport | None]:
    """Asks all at once; by pod UID, None for one that did not answer properly within two seconds."""
    asked = list(addresses)
    answers = await asyncio.gather(*(_ask(session, address) for address in asked))
    return {address.uid: answer for address, answer in zip(asked, answers, strict=True)}


def open_session() -> aiohttp.ClientSession:
    """A session for `ask_all`: many hosts, short waits, connections kept."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=60),
    )


async def _ask(session: aiohttp.ClientSession, address: WorkerAddress) -> WorkerReport | None:
    host = f"[{address.host}]" if ":" in address.host else address.host
    try:
        async with session.get(f"http://{host}:{address.port}/settings", allow_redirects=False) as response:
            if response.status != 200 or (response.content_length or 0) > LONGEST_ANSWER:
                return None
            return _read(await response.json())
    except (TimeoutError, aiohttp.ClientError, ValueError):
        return None


def _read(answer: object) -> WorkerReport | None:
    if not isinstance(answer, dict):
        return None
    generation, ready = answer.get("generation"), answer.get("ready")
    if not isinstance(generation, int | None) or not isinstance(ready, bool):
        return None
    return WorkerReport(
        generation=generation or 0,
        ready=ready,
        reason=str(answer.get("reason") or ""),
        refusal=str(answer.get("lastRefusal") or ""),
        settings=answer.get("settings"),
    )
