"""What OpenAI's clients want to read: a whole answer, or its chunks; of a conversation, or of a plain text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_worker.engines.interface import Finish, Likely, Piece

JsonObject = dict[str, Any]


@dataclass(slots=True)
class Text:
    """One text as far as it is known."""

    pieces: list[Piece] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish(self) -> Finish | None:
        """Why it ended."""
        return self.pieces[-1].finish if self.pieces else None


class Shape(Protocol):
    """How one of the endpoints writes."""

    prefix: str
    whole: str
    chunk: str

    def choice(self, index: int, text: Text) -> JsonObject:
        """A whole text."""
        ...

    def opening(self, index: int) -> JsonObject | None:
        """The first chunk of a text, before its first token."""
        ...

    def growth(self, index: int, piece: Piece) -> JsonObject:
        """A chunk."""
        ...

    def closing(self, index: int, finish: Finish | None) -> JsonObject:
        """The last chunk of a text."""
        ...


class ChatShape:
    """/v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, text: Text) -> JsonObject:
        """A whole answer."""
        message = {"role": "assistant", "content": text.text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(text.pieces),
            "finish_reason": text.finish,
        }

    def opening(self, index: int) -> JsonObject | None:
        """Who speaks."""
        return _delta(index, {"role": "assistant", "content": ""})

    def growth(self, index: int, piece: Piece) -> JsonObject:
        """What is said."""
        return _delta(index, {"content": piece.text}, _chat_logprobs([piece]))

    def closing(self, index: int, finish: Finish | None) -> JsonObject:
        """Why no more is said."""
        return _delta(index, {}, finish=finish)


class CompletionShape:
    """/v1/completions."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def choice(self, index: int, text: Text) -> JsonObject:
        """A whole text."""
        return {
            "index": index,
            "text": text.text,
            "logprobs": self._logprobs(index, text.pieces),
            "finish_reason": text.finish,
        }

    def opening(self, index: int) -> JsonObject | None:
        """Nothing."""
        return None

    def growth(self, index: int, piece: Piece) -> JsonObject:
        """The next part."""
        return {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(index, [piece]),
            "finish_reason": None,
        }

    def closing(self, index: int, finish: Finish | None) -> JsonObject:
        """Why it ends."""
        return {"index": index, "text": "", "logprobs": None, "finish_reason": finish}

    def _logprobs(self, index: int, pieces: Sequence[Piece]) -> JsonObject | None:
        named = [piece for piece in pieces if piece.chosen is not None]
        if not named:
            return None
        offset = self._offsets.get(index, 0)
        tokens, logprobs, likeliest, offsets = [], [], [], []
        for piece in named:
            assert piece.chosen is not None
            tokens.append(piece.chosen.text)
            logprobs.append(piece.chosen.logprob)
            top = {one.text: one.logprob for one in piece.likeliest}
            likeliest.append(top | {piece.chosen.text: piece.chosen.logprob} if top else None)
            offsets.append(offset)
            offset += len(piece.chosen.text)
        self._offsets[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": likeliest if any(likeliest) else None,
            "text_offset": offsets,
        }


def _delta(index: int, delta: JsonObject, logprobs: Any = None, finish: Finish | None = None) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _chat_logprobs(pieces: Sequence[Piece]) -> JsonObject | None:
    named = [piece for piece in pieces if piece.chosen is not None]
    if not named:
        return None
    content = [
        _likely(piece.chosen) | {"top_logprobs": [_likely(one) for one in piece.likeliest]}
        for piece in named
        if piece.chosen is not None
    ]
    return {"content": content, "refusal": None}


def _likely(one: Likely) -> JsonObject:
    return {"token": one.text, "logprob": one.logprob, "bytes": list(one.text.encode())}
