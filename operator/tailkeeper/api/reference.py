"""The API reference for people, from the same models as the CRDs: `python -m tailkeeper.api.reference FILE`."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, cast

from pydantic.config import JsonDict

from tailkeeper.api import names
from tailkeeper.api.crd import RESOURCES, RULES, Resource, schema_of
from tailkeeper.api.defaults import CONTINUOUS_ENGINES, DEFAULTS, TierDefaults
from tailkeeper.api.enums import Lever
from tailkeeper.api.settings import (
    DEFAULT_MARGIN_PERCENT,
    MAX_MARGIN_PERCENT,
    MAX_RESERVED_PERCENT,
    MAX_TOKEN_BUDGET,
    MIN_MARGIN_PERCENT,
)

HEAD: Final = f"""<!-- Generated from operator/tailkeeper/api by `make generate`. Do not edit. -->
# API reference
Group `{names.GROUP}`, version `{names.VERSION}`: [BatchingPolicy](#batchingpolicy) (`kubectl get bp`) is what you
write, [BatchingProfile](#batchingprofile) (`kubectl get bprof`) is what Tailkeeper learns. `kubectl explain bp.spec`
shows the same on the command line. An example with every field is `examples/all-fields.yaml`.

Numbers are whole, with the unit in the field's name. An absent field and a null are the same. Unknown fields are
refused by `kubectl` (strict validation is its default) and dropped by clients that ask for no validation. The rules
need Kubernetes 1.29 or newer.
"""

NOT_CHECKED: Final = """## What is only found out later
The API server checks everything that a policy says by itself. What depends on the rest of the cluster is found by the
operator, which says so in the conditions `Accepted` and `Ready`:
- whether the PersistentVolumeClaim, the Secrets and the path in the container exist, whether the hub has the model,
  whether the factory can be imported, and whether the URL answers;
- whether `template` fits a pod template, and whether the result may run in the namespace;
- whether a profile of the name in `profiles.startFrom` exists;
- whether a lever set by annotation is within its bounds.

Two things are the API server's own: a whole number with a point (`8.0`), which `kubectl` turns into 8, is refused in
raw JSON where a rule reads the field; and no message can name the instance at fault (it would cost too much to
compute), so a rule about instances speaks of `instances[]`.
"""


def reference() -> str:
    """The whole page in Markdown."""
    parts = [HEAD, *(_kind(resource) for resource in RESOURCES), _defaults(), _levers(), _annotations(), NOT_CHECKED]
    return "\n".join(parts)


def _kind(resource: Resource) -> str:
    schema = schema_of(resource)
    properties = cast("Mapping[str, JsonDict]", schema["properties"])
    seen: dict[str, str] = {}
    sections = [
        f"## {resource.kind}\n{schema['description']}\n",
        *_object(f"{resource.short}.spec", properties["spec"], seen),
        _rules(schema),
        *_object(f"{resource.short}.status", properties["status"], seen),
    ]
    return "\n".join(sections)


def _object(path: str, schema: JsonDict, seen: dict[str, str]) -> Iterator[str]:
    """A table of an object's fields, then the objects inside it. What was shown before is only pointed to."""
    fields = cast("Mapping[str, JsonDict]", schema["properties"])
    required = cast("list[str]", schema.get("required", []))
    seen[_shape(schema)] = path
    inner = {f"{path}.{name}{'[]' if 'items' in field else ''}": _inner(field) for name, field in fields.items()}
    rows = []
    for (name, field), (where, content) in zip(fields.items(), inner.items(), strict=True):
        same = seen.get(_shape(content)) if content else None
        kind = _type(field, same or where if content else None)
        rows.append((f"`{name}`" + (" *" if name in required else ""), kind, _default(field), _text(field)))
    yield f"### {path}\n{_text(schema)}\n\n{_table(('field (* required)', 'type', 'default', 'what it is'), rows)}"
    for where, content in inner.items():
        if content and _shape(content) not in seen:
            yield from _object(where, content, seen)


def _inner(field: JsonDict) -> JsonDict | None:
    """The object that a field is, or is a list of."""
    content = cast("JsonDict", field.get("items", field))
    return content if "properties" in content else None


def _shape(schema: JsonDict) -> str:
    return repr(sorted((key, value) for key, value in schema.items() if key not in ("description", "default")))


def _anchor(path: str) -> str:
    return "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_ ").replace(" ", "-")


def _type(field: JsonDict, where: str | None) -> str:
    if field["type"] == "array":
        items = cast("JsonDict", field["items"])
        keys = cast("list[str]", field.get("x-kubernetes-list-map-keys", []))
        told_apart = f", unique by {keys[0]}" if keys else ", a set" if field["x-kubernetes-list-type"] == "set" else ""
        return f"list of {_span(field, 'minItems', 'maxItems')}{told_apart}: {_type(items, where)}"
    if where:
        return f"[{where}](#{_anchor(where)})"
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in cast("list[str]", field["enum"]))
    match field["type"]:
        case "integer":
            return f"integer, {_span(field, 'minimum', 'maximum')}"
        case "string" if "format" in field:
            return f"string, {field['format']}"
        case "string":
            pattern = f", matches `{str(field['pattern']).replace('|', chr(92) + '|')}`" if "pattern" in field else ""
            return f"string of {_span(field, 'minLength', 'maxLength')} characters{pattern}"
        case "object":
            return "object with any content"
        case other:
            return str(other)


