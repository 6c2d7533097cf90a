"""Reads a streamed answer (server-sent events of the OpenAI API) as it arrives: tokens, usage, errors, waits.

Fed with bytes cut anywhere. An event is a token when it carries text: the first chunk of a chat, which only names the
role, is not the first token. What a network read brings together was seen together and gets one time.
"""

import json
from typing import Final

from tailkeeper.bench.server_timing import Waits, parse_server_timing

_TIMING_COMMENT: Final = b": server-timing "


class StreamReader:
    """State of one streamed answer."""

    __slots__ = (
        "_rest",
        "completion_tokens",
        "done",
        "error",
        "error_code",
        "first_s",
        "gaps_s",
        "last_s",
        "tokens",
        "waits",
    )

    def __init__(self) -> None:
        self._rest = b""
        self.tokens = 0
        """Events that carried text."""
        self.completion_tokens: int | None = None
        """The server's own count, from `usage`."""
        self.first_s: float | None = None
        """When the first token came."""
        self.last_s: float | None = None
        """When the newest token came."""
        self.gaps_s: list[float] = []
        """Times between tokens, one fewer than tokens."""
        self.done = False
        self.error: str | None = None
        self.error_code: object = None
        """The `code` that came with it."""
        self.waits: Waits | None = None

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what arrived at `now_s`."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)
            elif line.startswith(_TIMING_COMMENT):
                self.waits = parse_server_timing(line[len(_TIMING_COMMENT) :].decode("latin-1"))

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
            if error := event.get("error"):
                self.error = str(error.get("message", error) if isinstance(error, dict) else error)
                self.error_code = error.get("code") if isinstance(error, dict) else None
                return
            if usage := event.get("usage"):
                self.completion_tokens = int(usage["completion_tokens"])
            has_text = any(_text(choice) for choice in event.get("choices", ()))
        except (ValueError, TypeError, AttributeError, KeyError):
            self.error = f"an event that is no answer: {data[:80].decode('utf-8', 'replace')}"
            return
        if has_text:
            if self.last_s is None:
                self.first_s = now_s
            else:
                self.gaps_s.append(now_s - self.last_s)
            self.last_s = now_s
            self.tokens += 1


def _text(choice: dict[str, object]) -> object:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
    return choice.get("text")
