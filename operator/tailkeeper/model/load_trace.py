"""Recorded loads: one row a request, without content. Written by `record`, read by `bench`, `replay` and `simulate`.

CSV with a header line; columns may come in any order, unknown ones are refused so that a misspelt one is not lost:
`arrival_s,tier,prompt_tokens,output_tokens[,deadline_ms,tenant]`. Rows are in order of arrival, and the first may be at
any time from 0 on. An empty deadline or tenant means none of its own.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tailkeeper.model.loads import LoadError

COLUMNS_NEEDED: Final = ("arrival_s", "tier", "prompt_tokens", "output_tokens")
COLUMNS_OPTIONAL: Final = ("deadline_ms", "tenant")

TOKENS_MAX: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request as it is meant to be sent: when (seconds from the start), by which tier, and of what size."""

    arrival_s: float
    tier: str
    prompt_tokens: int
    output_tokens: int
    deadline_ms: int | None = None
    tenant: str | None = None


def read_trace(lines: Iterable[str], source: str = "trace") -> list[LoadRequest]:
    """Read a whole trace.

    Args:
        lines: text lines with the header first, such as an open file.
        source: what to call it in errors.

    Raises:
        LoadError: `SOURCE:LINE: what is wrong`.
    """
    rows = csv.reader(lines, strict=True)
    requests: list[LoadRequest] = []
    try:
        header = next(rows, None)
        if header is None:
            raise LoadError(f"{source}: empty; wanted is a header line {','.join(COLUMNS_NEEDED)}")
        columns = _columns(header, f"{source}:{rows.line_num}")
        last_s = 0.0
        for cells in rows:
            if not cells:
                continue
            request = _request(columns, cells, f"{source}:{rows.line_num}")
            if request.arrival_s < last_s:
                raise LoadError(f"{source}:{rows.line_num}: arrival_s {request.arrival_s:g} is before the row above")
            last_s = request.arrival_s
            requests.append(request)
    except csv.Error as error:
        raise LoadError(f"{source}:{rows.line_num}: not CSV: {error}") from None
    except UnicodeDecodeError:
        raise LoadError(f"{source}:{rows.line_num + 1}: not UTF-8 text") from None
    if not requests:
        raise LoadError(f"{source}: no rows below the header")
    return requests


def write_trace(requests: Iterable[LoadRequest]) -> Iterator[str]:
    """Yield the CSV lines of a trace, header first, each with its line end; `read_trace` reads them back."""
    yield ",".join(COLUMNS_NEEDED + COLUMNS_OPTIONAL) + "\n"
    for r in requests:
        deadline = "" if r.deadline_ms is None else str(r.deadline_ms)
        cells = (f"{r.arrival_s:.6f}", r.tier, str(r.prompt_tokens), str(r.output_tokens), deadline, r.tenant or "")
        yield ",".join(_quoted(cell) for cell in cells) + "\n"


def rescaled(requests: Sequence[LoadRequest], speed: float = 1.0, tokens: float = 1.0) -> list[LoadRequest]:
    """Return the trace `speed` times as fast, starting at 0, with sizes times `tokens` (never below one token)."""
    if not (math.isfinite(speed) and speed > 0):
        raise LoadError(f"speed must be above 0, not {speed:g}")
    if not (math.isfinite(tokens) and tokens > 0):
        raise LoadError(f"the factor on tokens must be above 0, not {tokens:g}")
    start_s = requests[0].arrival_s if requests else 0.0
    return [
        replace(
            r,
            arrival_s=(r.arrival_s - start_s) / speed,
            prompt_tokens=max(1, round(r.prompt_tokens * tokens)),
            output_tokens=max(1, round(r.output_tokens * tokens)) if r.output_tokens else 0,
        )
        for r in requests
    ]


def _columns(header: Sequence[str], where: str) -> tuple[str, ...]:
    columns = tuple(name.strip().removeprefix("\ufeff") for name in header)
    missing = [name for name in COLUMNS_NEEDED if name not in columns]
    if missing:
        raise LoadError(f"{where}: the header lacks {', '.join(missing)}")
    known = COLUMNS_NEEDED + COLUMNS_OPTIONAL
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise LoadError(f"{where}: unknown column {unknown[0]!r}; known: {', '.join(known)}")
    if len(set(columns)) != len(columns):
        raise LoadError(f"{where}: a column is there twice")
    return columns


def _request(columns: Sequence[str], cells: Sequence[str], where: str) -> LoadRequest:
    if len(cells) != len(columns):
        raise LoadError(f"{where}: {len(cells)} cells where the header has {len(columns)}")
    row = {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
    if not row["tier"]:
        raise LoadError(f"{where}: tier is empty")
    deadline = row.get("deadline_ms", "")
    return LoadRequest(
        arrival_s=_seconds(row["arrival_s"], where),
        tier=row["tier"],
        prompt_tokens=_whole(row["prompt_tokens"], "prompt_tokens", 1, where),
        output_tokens=_whole(row["output_tokens"], "output_tokens", 0, where),
        deadline_ms=_whole(deadline, "deadline_ms", 1, where) if deadline else None,
        tenant=row.get("tenant") or None,
    )


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise LoadError(f"{where}: arrival_s {text!r} is not a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise LoadError(f"{where}: arrival_s {text!r} is not a time from 0 on")
    return value


def _whole(text: str, name: str, least: int, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise LoadError(f"{where}: {name} {text!r} is not a whole number") from None
    if not least <= value <= TOKENS_MAX:
        raise LoadError(f"{where}: {name} {value} is not between {least} and {TOKENS_MAX}")
    return value


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\r\n') else cell
