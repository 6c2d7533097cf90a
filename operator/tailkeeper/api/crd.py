"""CustomResourceDefinitions from the models: `python -m tailkeeper.api.crd DIR` writes them, `--check DIR` compares.

Kubernetes takes a *structural* schema: no references, no `anyOf null`, no `const`, no titles. It also charges CEL rules
by the bounds of what they read, so every list, string and number must have one; that is checked here."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from pydantic import BaseModel
from pydantic.config import JsonDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tailkeeper.api.names import (
    GROUP,
    LONGEST_OBJECT_NAME,
    LONGEST_POLICY_NAME,
    POLICY_KIND,
    POLICY_PLURAL,
    PROFILE_KIND,
    PROFILE_PLURAL,
    VERSION,
)
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.profile import BatchingProfile


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False
    """Shown with `-o wide` only."""

    def to_json(self) -> JsonDict:
        """An entry of `additionalPrinterColumns`."""
        return {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
            "priority": int(self.wide),
        }


@dataclass(frozen=True)
class Resource:
    """One kind and how people meet it."""

    model: type[BaseModel]
    kind: str
    plural: str
    short: str
    longest_name: int
    columns: tuple[Column, ...]


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


AGE = Column("Age", ".metadata.creationTimestamp", "Time since it was made.", type="date")

RESOURCES: Final = (
    Resource(
        BatchingPolicy,
        POLICY_KIND,
        POLICY_PLURAL,
        "bp",
        LONGEST_POLICY_NAME,
        (
            Column("Class", ".spec.trafficClass", "Traffic class."),
            Column("Ready", ".status.summary", "Ready instances of all."),
            Column("SLA met", _condition("SlaMet"), "Whether every instance keeps its SLA."),
            Column("Retune", ".spec.retune.mode", "What the tuner may do."),
            AGE,
            Column("Accepted", _condition("Accepted"), "Whether the policy makes sense.", wide=True),
            Column("Applied", _condition("SettingsApplied"), "Whether all workers apply the settings.", wide=True),
            Column("Metrics", _condition("MetricsAvailable"), "Whether the tuner sees.", wide=True),
            Column("Short", _condition("CapacityShort"), "Whether only more replicas would help.", wide=True),
        ),
    ),
    Resource(
        BatchingProfile,
        PROFILE_KIND,
        PROFILE_PLURAL,
        "bprof",
        LONGEST_OBJECT_NAME,
        (
            Column("Model", ".spec.model", "The model."),
            Column("Engine", ".spec.engine", "What runs it."),
            Column("Device", ".spec.hardware.device", "Where it ran."),
            Column("Idle", ".status.recommendedWindowIdle", "Recommended windowIdle.", type="integer"),
            Column("Busy", ".status.recommendedWindowBusy", "Recommended windowBusy.", type="integer"),
            Column("Updated", ".status.updated", "Time since it learnt something.", type="date"),
            AGE,
            Column(
                "Saturation", ".status.saturationWindow", "Window that gives all the throughput.", "integer", wide=True
            ),
        ),
    ),
)


def definitions() -> dict[str, JsonDict]:
    """Both CustomResourceDefinitions by file name."""
    return {f"{resource.plural}.yaml": _definition(resource) for resource in RESOURCES}


def _definition(resource: Resource) -> JsonDict:
    version: JsonDict = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema_of(resource)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column.to_json() for column in resource.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [resource.short],
                "categories": ["tailkeeper"],
            },
            "versions": [version],
        },
    }


class _Schema(GenerateJsonSchema):
    """pydantic's JSON schema without what Kubernetes refuses."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """The type alone: for the API server an absent field is absent, and so is a null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """No `default: null`; `{}` for an object that has all its defaults inside."""
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        value = super().default_schema(schema)
        if "default_factory" in schema and schema["schema"]["type"] in ("model", "definition-ref"):
            return {**value, "default": {}}
        return value


