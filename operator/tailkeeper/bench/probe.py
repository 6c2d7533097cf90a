"""Looks before sending: is somebody there, is the model, are the tiers known? What is wrong is said in one line."""

import asyncio
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Final

from tailkeeper.bench.connection import Exchange, Pool
from tailkeeper.bench.outcome import Outcome
from tailkeeper.bench.plan import Api, Plan, Target
from tailkeeper.bench.stream import StreamReader
from tailkeeper.bench.wire import Model, bodies, head
from tailkeeper.bench.work import tls_context

PROBE_TOKENS: Final = 8
CONNECT_S: Final = 10.0
_ANSWER_BYTES: Final = 1_000_000
_LISTING_S: Final = 10.0
_WHAT_ANSWERS_HAVE: Final = {Api.EMBEDDINGS: "data", Api.CHAT: "choices", Api.COMPLETIONS: "choices", Api.V2: "outputs"}


class TargetError(Exception):
    """The target cannot be loaded as asked; the message is one line."""


@dataclass(frozen=True)
class Found:
    """What was learnt of the target."""

    addresses: tuple[tuple[str, int], ...]
    model: Model
    warnings: tuple[str, ...] = ()


async def probe(plan: Plan) -> Found:
    """Find the server's addresses and the model, and send one short request of each tier.

    Raises:
        TargetError: nobody is there, or the server refuses what the plan would send.
    """
    target = plan.target
    addresses = await _addresses(target)
    client = _Client(target, addresses)
    try:
        model = await _model(client, target, needs_input=not plan.inputs)
        warnings: list[str] = []
        if plan.probe:
            for tier in plan.tiers:
                warnings += await _try_tier(client, plan, model, tier)
    finally:
        client.close()
    return Found(addresses, model, tuple(warnings))


class _Client:
    """One request after another, with answers kept."""

    def __init__(self, target: Target, addresses: tuple[tuple[str, int], ...]) -> None:
        self._ended = asyncio.Event()
        tls = tls_context(target.verify_tls) if target.tls else None
        self._pool = Pool(addresses, tls, target.host, lambda _: self._ended.set())

    async def send(self, payload: bytes, timeout_s: float, stream: StreamReader | None = None) -> Exchange:
        exchange = Exchange(0, 0, payload, time.monotonic(), stream)
        exchange.keep_body_bytes = _ANSWER_BYTES
        self._ended.clear()
        self._pool.send(exchange, time.monotonic() + timeout_s)
        await self._ended.wait()
        return exchange

    def close(self) -> None:
        self._pool.close()


async def _addresses(target: Target) -> tuple[tuple[str, int], ...]:
    """Resolve the host once, and keep the addresses that take a connection."""
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else error
        raise TargetError(f"{target.url}: the host {target.host!r} is not known: {why}") from None
    found = list(dict.fromkeys((str(info[4][0]), int(info[4][1])) for info in infos))
    results = await asyncio.gather(*(_try_connect(host, port) for host, port in found))
    good = tuple(address for address, why in zip(found, results, strict=True) if why is None)
    if not good:
        raise TargetError(f"{target.url}: cannot connect to {found[0][0]} port {target.port}: {results[0]}")
    return good


async def _try_connect(host: str, port: int) -> str | None:
    """Return why no connection can be made, None when one can."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {CONNECT_S:g} s"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()
    writer.close()
    return None


async def _model(client: _Client, target: Target, needs_input: bool) -> Model:
    name = target.chosen_model or await _first_model(client, target)
    if target.chosen_api is not Api.V2 or not needs_input:
        return Model(name)
    metadata = await _get(client, target, f"/v2/models/{name}")
    inputs = metadata.get("inputs") if isinstance(metadata, dict) else None
    if not isinstance(inputs, list):
        # A server need not describe its models; the request that follows will tell.
        return Model(name)
    for tensor in inputs:
        if isinstance(tensor, dict) and tensor.get("datatype") == "BYTES":
            return Model(name, v2_input=str(tensor.get("name")))
    types = ", ".join(f"{t.get('name')} {t.get('datatype')}" for t in inputs if isinstance(t, dict))
    raise TargetError(
        f"{target.url}: model {name!r} takes no text ({types}): give whole requests with --input FILE.jsonl"
    )


async def _first_model(client: _Client, target: Target) -> str:
    listing = await _get(client, target, "/v1/models")
    try:
        return str(listing["data"][0]["id"])  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        raise TargetError(
            f"{target.url}: the server lists no models at /v1/models: say which with --model NAME"
        ) from None


async def _get(client: _Client, target: Target, path: str) -> object:
    """Return the JSON at a path, None when there is none."""
    lines = head(target, Model(""), "", None, None).decode("ascii").split("\r\n")[1:-1]
    kept = [line for line in lines if not line.startswith(("x-tailkeeper-", "content-type:", "accept:"))]
    request = "\r\n".join([f"GET {target.base_path}{path} HTTP/1.1", *kept, "accept: application/json", "", ""])
    exchange = await client.send(request.encode("ascii"), _LISTING_S)
    if not exchange.status:
        raise TargetError(f"{target.url}: GET {path} failed: {exchange.error}")
    if exchange.outcome is not Outcome.ANSWERED:
        return None
    try:
        return json.loads(exchange.body)
    except ValueError:
        return None


async def _try_tier(client: _Client, plan: Plan, model: Model, tier: str) -> list[str]:
    target = plan.target
    body = bodies(plan, model, PROBE_TOKENS).body(0, PROBE_TOKENS, 1)
    deadline_ms, tenant = next(
        ((load.deadline_ms, load.tenant) for load in plan.loads if load.tier == tier), (None, None)
    )
    payload = b"%b%d\r\n\r\n%b" % (head(target, model, tier, deadline_ms, tenant), len(body), body)
    timeout_s = plan.limits_of(tier).timeout_ms / 1000
    exchange = await client.send(payload, max(timeout_s, 1.0), StreamReader() if target.streams else None)
    where = f"{target.url}: a first request of tier {tier!r}"
    match exchange.outcome:
        case Outcome.ANSWERED:
            if not target.streams and not _looks_like_an_answer(target.chosen_api, exchange.body):
                raise TargetError(f"{where} was answered by something that is no {target.chosen_api} API")
            return []
        case Outcome.SHED | Outcome.EXPIRED:
            return [f"{where} got {exchange.status} before the load began: the server is busy already"]
        case Outcome.TIMEOUT:
            raise TargetError(f"{where} got no answer within {max(timeout_s, 1.0):g} s")
        case _ if exchange.status >= 400:
            raise TargetError(f"{where} got {exchange.status}: {_message(exchange.body)}")
        case _:
            raise TargetError(f"{where} failed: {exchange.error}")


def _looks_like_an_answer(api: Api, body: bytes) -> bool:
    try:
        answer = json.loads(body)
    except ValueError:
        return len(body) >= _ANSWER_BYTES  # cut off by us
    return isinstance(answer, dict) and _WHAT_ANSWERS_HAVE[api] in answer


def _message(body: bytes) -> str:
    """Find the sentence in an error's body, whatever its shape."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        while isinstance(found, dict):
            found = found.get("error") or found.get("message") or found.get("detail")
        text = str(found or text)
    except ValueError:
        pass
    text = " ".join(text.split())
    return text[:300] if text else "(no message)"
