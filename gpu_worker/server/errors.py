"""How a call fails: one exception with an HTTP status, rendered in the shape of whichever API was called."""

import math
from dataclasses import dataclass
from enum import StrEnum

from pydantic_core import to_json

from gpu_worker.scheduling.interface import Answer, Outcome
from gpu_worker.server.isolation import NotServed

Headers = list[tuple[bytes, bytes]]

RETRY_SOON_S = 1.0


class Code(StrEnum):
    """What went wrong, for programs; `error.code` in OpenAI's shape."""

    INVALID_BODY = "invalid_body"
    INVALID_VALUE = "invalid_value"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    INVALID_API_KEY = "invalid_api_key"
    TIER_NOT_ALLOWED = "tier_not_allowed"
    OVERLOADED = "overloaded"
    EXPIRED = "deadline_exceeded"
    UNAVAILABLE = "unavailable"
    ENGINE_ERROR = "engine_error"


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


@dataclass(eq=False)
class ApiError(Exception):
    """A call that fails."""

    status: int
    code: Code
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    server_timing: bytes | None = None

    def headers(self) -> Headers:
        """`Retry-After` in whole seconds, at least 1; and, where another try would end alike, the header by which
        OpenAI's clients know not to try again."""
        headers: Headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after_s))).encode()))
        if self.status == 500 or self.code is Code.EXPIRED:
            headers.append((b"x-should-retry", b"false"))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.server_timing is not None:
            headers.append((b"server-timing", self.server_timing))
        return headers


def openai_body(error: ApiError) -> bytes:
    """OpenAI: `{"error": {"message", "type", "param", "code"}}`."""
    kind = _TYPES.get(error.status, "invalid_request_error")
    return to_json({"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code.value}})


def inference_body(error: ApiError) -> bytes:
    """Open Inference Protocol v2: `{"error": message}`."""
    return to_json({"error": error.message})


def invalid(message: str, param: str | None = None, code: Code = Code.INVALID_VALUE) -> ApiError:
    """400."""
    return ApiError(400, code, message, param)


def expired_before_arrival() -> ApiError:
    """A deadline that has passed already: 504, as for one that passes in the queue, and at once. It is not counted as a
    request: no setting could have saved it, and the tuner must not be moved by it."""
    return ApiError(504, Code.EXPIRED, "the deadline had passed when the request arrived", "deadline_ms")


def unavailable(message: str) -> ApiError:
    """503: another worker, or this one a little later, can serve it."""
    return ApiError(503, Code.UNAVAILABLE, message, retry_after_s=RETRY_SOON_S)


def from_answer(answer: Answer, error: Exception | None, server_timing: bytes) -> ApiError:
    """What a caller gets for an answer that is not OK or LATE."""
    match answer.outcome:
        case Outcome.SHED:
            message = "more requests wait than can be served in time; try again later"
            after_s = answer.retry_after_s if answer.retry_after_s is not None else RETRY_SOON_S
            return ApiError(429, Code.OVERLOADED, message, retry_after_s=after_s, server_timing=server_timing)
        case Outcome.EXPIRED:
            message = f"the deadline passed after {answer.waits.total_s * 1000:.0f} ms in the queue"
            return ApiError(504, Code.EXPIRED, message, server_timing=server_timing)
        case _ if isinstance(error, NotServed):
            message = f"the request was not served: {error}"
            return ApiError(503, Code.UNAVAILABLE, message, retry_after_s=RETRY_SOON_S, server_timing=server_timing)
        case _:
            message = "the engine failed on this input"
            return ApiError(500, Code.ENGINE_ERROR, message, server_timing=server_timing)
