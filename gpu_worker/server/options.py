"""What a call says about how it wants to be served: tier, priority, deadline, tenant. A header wins over the body, so
that a gateway can set what its clients may not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_worker.server.errors import ApiError, Code, expired_before_arrival, invalid
from gpu_worker.server.keys import Caller
from tailkeeper.api import names
from tailkeeper.api.settings import Settings

HEADER_TIER = names.HEADER_TIER.encode()
HEADER_DEADLINE = names.HEADER_DEADLINE_MS.encode()
HEADER_TENANT = names.HEADER_TENANT.encode()

LONGEST_DEADLINE_MS = 86_400_000
LARGEST_PRIORITY = 2**31 - 1
LONGEST_TENANT = 128


@dataclass(frozen=True, slots=True)
class Options:
    """How one call wants to be served."""

    tier: str
    priority: int
    deadline_s: float | None
    """Seconds from arrival."""
    tenant: str


def read_options(
    headers: Mapping[bytes, bytes], body: Mapping[str, Any], settings: Settings, caller: Caller | None
) -> Options:
    """Raises ApiError; `caller` is None where no API keys are asked for."""
    return Options(
        tier=_tier(headers.get(HEADER_TIER), body.get("tier"), settings, caller),
        priority=_priority(body.get("priority")),
        deadline_s=_deadline_s(headers.get(HEADER_DEADLINE), body.get("deadline_ms")),
        tenant=caller.tenant if caller is not None else _tenant(headers.get(HEADER_TENANT)),
    )


def _tier(header: bytes | None, field: Any, settings: Settings, caller: Caller | None) -> str:
    known = [tier.name for tier in settings.tiers]
    if header is None and field is None:
        return _tier_of_its_own(known, settings.default_tier, caller)
    tier = header.decode("latin-1").strip() if header is not None else field
    if not isinstance(tier, str) or tier not in known:
        raise invalid(f"unknown tier {tier!r}; the tiers are {', '.join(known)}", "tier")
    if caller is not None and not caller.may_use(tier):
        raise ApiError(403, Code.TIER_NOT_ALLOWED, f"this API key may not use tier {tier}", "tier")
    return tier


def _tier_of_its_own(known: list[str], default: str, caller: Caller | None) -> str:
    """The default tier, or the highest that the caller may use."""
    if caller is None or caller.may_use(default):
        return default
    for tier in known:
        if caller.may_use(tier):
            return tier
    raise ApiError(403, Code.TIER_NOT_ALLOWED, "this API key may use none of the tiers", "tier")


def _priority(field: Any) -> int:
    if field is None:
        return 0
    if not isinstance(field, int) or isinstance(field, bool) or abs(field) > LARGEST_PRIORITY:
        raise invalid("priority must be an integer of 32 bits; lower is served first", "priority")
    return field


def _deadline_s(header: bytes | None, field: Any) -> float | None:
    value: Any = field
    if header is not None:
        try:
            value = float(header)
        except ValueError:
            value = None
    elif field is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise invalid("deadline_ms must be a number: the milliseconds that are left", "deadline_ms")
    if value <= 0:
        raise expired_before_arrival()
    return min(value, LONGEST_DEADLINE_MS) / 1000


def _tenant(header: bytes | None) -> str:
    tenant = (header or b"").decode("latin-1").strip()
    if len(tenant) > LONGEST_TENANT or not tenant.isprintable():
        raise invalid(f"a tenant has at most {LONGEST_TENANT} printable characters", "tenant")
    return tenant
