"""Which part of the KV memory belongs to whom. A request gets one run of tokens that is long enough for its prompt and
all that it may produce, so it can never run out of memory half way; attention then reads it where it lies."""

from dataclasses import dataclass

ALIGNMENT = 16
"""Sizes are rounded up to this, so that a gap is soon of use again."""


class Full(Exception):
    """There is not that much memory left."""


@dataclass(frozen=True, slots=True)
class Move:
    """Contents to be moved down to close a gap; in the order given no move overwrites what a later one reads."""

    source: int
    target: int
    tokens: int


def rounded(tokens: int) -> int:
    """What a request of so many tokens really takes."""
    return -(-tokens // ALIGNMENT) * ALIGNMENT


class Extents:
    """First fit in a line of tokens; when only gaps are left, the extents are pushed together."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._held: dict[str, tuple[int, int]] = {}
        """Start and size by owner, in the order of the starts."""

    @property
    def owners(self) -> frozenset[str]:
        """Who holds memory."""
        return frozenset(self._held)

    @property
    def used(self) -> int:
        """Tokens held."""
        return sum(size for _, size in self._held.values())

    def start(self, owner: str) -> int | None:
        """Where its memory begins; None when it holds none."""
        held = self._held.get(owner)
        return None if held is None else held[0]

    def take(self, owner: str, tokens: int) -> list[Move]:
        """Gives memory to who holds none; returns what must be moved first. Raises Full."""
        size = rounded(tokens)
        if self.used + size > self._tokens:
            raise Full(f"{size} tokens of KV memory wanted, {self._tokens - self.used} are free")
        start = self._gap(size)
        moves = self._push_together() if start is None else []
        self._held[owner] = (self._end() if start is None else start, size)
        self._held = dict(sorted(self._held.items(), key=lambda item: item[1]))
        return moves

    def free(self, owner: str) -> None:
        """Takes it back; one who holds none is fine."""
        self._held.pop(owner, None)

    def _gap(self, size: int) -> int | None:
        begin = 0
        for start, held in self._held.values():
            if start - begin >= size:
                return begin
            begin = start + held
        return begin if self._tokens - begin >= size else None

    def _end(self) -> int:
        return max((start + size for start, size in self._held.values()), default=0)

    def _push_together(self) -> list[Move]:
        moves = []
        begin = 0
        for owner, (start, size) in list(self._held.items()):
            if start > begin:
                moves.append(Move(start, begin, size))
                self._held[owner] = (begin, size)
            begin += size
        return moves
