"""What every model of the contract shares: camelCase on the wire, no unknown fields, no silent coercion.

The schema of the resources is generated from the models, and the API server must accept exactly the objects that they
accept. So what is said here about a type (a bound, a key, a rule) is said once, for both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]
Str = Annotated[str, Strict()]

DAY_MS = 86_400_000

Milliseconds = Annotated[Int, Field(ge=1, le=DAY_MS)]
"""A duration in whole milliseconds, one day at most."""

Percent = Annotated[Int, Field(ge=0, le=100)]

Count = Annotated[Int, Field(ge=0, le=2**53 - 1)]
"""A number that may grow large; every JSON reader holds it exactly."""

Generation = Annotated[Int, Field(ge=1, le=2**53 - 1)]
"""Number of a version of an instance's settings. It only grows."""

LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DnsLabel = Annotated[Str, StringConstraints(pattern=LABEL, min_length=1, max_length=63)]
"""A DNS label as RFC 1035 has it: what a Service may be called."""

Namespace = Annotated[Str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
"""The name of a namespace: a DNS label as RFC 1123 has it, which may start with a digit."""

SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ObjectName = Annotated[Str, StringConstraints(pattern=SUBDOMAIN, min_length=1, max_length=253)]
"""The name of a Kubernetes object (RFC 1123 subdomain)."""

Time = Annotated[
    Str,
    StringConstraints(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$", max_length=32
    ),
    Field(json_schema_extra={"format": "date-time"}),
]
"""A moment in UTC as RFC 3339 has it."""


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Contract(BaseModel):
    """Base of every object that crosses a boundary: frozen, camelCase, unknown fields refused, null is absent."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_as_the_server_does(cls, value: object) -> object:
        """The API server drops a null before it sets defaults, and kubectl makes 1 of a 1.0 in a file."""
        if isinstance(value, Mapping):
            return {key: _whole(item) for key, item in value.items() if item is not None}
        return value

    def but(self, **changes: object) -> Self:
        """A copy with these fields (by their Python names) changed, validated anew. Raises ValidationError."""
        return type(self).model_validate({**dict(self), **changes}, by_name=True)

    def to_json(self) -> dict[str, object]:
        """As it goes over the wire: camelCase, JSON types, nothing for what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Tolerant(Contract):
    """Base of what we write and a newer version of us may have written: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class Keyed:
    """Annotates a list whose items are told apart by one field: unique here, a map to server-side apply."""

    key: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The list's schema with a check of the keys after it."""
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonDict:
        """The list's JSON schema with Kubernetes' words for it."""
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _unique(self, items: list[object]) -> list[object]:
        keys = [getattr(item, self.key) for item in items]
        if twice := next((key for index, key in enumerate(keys) if key in keys[:index]), None):
            raise ValueError(f"duplicate {self.key}: {twice}")
        return items


@dataclass(frozen=True, slots=True)
class Unique:
    """Annotates a list that is a set."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The list's schema with a check of the items after it."""
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonDict:
        """The list's JSON schema with Kubernetes' word for it."""
        return {**handler(schema), "x-kubernetes-list-type": "set"}

    def _unique(self, items: list[object]) -> list[object]:
        if twice := next((item for index, item in enumerate(items) if item in items[:index]), None):
            raise ValueError(f"duplicate: {twice}")
        return items


def rules(*every: "Rule") -> JsonDict:
    """What a model's `json_schema_extra` takes for the API server to check these rules."""
    return {"x-kubernetes-validations": [rule.to_schema() for rule in every]}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule in CEL, which the API server checks: the twin of a validator in Python."""

    cel: str
    message: str
    """Names the field and says what to do."""
    field: str | None = None
    """Path of the field at fault below the object, when it is one that every such object may have: `.windowBusy`."""

    def to_schema(self) -> JsonDict:
        """An entry of `x-kubernetes-validations`."""
        schema: JsonDict = {"rule": self.cel, "message": self.message}
        if self.field is not None:
            schema["fieldPath"] = self.field
        return schema