def schema_of(resource: Resource) -> JsonDict:
    """The structural schema of a kind. Raises ValueError for what has no bound."""
    source = resource.model.model_json_schema(by_alias=True, schema_generator=_Schema)
    defs: Mapping[str, JsonSchemaValue] = source["$defs"]
    name: JsonDict = {"type": "string", "maxLength": resource.longest_name}
    return {
        "description": " ".join(source["description"].split()),
        "type": "object",
        "required": ["spec"],
        **({RULES: source[RULES]} if RULES in source else {}),
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": resource.kind},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": _structural(source["properties"]["spec"], defs, f"{resource.kind}.spec"),
            # What we report is said in full: a default would make what is read differ from what was written.
            "status": _without_defaults(_structural(source["properties"]["status"], defs, f"{resource.kind}.status")),
        },
    }


RULES: Final = "x-kubernetes-validations"
_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "minimum",
    "maximum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    RULES,
)
_INT32_MAX = 2**31 - 1


def _structural(source: Mapping[str, object], defs: Mapping[str, JsonSchemaValue], path: str) -> JsonDict:
    if isinstance(reference := source.get("$ref"), str):
        beside = {key: value for key, value in source.items() if key != "$ref"}
        return _structural({**defs[reference.rsplit("/", 1)[-1]], **beside}, defs, path)
    flat = cast("JsonDict", {key: source[key] for key in _KEPT if key in source})
    if "const" in source:
        flat["enum"] = [cast("str", source["const"])]
    match flat.get("type"):
        case "object":
            _object(flat, source, defs, path)
        case "array":
            flat.setdefault("x-kubernetes-list-type", "atomic")
            flat["items"] = _structural(cast("JsonSchemaValue", source["items"]), defs, f"{path}[]")
            _need(flat, path, "maxItems")
        case "string" if "enum" not in flat:
            _need(flat, path, "maxLength")
        case "integer":
            _need(flat, path, "minimum", "maximum")
            flat["format"] = "int32" if cast("int", flat["maximum"]) <= _INT32_MAX else "int64"
        case "string" | "boolean":
            pass
        case other:
            raise ValueError(f"{path}: type {other!r} has no place in a structural schema")
    if isinstance(text := flat.get("description"), str):
        flat["description"] = " ".join(text.split())
    return flat


def _object(flat: JsonDict, source: Mapping[str, object], defs: Mapping[str, JsonSchemaValue], path: str) -> None:
    properties = cast("Mapping[str, JsonSchemaValue]", source.get("properties", {}))
    if properties:
        flat["properties"] = {
            name: _structural(value, defs, f"{path}.{name}") for name, value in properties.items() if name != "metadata"
        }
    elif not flat.get("x-kubernetes-preserve-unknown-fields"):
        raise ValueError(f"{path}: an object without properties")


def _need(flat: JsonDict, path: str, *bounds: str) -> None:
    for bound in bounds:
        if bound not in flat:
            raise ValueError(f"{path}: no {bound}")


def _without_defaults(schema: JsonDict) -> JsonDict:
    bare = {key: value for key, value in schema.items() if key != "default"}
    if isinstance(properties := bare.get("properties"), dict):
        bare["properties"] = {
            name: _without_defaults(value) for name, value in properties.items() if isinstance(value, dict)
        }
    if isinstance(items := bare.get("items"), dict):
        bare["items"] = _without_defaults(items)
    return bare


def rendered() -> Iterator[tuple[str, str]]:
    """File name and YAML of each definition."""
    import yaml  # only here: whoever imports the contract need not have it

    for name, definition in definitions().items():
        yield (
            name,
            (
                "# Generated from operator/tailkeeper/api by `make generate`. Do not edit.\n"
                + yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)
            ),
        )


def main(arguments: list[str]) -> int:
    """Writes the definitions into a folder, or with --check says which files are stale. Returns the exit status."""
    check, folder = "--check" in arguments, Path(arguments[-1])
    stale = 0
    for name, text in rendered():
        path = folder / name
        if check:
            if not path.exists() or path.read_text() != text:
                print(f"{path} is stale: run `make generate`")
                stale += 1
        else:
            path.write_text(text)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
