"""How a request ended, seen from the client, and the row that says so."""

import struct
from enum import IntEnum
from typing import Final


class Outcome(IntEnum):
    """How a request ended. Whether an answer was late is judged afterwards, against its tier's SLA."""

    ANSWERED = 0
    SHED = 1
    """429: refused because there is too much work."""
    EXPIRED = 2
    """504: given up by the server for lack of time."""
    TIMEOUT = 3
    """No whole answer within the client's timeout, counted from the intended send time."""
    ERROR = 4
    """Another status, a broken connection, or an answer that is none."""
    UNFINISHED = 5
    """The run was stopped before the answer; counted, but in no percentile."""


def of_status(status: int) -> Outcome:
    """Outcome of a whole answer with this HTTP status."""
    if 200 <= status < 300:
        return Outcome.ANSWERED
    return {429: Outcome.SHED, 504: Outcome.EXPIRED}.get(status, Outcome.ERROR)


def of_error_code(code: object) -> Outcome:
    """Outcome of an error inside a stream, whose status was 200 already; `code` is the error's, a name or a number."""
    match code:
        case 429 | "429" | "overloaded" | "rate_limit_exceeded":
            return Outcome.SHED
        case 504 | "504" | "deadline_exceeded":
            return Outcome.EXPIRED
        case _:
            return Outcome.ERROR


ROW: Final = struct.Struct("<IfffffffIHBB")
"""One request as a sending process reports it: the fields of `ROW_FIELDS`, packed."""

ROW_FIELDS: Final = (
    ("index", "<u4"),  # number in the schedule
    ("lag_s", "<f4"),  # sent less intended
    ("latency_s", "<f4"),  # whole answer less intended; NaN without one
    ("first_token_s", "<f4"),  # first token less intended; NaN without one
    ("hold_ms", "<f4"),
    ("busy_ms", "<f4"),
    ("slot_ms", "<f4"),
    ("exec_ms", "<f4"),
    ("output_tokens", "<u4"),
    ("status", "<u2"),  # 0 without an answer
    ("outcome", "u1"),
    ("attempts", "u1"),  # 2: sent again because an idle connection was closed under it
)
