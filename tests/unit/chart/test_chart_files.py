"""What the files of the chart promise each other and the rest of the repository. Rendering is tested with Helm."""

import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "tailkeeper"


@pytest.fixture(scope="module")
def chart() -> dict[str, Any]:
    return yaml.safe_load((CHART / "Chart.yaml").read_text())


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.schema.json").read_text())


def test_the_charts_crds_are_the_generated_ones() -> None:
    generated = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    copies = {path.name: path.read_bytes() for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert generated, "crds/ is empty"
    assert copies == generated, "stale: run `make generate`"


def test_chart_and_distribution_have_one_version(chart: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_artifact_hub_is_told_the_truth(chart: dict[str, Any], values: dict[str, Any]) -> None:
    annotations = {
        key.removeprefix("artifacthub.io/"): yaml.safe_load(value) for key, value in chart["annotations"].items()
    }
    images = {image["name"]: image["image"] for image in annotations["images"]}
    assert images == {
        "operator": f"{values['image']['repository']}:{chart['appVersion']}",
        "worker": f"{values['workers']['image']['repository']}:{chart['appVersion']}",
    }
    crds = [yaml.safe_load(path.read_text()) for path in sorted((CHART / "files" / "crds").glob("*.yaml"))]
    assert {(crd["name"], crd["kind"], crd["version"]) for crd in annotations["crds"]} == {
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], version["name"])
        for crd in crds
        for version in crd["spec"]["versions"]
    }
    assert {example["kind"] for example in annotations["crdsExamples"]} <= {crd["kind"] for crd in annotations["crds"]}


def test_the_schema_is_one_and_takes_the_defaults(schema: dict[str, Any], values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(values)


def test_values_and_schema_know_the_same_keys(schema: dict[str, Any], values: dict[str, Any]) -> None:
    only_for_parent_charts = {"global", "enabled"}
    # What may be given in full by Kubernetes' own API is free content: no key of it need have a default here.
    free_content = {"resources", "workers.template"}

    def known(node: dict[str, Any], path: str = "") -> Iterator[str]:
        for key, child in node.get("properties", {}).items():
            yield path + key
            if path + key not in free_content:
                yield from known(child, f"{path}{key}.")

    def given(node: object, path: str = "") -> Iterator[str]:
        if isinstance(node, dict):
            for key, child in node.items():
                yield path + key
                yield from given(child, f"{path}{key}.")

    keys_of_schema = set(known(schema)) - only_for_parent_charts
    open_objects = free_content | {"podSecurityContext", "securityContext"}
    keys_of_values = {key for key in given(values) if not key.startswith(tuple(f"{free}." for free in open_objects))}
    assert keys_of_values == keys_of_schema


def test_every_object_of_ours_in_the_schema_is_closed(schema: dict[str, Any]) -> None:
    def open_ones(node: object, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            if "properties" in node and node.get("additionalProperties") is not False:
                yield path
            for key, child in node.items():
                yield from open_ones(child, f"{path}/{key}")

    # An environment variable is Kubernetes' own object: only its name is looked at.
    assert list(open_ones(schema, "")) == ["/properties/extraEnv/items"]


def test_every_value_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    unexplained = [
        line for above, line in pairwise(lines) if re.match(r"[A-Za-z]+:", line) and not above.startswith("# ")
    ]
    assert unexplained == []
