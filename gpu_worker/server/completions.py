"""`/v1/chat/completions` and `/v1/completions` as OpenAI has them, whole or streamed."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_json

from gpu_worker.engines.interface import Prepared, Sampling, TextEngine
from gpu_worker.server.embeddings import read_object
from gpu_worker.server.errors import ApiError, from_answer, invalid, openai_body
from gpu_worker.server.exchange import Call, ClientGone, EventStream, Reply
from gpu_worker.server.options import read_options
from gpu_worker.server.sampling import MOST_LOGPROBS, flag, read_sampling, refuse, whole
from gpu_worker.server.service import Service, timing
from gpu_worker.server.text_shapes import ChatShape, CompletionShape, JsonObject, Shape, Text
from gpu_worker.server.texts import Grown, Texts

MOST_CHOICES = 32
LEGACY_MAX_TOKENS = 16
"""OpenAI's own default of /v1/completions."""
LONGEST = 2**31


@dataclass(frozen=True, slots=True)
class _Answering:
    """One call on its way."""

    shape: Shape
    prepared: Sequence[Prepared]
    prompt_tokens: int
    id: str
    created: int


class CompletionsApi:
    """OpenAI's endpoints on an engine that makes text."""

    def __init__(self, service: Service, engine: TextEngine) -> None:
        self._service = service
        self._engine = engine

    async def chat(self, call: Call) -> Reply | EventStream:
        """POST /v1/chat/completions."""
        body = read_object(await call.body(self._service.limits.body_bytes))
        refuse(body, tools=[], functions=[], response_format={"type": "text"}, modalities=["text"], audio=None)
        messages = _messages(body.get("messages"))
        max_tokens = whole(body, "max_completion_tokens", 1, LONGEST) or whole(body, "max_tokens", 1, LONGEST)
        likeliest = whole(body, "top_logprobs", 0, MOST_LOGPROBS) or 0
        sampling = read_sampling(body, max_tokens, likeliest if flag(body, "logprobs") else None)
        characters = sum(len(message["content"]) for message in messages)
        return await self._answer(
            call, body, ChatShape(), sampling, [messages], characters, self._engine.chat, "messages"
        )

    async def completions(self, call: Call) -> Reply | EventStream:
        """POST /v1/completions."""
        body = read_object(await call.body(self._service.limits.body_bytes))
        refuse(body, echo=False, suffix="", best_of=1)
        prompts = _prompts(body.get("prompt"))
        max_tokens = whole(body, "max_tokens", 1, LONGEST) or LEGACY_MAX_TOKENS
        sampling = read_sampling(body, max_tokens, whole(body, "logprobs", 0, MOST_LOGPROBS))
        characters = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        return await self._answer(call, body, CompletionShape(), sampling, prompts, characters, self._tokens, "prompt")

    def _tokens(self, prompt: str | list[int]) -> list[int]:
        return self._engine.encode(prompt) if isinstance(prompt, str) else prompt

    async def _answer(
        self,
        call: Call,
        body: Mapping[str, Any],
        shape: Shape,
        sampling: Sampling,
        inputs: Sequence[Any],
        characters: int,
        encode: Callable[[Any], list[int]],
        param: str,
    ) -> Reply | EventStream:
        service = self._service
        arrival_s = service.clock()
        service.must_be(body.get("model"))
        options = read_options(call.headers, body, service.settings(), call.caller)
        streams, wants_usage = _streaming(body)
        n = whole(body, "n", 1, MOST_CHOICES) or 1
        engine = self._engine

        def first(given: Any) -> Prepared:
            return engine.generation(encode(given), sampling)

        firsts = await service.prepare(inputs, characters, first, options, arrival_s, param)
        prepared = [
            one if copy == 0 else engine.generation(one.content.tokens, _another(sampling, copy))
            for one in firsts
            for copy in range(n)
        ]
        answering = _Answering(
            shape,
            prepared,
            sum(one.tokens for one in firsts),
            f"{shape.prefix}-{secrets.token_hex(12)}",
            int(time.time()),
        )
        texts = service.texts(prepared, options, arrival_s)
        if streams:
            return await self._stream(call, answering, texts, wants_usage)
        return await self._whole(call, answering, texts)

    async def _whole(self, call: Call, answering: _Answering, texts: Texts) -> Reply:
        grown = [Text() for _ in answering.prepared]
        async with _watched(call, texts):
            while (event := await texts.next()) is not None:
                grown[event.index].pieces.append(event.piece)
        timed = _served(texts)
        choices = [answering.shape.choice(index, text) for index, text in enumerate(grown)]
        made = sum(len(text.pieces) for text in grown)
        answer = self._object(answering, answering.shape.whole, choices) | {"usage": _usage(answering, made)}
        return Reply(to_json(answer), headers=[(b"server-timing", timed)])

    async def _stream(self, call: Call, answering: _Answering, texts: Texts, wants_usage: bool) -> EventStream:
        """Begins when the first token is there: until then a failure still has an HTTP status of its own."""
        async with _watched(call, texts):
            event = await texts.next()
        if event is None:
            _served(texts)
        return EventStream(self._events(call, answering, texts, event, wants_usage))

    async def _events(
        self, call: Call, answering: _Answering, texts: Texts, event: Grown | None, wants_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        shape = answering.shape
        no_usage = {"usage": None} if wants_usage else {}
        made = 0

        def line(choices: Sequence[JsonObject], **more: Any) -> bytes:
            return _data(to_json(self._object(answering, shape.chunk, choices) | no_usage | more))

        async with _watched(call, texts):
            openings = (shape.opening(index) for index in range(len(answering.prepared)))
            for opening in openings:
                if opening is not None:
                    yield line([opening])
            while event is not None:
                made += 1
                piece = event.piece
                if piece.text or piece.chosen is not None:
                    yield line([shape.growth(event.index, piece)])
                if piece.finish is not None:
                    yield line([shape.closing(event.index, piece.finish)])
                event = await texts.next()
        if texts.failure is not None:
            yield _data(openai_body(_failure(texts)))
            return
        if texts.slowest is None:
            return
        if wants_usage:
            yield line([], usage=_usage(answering, made))
        yield b": server-timing " + timing(texts.slowest.waits) + b"\n\n"
        yield _data(b"[DONE]")

    def _object(self, answering: _Answering, kind: str, choices: Sequence[JsonObject]) -> JsonObject:
        return {
            "id": answering.id,
            "object": kind,
            "created": answering.created,
            "model": self._service.model,
            "choices": choices,
        }


@contextlib.asynccontextmanager
async def _watched(call: Call, texts: Texts) -> AsyncIterator[None]:
    """Ends the texts as soon as the client is gone, or this task is."""
    watch = asyncio.create_task(call.gone())
    watch.add_done_callback(lambda task: None if task.cancelled() else texts.cancel())
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        texts.cancel()
        raise
    finally:
        watch.cancel()


def _served(texts: Texts) -> bytes:
    """The `Server-Timing` of a call that was served. Raises ApiError or ClientGone when it was not."""
    if texts.failure is not None:
        raise _failure(texts)
    if texts.slowest is None:
        raise ClientGone
    return timing(texts.slowest.waits)


def _failure(texts: Texts) -> ApiError:
    assert texts.failure is not None
    return from_answer(texts.failure, texts.error, timing(texts.failure.waits))


def _data(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def _usage(answering: _Answering, made: int) -> JsonObject:
    prompt = answering.prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def _another(sampling: Sampling, copy: int) -> Sampling:
    """The same prompt once more: with the same seed all choices would be alike."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + copy)


def _streaming(body: Mapping[str, Any]) -> tuple[bool, bool]:
    streams = flag(body, "stream")
    options = body.get("stream_options")
    if options is None:
        return streams, False
    if not streams:
        raise invalid("stream_options is for streams only", "stream_options")
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    return streams, flag(options, "include_usage")


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given or not all(isinstance(message, dict) for message in given):
        raise invalid("messages must be a list of objects and not empty", "messages")
    return [_message(index, message) for index, message in enumerate(given)]


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise invalid(f"messages[{index}] needs a role", "messages")
    if content is None and role == "assistant":
        content = ""
    if isinstance(content, list):
        content = _joined(content)
    if not isinstance(content, str):
        raise invalid(f"messages[{index}].content must be a text, or parts of type text", "messages")
    return dict(message) | {"content": content}


def _joined(parts: list[Any]) -> str | None:
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            return None
        texts.append(part["text"])
    return "".join(texts)


def _prompts(given: Any) -> list[Any]:
    """Texts, or token arrays."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise invalid("prompt must be a text, a list of texts, or token arrays, and not empty", "prompt")
    prompts = [given] if type(given[0]) is int else given
    for prompt in prompts:
        tokens = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
        if not isinstance(prompt, str) and not tokens:
            raise invalid("prompt must be a text, a list of texts, or token arrays, and not empty", "prompt")
    return prompts