def _span(field: JsonDict, low: str, high: str) -> str:
    return f"{field[low]}–{field[high]}" if low in field else f"at most {field[high]}"


def _default(field: JsonDict) -> str:
    default = field.get("default")
    return "" if default is None or default == {} else f"`{default}`".replace("True", "true").replace("False", "false")


def _text(schema: JsonDict) -> str:
    return str(schema.get("description", "")).replace("|", "\\|")


def _rules(schema: JsonDict) -> str:
    """What must hold between fields: the messages of all CEL rules."""
    lines = [f"- `{path}`: {message}." for path, message in _messages("", schema)]
    return "### Rules\nBetween fields, checked when the object is applied:\n\n" + "\n".join(lines) + "\n"


def _messages(path: str, schema: JsonDict) -> Iterator[tuple[str, str]]:
    for rule in cast("list[JsonDict]", schema.get(RULES, [])):
        yield f"{path}{rule.get('fieldPath', '')}".lstrip("."), str(rule["message"])
    for name, field in cast("Mapping[str, JsonDict]", schema.get("properties", {})).items():
        items = "items" in field
        where = f"{path}.{name}".lstrip(".") + ("[]" if items else "")
        yield from _messages(where, cast("JsonDict", field["items"]) if items else field)


def _defaults() -> str:
    classes = list(DEFAULTS.items())
    continuous = ", ".join(engine.value for engine in CONTINUOUS_ENGINES)
    head = ("field", *(name.value for name, _ in classes))
    mode = f"continuous for {continuous}; request for the others"
    rows = [
        ("`batching.mode`", *[mode] * len(classes)),
        ("`batching.windowDynamic`, `batching.priorityQueue`", *["true"] * len(classes)),
        ("`batching.windowIdle`", *(str(each.window_idle) for _, each in classes)),
        ("`batching.windowBusy`", *(str(each.window_busy) for _, each in classes)),
        ("`batching.tailLatencySlaMs`", *(str(each.sla_ms) for _, each in classes)),
        ("`batching.timeoutTargetPerMille`", *(str(each.timeout_target_per_mille) for _, each in classes)),
        ("`batching.minEfficiencyPercent`", *(str(each.min_efficiency_percent) for _, each in classes)),
        ("`tiers`", *(", ".join(each.tiers) for _, each in classes)),
        ("`defaultTier`", *(each.default_tier for _, each in classes)),
        ("`tiers[].timeoutMs`", *(_timeout(each.timeout_multiple) for _, each in classes)),
    ]
    tiers = [
        (traffic_class.value, name, *_tier(tier))
        for traffic_class, each in classes
        for name, tier in each.tiers.items()
    ]
    return f"""## Defaults of the traffic class
What is said nearer to the instance wins: traffic class, then the policy, then the instance, field by field; tiers merge
by name.

{_table(head, rows)}
A window bound given alone draws the other along: `windowIdle: 8` makes `windowBusy` 8, `windowBusy: 100` makes
`windowIdle` 100 (online).

| class | tier | deadlineMs | maxHoldMs | preempts | reservePercent |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(f"| {' | '.join(row)} |" for row in tiers)}

`tailLatencySlaMs` is another name for `deadlineMs` of the default tier at its own level: the policy's, or the
instance's. The class's multiples are multiples of the SLA that the instance says, or else the policy; no deadline is
longer than a day. A tier that the class does not know needs a `deadlineMs`; its `maxHoldMs` is its deadline.
In the mode `fixed` no tier has a `maxHoldMs` unless you say one; 0 then makes it a plain greedy batcher.
"""


