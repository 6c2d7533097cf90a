"""What to send, where to, and what to hold the answers against. Plain data, bounded in time and number."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, urlsplit

from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError

DURATION_MAX_S: Final = 86_400.0
REQUESTS_MAX: Final = 10_000_000
PROCESSES_MAX: Final = 64

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MODEL_IN_PATH: Final = re.compile(r"/v2/models/(?P<model>[^/]+)(/versions/[^/]+)?/infer")


class Api(StrEnum):
    """The protocol of requests."""

    EMBEDDINGS = "embeddings"
    CHAT = "chat"
    COMPLETIONS = "completions"
    V2 = "v2"
    """Open Inference Protocol: `/v2/models/NAME/infer` with JSON."""


_PATHS: Final = {
    Api.EMBEDDINGS: "/v1/embeddings",
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
}


@dataclass(frozen=True)
class Target:
    """Whom to send to, and how."""

    url: str
    """`http://HOST[:PORT]` (then `api` says which path) or the whole URL of one of the APIs."""
    api: Api | None = None
    """None: what the URL's path says."""
    model: str | None = None
    """None: the first that the server lists."""
    stream: bool = True
    """Chat and completions: answers token by token."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every request, such as an API key."""
    verify_tls: bool = True

    def __post_init__(self) -> None:
        parts = self.parts
        if self.api is None and _api_of_path(parts.path) is None:
            raise LoadError(f"{self.url}: which API? Say {', '.join(Api)}, or give the whole URL")
        for name, value in self.headers:
            if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise LoadError(
                    f"header {name!r}: a name of letters, digits and dashes and one line of ASCII are wanted"
                )

    @property
    def parts(self) -> SplitResult:
        """The URL's parts, checked."""
        try:
            parts = urlsplit(self.url)
            port_is_fine = parts.port != 0
        except ValueError as error:
            raise LoadError(f"{self.url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
            raise LoadError(f"{self.url!r} is no URL that can be sent to: write http://HOST:PORT")
        if not self.url.isascii() or any(c <= " " for c in self.url):
            raise LoadError(f"{self.url!r}: spaces and signs outside ASCII must be percent-encoded")
        if parts.username or parts.password:
            raise LoadError("a password in a URL ends in shell history and reports: use a header")
        return parts

    @property
    def host(self) -> str:
        """Host without brackets."""
        host = self.parts.hostname
        assert host is not None
        return host

    @property
    def port(self) -> int:
        """Port, the scheme's own where none is given."""
        return self.parts.port or (443 if self.tls else 80)

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.parts.scheme == "https"

    @property
    def chosen_api(self) -> Api:
        """The API: the one said, else the one of the path."""
        api = self.api or _api_of_path(self.parts.path)
        assert api is not None
        return api

    @property
    def chosen_model(self) -> str | None:
        """The model: the one said, else the one in the path of a v2 URL, else not known yet."""
        in_path = _MODEL_IN_PATH.search(self.parts.path)
        return self.model or (in_path["model"] if in_path else None)

    @property
    def streams(self) -> bool:
        """Whether answers come token by token."""
        return self.stream and self.chosen_api in (Api.CHAT, Api.COMPLETIONS)

    def path(self, model: str) -> str:
        """Path and query of a request to `model`."""
        parts = self.parts
        path = parts.path.rstrip("/")
        if _api_of_path(path) is None:
            path += f"/v2/models/{model}/infer" if self.chosen_api is Api.V2 else _PATHS[self.chosen_api]
        return path + (f"?{parts.query}" if parts.query else "")

    @property
    def base_path(self) -> str:
        """Path below which the APIs lie, without a slash at the end."""
        path = self.parts.path.rstrip("/")
        for end in _PATHS.values():
            path = path.removesuffix(end)
        return _MODEL_IN_PATH.sub("", path)


@dataclass(frozen=True)
class Limits:
    """What a tier's answers are held against."""

    sla_ms: float | None = None
    """Answers later than this are late; None: no such claim is made."""
    timeout_ms: float = 30_000.0
    """The client hangs up this long after the intended send time; a missing answer counts as this in percentiles."""

    def __post_init__(self) -> None:
        _check("SLA", "ms", self.sla_ms)
        _check("timeout", "ms", self.timeout_ms)
        if self.sla_ms is not None and self.sla_ms > self.timeout_ms:
            raise LoadError(f"an SLA of {self.sla_ms:g} ms cannot be seen with a timeout of {self.timeout_ms:g} ms")


@dataclass(frozen=True)
class Plan:
    """One run of the load generator."""

    target: Target
    loads: tuple[TierLoad, ...] = ()
    trace: tuple[LoadRequest, ...] = ()
    """Sent as well, from the start."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """By tier; `other_limits` for those not named."""
    other_limits: Limits = field(default_factory=Limits)
    duration_s: float = 30.0
    """Length of what is measured."""
    warmup_s: float = 0.0
    """Sent before that and not counted."""
    max_requests: int = 1_000_000
    """The load is cut there, and the report says so."""
    seed: int = 0
    processes: int = 1
    """Sending processes; one sends some thousand requests a second."""
    inputs: tuple[bytes, ...] = ()
    """Whole request bodies (JSON) to send in turn instead of made-up text; sizes then come from them."""
    texts: tuple[str, ...] = ()
    """Texts to send in turn instead of made-up ones."""
    max_send_lag_ms: float = 10.0
    """When the p99 of sent less intended is over this, the run did not send the load it claims."""
    probe: bool = True
    """Send one request of each tier first, and refuse to start when the server refuses it."""

    def __post_init__(self) -> None:
        if not self.loads and not self.trace:
            raise LoadError("no load: give at least one tier or a trace")
        _check("duration", "s", self.duration_s, most=DURATION_MAX_S)
        if not 0 <= self.warmup_s <= DURATION_MAX_S:
            raise LoadError(f"the warm-up must be between 0 and {DURATION_MAX_S:g} s, not {self.warmup_s:g}")
        _check("number of requests", "", self.max_requests, most=REQUESTS_MAX)
        _check("number of processes", "", self.processes, most=PROCESSES_MAX)
        _check("send lag allowed", "ms", self.max_send_lag_ms)
        if self.inputs and self.texts:
            raise LoadError("bodies or texts, not both")
        for tier in self.tiers:
            if not tier.isascii() or not tier.isprintable() or tier != tier.strip() or not tier:
                raise LoadError(f"tier {tier!r}: one word of ASCII is wanted, it travels in a header")

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names of all tiers, in the order they are given."""
        return tuple(dict.fromkeys([*(load.tier for load in self.loads), *(r.tier for r in self.trace)]))

    @property
    def end_s(self) -> float:
        """When sending ends, seconds from the start."""
        return self.warmup_s + self.duration_s

    def limits_of(self, tier: str) -> Limits:
        """What this tier's answers are held against."""
        return self.limits.get(tier, self.other_limits)


def _api_of_path(path: str) -> Api | None:
    path = path.rstrip("/")
    if _MODEL_IN_PATH.search(path):
        return Api.V2
    return next((api for api, end in _PATHS.items() if path.endswith(end)), None)


def _check(name: str, unit: str, value: float | None, most: float = math.inf) -> None:
    if value is not None and not (math.isfinite(value) and 0 < value <= most):
        bound = "" if math.isinf(most) else f" and at most {most:g}"
        raise LoadError(f"the {name} must be above 0{bound}{' ' + unit if unit else ''}, not {value:g}")
