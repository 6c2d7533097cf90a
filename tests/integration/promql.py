"""What an alert's expression compares and joins, piece by piece: the whole has data only when something is wrong."""

import re

_PARTED = re.compile(r"\b(?:and|or|unless)\b(?:\s+on\s*\([^)]*\))?|[<>=!]=|[<>]")
_NUMBER = re.compile(r"[-+*/\d.\s]*")
_WRAPPED = re.compile(r"(?:absent\s*)?\((.*)\)", re.DOTALL)


def parts(expression: str) -> list[str]:
    """The expressions between set operators and comparisons outside of functions, those in plain parentheses too. What
    stands in `absent` is asked for itself."""
    found: list[str] = []
    for piece in _split(expression.strip()):
        inner = _WRAPPED.fullmatch(piece)
        if inner and _closes_last(piece):
            found += parts(inner[1])
        elif not _NUMBER.fullmatch(piece):
            found.append(piece)
    return found


def _split(expression: str) -> list[str]:
    pieces, start, at = [], 0, 0
    while at < len(expression):
        if expression[at] in "({[":
            at = _end_of(expression, at)
        elif operator := _PARTED.match(expression, at):
            pieces.append(expression[start:at].strip())
            start = at = operator.end()
        else:
            at += 1
    return [piece for piece in (*pieces, expression[start:].strip()) if piece]


def _end_of(expression: str, opened: int) -> int:
    """Behind the bracket that closes this one. Strings may hold brackets."""
    depth, quoted = 0, False
    for at in range(opened, len(expression)):
        if expression[at] == '"':
            quoted = not quoted
        elif not quoted:
            depth += (expression[at] in "({[") - (expression[at] in ")}]")
            if depth == 0:
                return at + 1
    raise ValueError(f"never closed: {expression}")


def _closes_last(piece: str) -> bool:
    return _end_of(piece, piece.index("(")) == len(piece)
