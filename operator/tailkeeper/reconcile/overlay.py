"""The pod template overlay: merged as `kubectl patch --type strategic` merges it.

Maps merge; a list merges by its key where Kubernetes gives it one (`patchMergeKey` of its Go types), else the overlay's
list replaces ours; null removes. `$patch: delete|replace|merge`, `$retainKeys`, `$deleteFromPrimitiveList/…` and
`$setElementOrder/…` mean what they mean there. One thing is added: a volume has exactly one source, so an overlay's
source replaces ours without a null (kubectl apply does the same, by `$retainKeys`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATCH = "$patch"
RETAIN_KEYS = "$retainKeys"
ELEMENT_ORDER = "$setElementOrder/"
DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"


class InvalidOverlay(ValueError):
    """An overlay whose shape does not fit a pod template. `path` says where."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


@dataclass(frozen=True)
class _Schema:
    """How the fields of one map merge. What is not named: maps merge, lists are replaced."""

    fields: Mapping[str, "_Schema"] = field(default_factory=dict)
    merge_keys: Mapping[str, str] = field(default_factory=dict)
    """Lists of maps by the key that tells their items apart; each item merges by `fields[NAME]`."""
    merged_primitives: frozenset[str] = frozenset()
    one_of_rest: bool = False
    """All but `name` are alternatives: those of the overlay replace ours."""


_CONTAINER = _Schema(
    merge_keys={"env": "name", "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath"},
)
_POD_SPEC = _Schema(
    fields={
        "containers": _CONTAINER,
        "initContainers": _CONTAINER,
        "ephemeralContainers": _CONTAINER,
        "volumes": _Schema(one_of_rest=True),
    },
    merge_keys={
        "containers": "name",
        "initContainers": "name",
        "ephemeralContainers": "name",
        "volumes": "name",
        "imagePullSecrets": "name",
        "hostAliases": "ip",
        "topologySpreadConstraints": "topologyKey",
        "resourceClaims": "name",
        "schedulingGates": "name",
    },
)
_POD_TEMPLATE = _Schema(
    fields={
        "metadata": _Schema(merge_keys={"ownerReferences": "uid"}, merged_primitives=frozenset({"finalizers"})),
        "spec": _POD_SPEC,
    }
)
_ANYTHING = _Schema()


def merge_pod_template(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """A new pod template: the base with the overlay on top. Raises InvalidOverlay."""
    return _merge_map(base, overlay, _POD_TEMPLATE, "")


def _merge_map(base: Mapping[str, Any], over: Mapping[str, Any], schema: _Schema, path: str) -> dict[str, Any]:
    directive = over.get(PATCH, "merge")
    if directive == "replace":
        return {name: _without_directives(value) for name, value in over.items() if _is_value(name, value)}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise InvalidOverlay(path, f"{PATCH} is merge, replace or delete, not {directive!r}")
    merged = dict(base)
    if RETAIN_KEYS in over:
        kept = set(_items(over[RETAIN_KEYS], f"{path}.{RETAIN_KEYS}"))
        merged = {name: value for name, value in merged.items() if name in kept}
    if schema.one_of_rest and any(name != "name" and value is not None for name, value in over.items()):
        merged = {name: value for name, value in merged.items() if name == "name" or name in over}
    for name, value in over.items():
        if name.startswith(DELETE_PRIMITIVES):
            target = name.removeprefix(DELETE_PRIMITIVES)
            gone = _items(value, f"{path}.{name}")
            merged[target] = [item for item in merged.get(target, []) if item not in gone]
        elif not name.startswith("$"):
            _merge_field(merged, over, name, schema, f"{path}.{name}" if path else name)
    return merged


def _merge_field(merged: dict[str, Any], over: Mapping[str, Any], name: str, schema: _Schema, path: str) -> None:
    value, ours = over[name], merged.get(name)
    if value is None:
        merged.pop(name, None)
    elif isinstance(value, Mapping):
        if isinstance(ours, list):
            raise InvalidOverlay(path, "must be a list")
        below = schema.fields.get(name, _ANYTHING)
        merged[name] = _merge_map(ours if isinstance(ours, Mapping) else {}, value, below, path)
    elif isinstance(value, list):
        if isinstance(ours, Mapping):
            raise InvalidOverlay(path, "must be a map")
        merged[name] = _merge_list(ours or [], value, over.get(ELEMENT_ORDER + name), schema, name, path)
    elif name in schema.fields or name in schema.merge_keys or isinstance(ours, Mapping | list):
        shape = "list" if name in schema.merge_keys or isinstance(ours, list) else "map"
        raise InvalidOverlay(path, f"must be a {shape}")
    else:
        merged[name] = value


def _merge_list(
    base: Sequence[Any], over: Sequence[Any], order: Any, schema: _Schema, name: str, path: str
) -> list[Any]:
    if name in schema.merged_primitives:
        return [*base, *(item for item in over if item not in base)]
    key = schema.merge_keys.get(name)
    if key is None:
        return [_without_directives(item) for item in over]
    if any(isinstance(item, Mapping) and item.get(PATCH) == "replace" and key not in item for item in over):
        return [_without_directives(item) for item in over if key in item]
    merged = list(base)
    for index, item in enumerate(over):
        where = f"{path}[{index}]"
        if not isinstance(item, Mapping) or key not in item:
            raise InvalidOverlay(where, f"needs {key}")
        at = next((i for i, ours in enumerate(merged) if ours.get(key) == item[key]), None)
        if item.get(PATCH) == "delete":
            merged = [ours for ours in merged if ours.get(key) != item[key]]
            continue
        result = _merge_map(merged[at] if at is not None else {}, item, schema.fields.get(name, _ANYTHING), where)
        if at is None:
            merged.append(result)
        else:
            merged[at] = result
    wanted = over if order is None else _items(order, f"{path}.{ELEMENT_ORDER}{name}")
    return _ordered(merged, [item.get(key) for item in wanted], [ours.get(key) for ours in base], key)


def _ordered(merged: Sequence[Any], overlay: Sequence[Any], base: Sequence[Any], key: str) -> list[Any]:
    """As the API server orders them: the overlay's items in the overlay's order, and each of ours that it does not name
    before the first of them that stood behind it."""
    items = {item[key]: item for item in merged}
    named = [value for value in overlay if value in items]
    ours = [value for value in base if value in items and value not in named]
    order = []
    while named and ours:
        stood_behind = named[0] in base and base.index(ours[0]) < base.index(named[0])
        order.append(ours.pop(0) if stood_behind else named.pop(0))
    return [items[value] for value in (*order, *named, *ours)]


def _items(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidOverlay(path, "must be a list")
    return value


def _without_directives(value: Any) -> Any:
    """A copy with nulls and `$…` keys gone, as they would be after a merge into nothing."""
    if isinstance(value, Mapping):
        return {name: _without_directives(item) for name, item in value.items() if _is_value(name, item)}
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return value


def _is_value(name: str, value: Any) -> bool:
    return value is not None and not name.startswith("$")
