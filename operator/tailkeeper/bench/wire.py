"""Requests as bytes. Whatever is alike for many requests is put together once; the rest is cut and joined.

Making a request must cost microseconds: what it costs more, the next one is late.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailkeeper.api.names import HEADER_DEADLINE_MS, HEADER_TENANT, HEADER_TIER
from tailkeeper.bench.plan import Api, Plan, Target
from tailkeeper.bench.words import Words
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError

_TEXT = "\0text\0"
_TOKENS = 1_234_567_891
"""Stand-ins in a body's template, cut out of its JSON."""


class Bodies(Protocol):
    """Makes the body of a request from its number in the schedule and its size."""

    def body(self, index: int, prompt_tokens: int, output_tokens: int) -> bytes:
        """Return JSON."""
        ...


class Texts(Protocol):
    """Where the text of a request comes from."""

    def cut(self, index: int, tokens: int) -> bytes:
        """Return text for request number `index`, fit for the inside of a JSON string."""
        ...


@dataclass(frozen=True)
class GivenTexts:
    """Given texts in turn, whatever size was wanted."""

    texts: tuple[bytes, ...]

    def cut(self, index: int, tokens: int) -> bytes:
        """Return one of the texts."""
        return self.texts[index % len(self.texts)]


@dataclass(frozen=True)
class TextBodies:
    """One template around varying text."""

    before: bytes
    between: bytes
    """Between the text and the number of output tokens; all that is left where the API takes no such number."""
    after: bytes
    texts: Texts

    def body(self, index: int, prompt_tokens: int, output_tokens: int) -> bytes:
        """Return JSON."""
        text = self.texts.cut(index, prompt_tokens)
        if not self.after:
            return b"%b%b%b" % (self.before, text, self.between)
        return b"%b%b%b%d%b" % (self.before, text, self.between, max(1, output_tokens), self.after)


@dataclass(frozen=True)
class GivenBodies:
    """Whole bodies, in turn."""

    bodies: tuple[bytes, ...]

    def body(self, index: int, prompt_tokens: int, output_tokens: int) -> bytes:
        """Return JSON."""
        return self.bodies[index % len(self.bodies)]


@dataclass(frozen=True)
class Model:
    """What must be known of the model to write a request."""

    name: str
    v2_input: str = "text"
    """Name of the tensor of bytes that a v2 model takes."""


def bodies(plan: Plan, model: Model, longest_tokens: int) -> Bodies:
    """Choose how bodies are made."""
    if plan.inputs:
        return GivenBodies(plan.inputs)
    given = GivenTexts(tuple(json.dumps(text)[1:-1].encode() for text in plan.texts))
    return TextBodies(*_template(plan.target, model), given if plan.texts else Words(plan.seed, longest_tokens))


def head(target: Target, model: Model, tier: str, deadline_ms: int | None, tenant: str | None) -> bytes:
    """Everything of a request up to the value of Content-Length, which comes last."""
    port = "" if target.parts.port is None else f":{target.parts.port}"
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [
        f"POST {target.path(model.name)} HTTP/1.1",
        f"host: {host}{port}",
        "user-agent: tailkeeper-bench",
        "content-type: application/json",
        f"accept: {'text/event-stream' if target.streams else 'application/json'}",
        f"{HEADER_TIER}: {tier}",
    ]
    if deadline_ms is not None:
        lines.append(f"{HEADER_DEADLINE_MS}: {deadline_ms}")
    if tenant is not None:
        lines.append(f"{HEADER_TENANT}: {tenant}")
    given = {name.lower() for name, _ in target.headers}
    lines = [line for line in lines if line.partition(":")[0] not in given]
    lines += [f"{name}: {value}" for name, value in target.headers]
    if any("\r" in line or "\n" in line or not line.isascii() for line in lines):
        raise LoadError(f"tier {tier!r}, tenant {tenant!r}: header values are one line of ASCII")
    return ("\r\n".join(lines) + "\r\ncontent-length: ").encode("ascii")


@dataclass(frozen=True)
class Kind:
    """What requests of one tier, deadline and tenant have in common."""

    tier: str
    head: bytes
    timeout_s: float


def kinds_of(plan: Plan, model: Model, requests: Sequence[LoadRequest]) -> tuple[list[Kind], list[int]]:
    """Return the kinds there are, and the kind's number for each request."""
    numbers: dict[tuple[str, int | None, str | None], int] = {}
    of_request = [numbers.setdefault((r.tier, r.deadline_ms, r.tenant), len(numbers)) for r in requests]
    kinds = [
        Kind(tier, head(plan.target, model, tier, deadline_ms, tenant), plan.limits_of(tier).timeout_ms / 1000)
        for tier, deadline_ms, tenant in numbers
    ]
    return kinds, of_request


def _template(target: Target, model: Model) -> tuple[bytes, bytes, bytes]:
    """Cut a body at its text and its number of output tokens."""
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if target.streams else {}
    match target.chosen_api:
        case Api.EMBEDDINGS:
            body: dict[str, object] = {"model": model.name, "input": _TEXT}
        case Api.CHAT:
            messages = [{"role": "user", "content": _TEXT}]
            body = {"model": model.name, **streamed, "messages": messages, "max_tokens": _TOKENS}
        case Api.COMPLETIONS:
            body = {"model": model.name, **streamed, "prompt": _TEXT, "max_tokens": _TOKENS}
        case Api.V2:
            tensor = {"name": model.v2_input, "shape": [1], "datatype": "BYTES", "data": [_TEXT]}
            body = {"inputs": [tensor]}
    before, _, rest = json.dumps(body).partition(json.dumps(_TEXT)[1:-1])
    between, _, after = rest.partition(str(_TOKENS))
    return before.encode(), between.encode(), after.encode()
