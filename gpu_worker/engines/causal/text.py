"""Tokens become text while they come: never half a character, never a part of a stop string."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "�"
"""What a decoder writes for bytes that are no character (yet)."""


class TextStream:
    """The text of one request. What `push` and `finish` return, joined, is the text of all its tokens up to the first
    stop string."""

    __slots__ = ("_context", "_decode", "_held", "_read", "_stops", "_tokens", "stopped")

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._context = 0
        """A token's text can depend on the one before it: decoding begins here."""
        self._read = 0
        """Tokens whose text is known."""
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain with this token."""
        self._tokens.append(token)
        known, longer = self._texts()
        if len(longer) <= len(known) or longer.endswith(REPLACEMENT):
            return ""
        self._context, self._read = self._read, len(self._tokens)
        return self._past_stops(longer[len(known) :])

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        if self.stopped:
            return ""
        known, longer = self._texts()
        self._read = len(self._tokens)
        text = self._past_stops(longer[len(known) :])
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _texts(self) -> tuple[str, str]:
        tokens = self._tokens
        return self._decode(tokens[self._context : self._read]), self._decode(tokens[self._context :])

    def _past_stops(self, text: str) -> str:
        if not self._stops:
            return text
        text = self._held + text
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that begins the stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
