"""`/v1/embeddings` as OpenAI has it."""

import base64
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic_core import from_json, to_json

from gpu_worker.engines.interface import EmbeddingEngine, Prepared, Vector
from gpu_worker.server.errors import Code, invalid
from gpu_worker.server.exchange import Call, Reply
from gpu_worker.server.options import Options, read_options
from gpu_worker.server.service import Service

JsonObject = dict[str, Any]


class EmbeddingsApi:
    """OpenAI's endpoints on an engine that embeds."""

    def __init__(self, service: Service, engine: EmbeddingEngine) -> None:
        self._service = service
        self._engine = engine

    async def embeddings(self, call: Call) -> Reply:
        """POST /v1/embeddings."""
        service = self._service
        body = read_object(await call.body(service.limits.body_bytes))
        arrival_s = service.clock()
        service.must_be(body.get("model"))
        options = read_options(call.headers, body, service.settings(), call.caller)
        self._check_dimensions(body.get("dimensions"))
        as_base64 = _wants_base64(body.get("encoding_format"))
        prepared = await self._prepare(body, options, arrival_s)
        served = await service.serve(call, prepared, options, arrival_s)
        tokens = sum(given.tokens for given in prepared)
        answer = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, as_base64)}
                for index, vector in enumerate(served.outputs)
            ],
            "model": service.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return Reply(to_json(answer), headers=[(b"server-timing", served.timing)])

    def _check_dimensions(self, dimensions: Any) -> None:
        """Other than the model's own would be a vector that this model was not trained to give."""
        if dimensions is not None and dimensions != self._engine.dimensions:
            raise invalid(f"this model gives {self._engine.dimensions} dimensions and no other number", "dimensions")

    async def _prepare(self, body: Mapping[str, Any], options: Options, arrival_s: float) -> list[Prepared]:
        given = body.get("input")
        truncate = body.get("truncate", True)
        if not isinstance(truncate, bool):
            raise invalid("truncate must be true or false", "truncate")
        inputs = _inputs(given)
        if isinstance(inputs[0], str):
            characters = sum(map(len, inputs))
            make = partial(self._engine.text, truncate=truncate)
            return await self._service.prepare(inputs, characters, make, options, arrival_s)
        return await self._service.prepare(inputs, 0, self._engine.tokens, options, arrival_s)


def read_object(body: bytes) -> JsonObject:
    """The JSON object of a body. Raises ApiError 400."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}", code=Code.INVALID_BODY) from None
    if not isinstance(value, dict):
        raise invalid("the body is not a JSON object", code=Code.INVALID_BODY)
    return value


def _inputs(given: Any) -> list[Any]:
    """A text, a list of texts, a list of tokens, or a list of those; as a list of texts or of lists of tokens."""
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not inputs:
        raise _bad_input("input must be a text, or a list of texts or of token arrays, and not empty")
    if isinstance(inputs[0], str):
        if not all(isinstance(text, str) for text in inputs):
            raise _bad_input("input must be of one kind: texts or token arrays")
        if "" in inputs:
            raise _bad_input("input must not hold an empty text")
        return inputs
    token_arrays: list[Any] = [inputs] if isinstance(inputs[0], int) else inputs
    for tokens in token_arrays:
        if not isinstance(tokens, list) or not tokens:
            raise _bad_input("input must be of one kind: texts, or token arrays that are not empty")
        if not all(type(token) is int for token in tokens):
            raise _bad_input("token arrays must hold integers")
    return token_arrays


def _bad_input(message: str) -> Exception:
    return invalid(message, "input")


def _wants_base64(encoding: Any) -> bool:
    if encoding not in (None, "float", "base64"):
        raise invalid("encoding_format must be float or base64", "encoding_format")
    return bool(encoding == "base64")


def _encoded(vector: Vector, as_base64: bool) -> str | list[float]:
    """Little-endian float32 in base64, or a list of numbers."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
