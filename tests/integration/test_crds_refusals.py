"""Bad policies are refused when they are applied, with the field at fault, by the server and by pydantic alike."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from tailkeeper.api.policy import BatchingPolicy
from tests.integration.control_plane import ControlPlane
from tests.integration.resources import Object, Resources, minimal, policy

REFUSED = yaml.safe_load(Path(__file__).with_name("refused_policies.yaml").read_text())


@pytest.fixture(scope="module")
def policies(crds: ControlPlane) -> Iterator[Resources]:
    with crds.client() as client:
        yield Resources(client)


def _object(case: Object) -> Object:
    spec = minimal()
    spec["instances"][0] |= case.get("instance", {})
    return policy(spec | case.get("spec", {}), case.get("name", "test"))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["what"])
def test_refused(policies: Resources, case: Object) -> None:
    answer = policies.try_create(_object(case))
    assert answer.stored is None
    assert case["says"] in answer.message
    if "field" in case:
        assert case["field"] in answer.fields
    with pytest.raises(ValidationError):
        BatchingPolicy.model_validate(_object(case), by_name=False)


def test_an_object_that_is_no_policy_is_refused(policies: Resources) -> None:
    for spec in (None, [], "text", {}):
        assert policies.try_create(policy(spec)).stored is None
        with pytest.raises(ValidationError):
            BatchingPolicy.model_validate(policy(spec), by_name=False)