def _timeout(multiple: int | None) -> str:
    return f"{multiple} × deadlineMs" if multiple else "deadlineMs and two of the longest batches"


def _tier(tier: TierDefaults) -> tuple[str, str, str, str]:
    hold = "deadlineMs" if tier.max_hold_percent is None else f"{tier.max_hold_percent} % of deadlineMs"
    deadline = "the SLA" if tier.deadline_multiple == 1 else f"{tier.deadline_multiple} × the SLA"
    return deadline, hold, str(tier.preempts).lower(), str(tier.reserve_percent)


LEVERS: Final[Mapping[Lever, tuple[str, str, str]]] = {
    Lever.CEILING: ("`ceiling=8`", "`windowIdle`", "1 to `windowIdle`"),
    Lever.MARGIN: ("`margin=20`", f"{DEFAULT_MARGIN_PERCENT} %", f"{MIN_MARGIN_PERCENT} to {MAX_MARGIN_PERCENT} %"),
    Lever.MAX_HOLD: ("`maxHold.TIER=5`", "`maxHoldMs`", "0 to `deadlineMs`, in milliseconds"),
    Lever.BOOST: ("`boost.TIER=1000`", "0", "0 to `deadlineMs`, in milliseconds"),
    Lever.RESERVE: ("`reserve.TIER=20`", "`reservePercent`", f"0 to {MAX_RESERVED_PERCENT} %, of all tiers together"),
    Lever.PREEMPTION: ("`preemption.TIER=on`", "`preempts`", "on, off"),
    Lever.TOKEN_BUDGET: ("`tokenBudget=512`", "off", f"1 to {MAX_TOKEN_BUDGET}, or off; mode continuous only"),
}


def _levers() -> str:
    rows = [(lever.value, *LEVERS[lever]) for lever in Lever]
    return f"""## Levers
What the tuner moves, and what an annotation sets by hand. A lever starts at what the spec says. One that was moved
keeps its value when the spec changes, as far as the new bounds allow, and is listed under `moved`; the others follow
the spec.

{_table(("lever", "in words", "starts at", "bounds"), rows)}"""


def _annotations() -> str:
    rows = (
        (f"`{names.ANNOTATION_SET_PREFIX}INSTANCE`", "Sets levers by hand: `ceiling=8, maxHold.interactive=5ms`."),
        (f"`{names.ANNOTATION_PAUSE_PREFIX}INSTANCE`", '`"true"` keeps the tuner\'s hands off one instance.'),
        (
            f"`{names.ANNOTATION_ROLL}`, `{names.ANNOTATION_ROLL_PREFIX}INSTANCE`",
            "Any new value restarts the workers, with the operator's present image and defaults.",
        ),
    )
    return f"## Annotations of a policy\n{_table(('annotation', 'what it does'), rows)}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str]) -> int:
    """Writes the page, or with --check says whether it is stale. Returns the exit status."""
    path, page = Path(arguments[-1]), reference()
    if "--check" not in arguments:
        path.write_text(page)
        return 0
    fresh = path.exists() and path.read_text() == page
    if not fresh:
        print(f"{path} is stale: run `make generate`")
    return int(not fresh)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
