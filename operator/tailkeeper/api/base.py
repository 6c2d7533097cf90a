"""What every model of the contract shares: camelCase on the wire, no unknown fields, no silent coercion."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints
from pydantic.alias_generators import to_camel

Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]
Str = Annotated[str, Strict()]

Milliseconds = Annotated[Int, Field(ge=1, le=86_400_000)]
"""A duration in whole milliseconds, one day at most."""

Percent = Annotated[Int, Field(ge=0, le=100)]

LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DnsLabel = Annotated[Str, StringConstraints(pattern=LABEL, min_length=1, max_length=63)]
"""A DNS label as RFC 1035 has it: what a Service may be called."""

SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ObjectName = Annotated[Str, StringConstraints(pattern=SUBDOMAIN, min_length=1, max_length=253)]
"""The name of a Kubernetes object (RFC 1123 subdomain)."""


class Contract(BaseModel):
    """Base of every object that crosses a boundary: frozen, camelCase, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
    )
