"""What is generated from the models is fresh, complete and bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from tailkeeper.api.base import Contract, Int, Str
from tailkeeper.api.crd import RESOURCES, Resource, definitions, main, rendered, schema_of
from tailkeeper.api.enums import Lever
from tailkeeper.api.meta import ObjectMeta
from tailkeeper.api.reference import main as reference_main
from tailkeeper.api.reference import reference

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "api.md"


def test_crds_are_fresh() -> None:
    assert {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")} == dict(rendered())
    assert main(["--check", str(ROOT / "crds")]) == 0


def test_reference_is_fresh() -> None:
    assert PAGE.read_text() == reference()
    assert reference_main(["--check", str(PAGE)]) == 0


def test_a_stale_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "batchingpolicies.yaml").write_text("old")
    (tmp_path / "batchingprofiles.yaml").unlink()
    assert main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "batchingpolicies.yaml is stale" in said
    assert "batchingprofiles.yaml is stale" in said


def test_reference_knows_every_lever_and_every_anchor() -> None:
    page = reference()
    for lever in Lever:
        assert f"| {lever.value} |" in page
    headings = {
        "".join(letter for letter in line.removeprefix("### ").lower() if letter.isalnum() or letter in "-_")
        for line in page.splitlines()
        if line.startswith("### ")
    }
    linked = {part.split(")")[0] for part in page.split("](#")[1:]} - {"batchingpolicy", "batchingprofile"}
    assert linked <= headings


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_every_field_is_described(resource: Resource) -> None:
    schema = schema_of(resource)
    bare = [path for path, field in _fields("", schema) if not field.get("description")]
    assert bare == [".metadata", ".metadata.name"]  # said by Kubernetes


def test_lists_of_named_things_merge_by_name() -> None:
    (version,) = definitions()["batchingpolicies.yaml"]["spec"]["versions"]
    fields = dict(_fields("", version["schema"]["openAPIV3Schema"]))
    keys = {path: field.get("x-kubernetes-list-map-keys") for path, field in fields.items() if "items" in field}
    assert keys == {
        ".spec.tiers": ["name"],
        ".spec.instances": ["name"],
        ".spec.instances[].tiers": ["name"],
        ".spec.retune.pin": None,
        ".status.conditions": ["type"],
        ".status.instances": ["name"],
        ".status.instances[].effective.tiers": ["name"],
        ".status.instances[].effective.moved": None,
        ".status.instances[].lastMove.changes": None,
    }
    assert fields[".spec.retune.pin"]["x-kubernetes-list-type"] == "set"


def test_batching_and_tiers_have_no_defaults_that_would_undo_inheritance() -> None:
    schema = schema_of(RESOURCES[0])
    defaulted = [path for path, field in _fields("", schema) if "default" in field]
    assert [path for path in defaulted if "batching" in path or "tiers" in path or path.startswith(".status")] == []
    assert ".spec.trafficClass" in defaulted


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Str, "no maxLength"),
        (Int, "no minimum"),
        (Annotated[Int, Field(ge=1)], "no maximum"),
        (Annotated[list[Annotated[Int, Field(ge=0, le=1)]], Field()], "no maxItems"),
        (float, "has no place in a structural schema"),
        (dict[str, str], "an object without properties"),
    ],
)
def test_what_has_no_bound_is_refused(field: type, says: str) -> None:
    class Spec(Contract):
        value: field

    class Kind(Contract):
        """A kind."""

        metadata: ObjectMeta
        spec: Spec
        status: Spec

    with pytest.raises(ValueError, match=says):
        schema_of(Resource(Kind, "Kind", "kinds", "k", 253, ()))


def _fields(path: str, schema: dict) -> Iterator[tuple[str, dict]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        inner, suffix = (field["items"], "[]") if "items" in field else (field, "")
        yield from _fields(f"{path}.{name}{suffix}", inner)
