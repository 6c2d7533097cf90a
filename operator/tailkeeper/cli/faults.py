"""Everything that the API server would refuse in an object, each with its field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tailkeeper.api.names import API_VERSION, POLICY_KIND, PROFILE_KIND
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.profile import BatchingProfile

_WORDS = {"extra_forbidden": "there is no such field: is it misspelt?", "missing": "is needed"}
KINDS: dict[str, type[BatchingPolicy] | type[BatchingProfile]] = {
    POLICY_KIND: BatchingPolicy,
    PROFILE_KIND: BatchingProfile,
}


@dataclass(frozen=True)
class Fault:
    """What is wrong, and with which field."""

    field: str
    """As `kubectl explain` has it, with places in lists: `spec.instances[0].model.engine`. Empty: the whole object."""
    message: str


def is_ours(content: object) -> bool:
    """Whether it means to be a resource of ours."""
    return isinstance(content, Mapping) and content.get("kind") in list(KINDS)


def faults(content: Mapping[str, Any]) -> list[Fault]:
    """All of one policy or profile; none when the API server would take it. Its status is not looked at: the server
    does not take it from a file."""
    if "apiVersion" not in content:
        return [Fault("apiVersion", f"is missing: write apiVersion: {API_VERSION}")]
    said = {name: value for name, value in content.items() if name != "status"}
    model = KINDS[str(content["kind"])]
    found = list(_of(model, said))
    if model is BatchingPolicy and found:
        found += _of_each_instance(said)
    return list(dict.fromkeys(found))


def _of(model: type[BatchingPolicy] | type[BatchingProfile], said: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        model.model_validate(said, by_name=False)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            yield _fault(one["loc"], _WORDS.get(one["type"], one["msg"]))


def _of_each_instance(said: Mapping[str, Any]) -> Iterator[Fault]:
    """What contradicts itself once it is put together is found one at a time: so every instance is asked alone."""
    spec = said.get("spec")
    instances = spec.get("instances") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(instances, list) or len(instances) < 2:
        return
    for one in instances:
        for fault in _of(BatchingPolicy, {**said, "spec": {**spec, "instances": [one]}}):
            if fault.field.startswith("spec.instances[") and not fault.field.startswith("spec.instances[0]"):
                yield fault


def _fault(place: tuple[int | str, ...], message: str) -> Fault:
    message = message.removeprefix("Value error, ")
    field = ""
    for part in place:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    # The resolver names the field itself, by the instance's name, where it can.
    named, colon, rest = message.partition(": ")
    if colon and named.startswith(("spec.", "metadata.")) and " " not in named:
        return Fault(named, rest)
    return Fault(field, message)
