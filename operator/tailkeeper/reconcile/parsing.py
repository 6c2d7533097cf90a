"""From the plain objects of the API server to our models, and what to say when they do not fit."""

import json

from pydantic import ValidationError

from tailkeeper.api.names import ANNOTATION_LAST_MOVE, ANNOTATION_MANUAL, SETTINGS_KEY
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.resolve import InvalidPolicy
from tailkeeper.api.settings import Settings, parse_settings
from tailkeeper.api.status import MoveRecord, PolicyStatus
from tailkeeper.reconcile.kinds import Manifest
from tailkeeper.reconcile.ownership import owns
from tailkeeper.reconcile.settings_plan import Record

MOST_FAULTS = 5


class Refusal(Exception):
    """A policy that cannot be acted on; the text names the fields."""


def read_policy(manifest: Manifest) -> BatchingPolicy:
    """The policy without its status, which never makes it invalid. Raises Refusal."""
    try:
        return BatchingPolicy.model_validate({name: value for name, value in manifest.items() if name != "status"})
    except ValidationError as error:
        raise Refusal(_faults(error)) from error
    except InvalidPolicy as error:
        raise Refusal(str(error)) from error


def read_status(manifest: Manifest) -> PolicyStatus | None:
    """The status as it was last written; None when there is none, or none that can be read."""
    try:
        return PolicyStatus.model_validate(manifest["status"]) if manifest.get("status") else None
    except ValidationError:
        return None


def read_record(config_map: Manifest | None) -> Record:
    """What an instance's ConfigMap says."""
    if config_map is None:
        return Record()
    annotations = config_map["metadata"].get("annotations", {})
    document = config_map.get("data", {}).get(SETTINGS_KEY, "")
    settings = _settings(document)
    return Record(
        settings=settings,
        intact=owns(config_map, "data", SETTINGS_KEY),
        generation_seen=settings.generation if settings else _claimed_generation(document),
        manual=annotations.get(ANNOTATION_MANUAL),
        move=_move(annotations.get(ANNOTATION_LAST_MOVE)),
    )


def _settings(document: str) -> Settings | None:
    try:
        return parse_settings(document)
    except ValueError:
        return None


def _claimed_generation(document: str) -> int:
    try:
        match json.loads(document):
            case {"generation": int(generation)}:
                return generation
    except ValueError:
        pass
    return 0


def _move(text: str | None) -> MoveRecord | None:
    try:
        return MoveRecord.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _faults(error: ValidationError) -> str:
    """One clause per fault: where and what, in the user's words (field names as in YAML)."""
    clauses = []
    for fault in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in fault["loc"])
        what = fault["msg"].removeprefix("Value error, ")
        clauses.append(f"{where}: {what}" if where and not what.startswith("spec") else what)
    more = len(clauses) - MOST_FAULTS
    return "; ".join(clauses[:MOST_FAULTS]) + (f"; and {more} more" if more > 0 else "")
