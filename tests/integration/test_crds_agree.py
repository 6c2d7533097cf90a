"""The API server and pydantic accept the same objects, and read the same from them."""

import json
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.profile import BatchingProfile
from tests.integration.control_plane import ControlPlane
from tests.integration.resources import Object, Resources, minimal, policy
from tests.policies import DAY_MS, changed, policies, profiles


@pytest.fixture(scope="module")
def server(crds: ControlPlane) -> Iterator[Resources]:
    with crds.client() as client:
        yield Resources(client)


@settings(max_examples=200)
@given(said=policies())
def test_on_policies_whose_fields_are_each_valid(server: Resources, said: Object) -> None:
    agree(server, said)


@settings(max_examples=400)
@given(said=changed(policies()))
def test_on_policies_with_something_odd(server: Resources, said: Object) -> None:
    agree(server, said)


@settings(max_examples=100)
@given(said=st.one_of(profiles(), changed(profiles())))
def test_on_profiles(server: Resources, said: Object) -> None:
    agree(Resources(server.client, plural="batchingprofiles"), said)


def one(**instance: object) -> Object:
    spec = minimal()
    spec["instances"][0] |= instance
    return policy(spec)


@pytest.mark.parametrize(
    "said",
    [
        policy(minimal(batching={"windowIdle": None, "mode": None}, drainSeconds=None, retune=None)),
        policy(minimal(batching=None, tiers=None, defaultTier=None, trafficClass=None)),
        policy({"instances": None}),
        policy({"instances": [None]}),
        policy(minimal(batching={"windowIdle": 2**63})),
        policy(minimal(batching={"windowIdle": 1e300})),
        policy(minimal(batching={"windowIdle": True})),
        policy(minimal(retune={"pin": None})),
        policy(minimal(retune={"pin": [None]})),
        one(template={"spec": {"nodeSelector": None, "deep": [None, 1.5, {"a": None}]}}),
        one(model={"name": "m\n", "engine": "encoder", "path": "/m"}),
        one(model={"name": "m", "engine": "encoder", "path": "/m\n"}),
        one(model={"name": "m", "engine": "module", "factory": "modul\u00e9:make"}),
        one(model={"name": "m", "engine": "upstream", "url": "http://host/\u00a0"}),
        one(model={"name": "m", "engine": "upstream", "url": "http://host\u2003"}),
        one(model={"name": "m", "engine": "encoder", "path": "/m", "url": None, "factory": None}),
        one(tiers=[]),
        # An instance's own default tier: its SLA is the policy's for that tier, not the policy's for another tier.
        policy(
            minimal(batching={"tailLatencySlaMs": 1_000}, tiers=[{"name": "interactive"}, {"name": "batch"}])
            | {"instances": [{**minimal()["instances"][0], "defaultTier": "batch"}]}
        ),
        # Multiples of an SLA end at one day, and so does a timeout.
        policy(
            minimal(
                batching={"tailLatencySlaMs": DAY_MS},
                tiers=[{"name": "interactive"}, {"name": "batch", "timeoutMs": DAY_MS}],
            )
        ),
        # An SLA too short to divide.
        policy(minimal(batching={"tailLatencySlaMs": 1}, defaultTier="batch")),
        policy(minimal(), name="a" * 51),
        policy(minimal(), name="a" * 52),
    ],
)  # fmt: skip
def test_on_what_once_was_or_may_be_read_differently(server: Resources, said: Object) -> None:
    agree(server, said)


def test_on_whole_numbers_with_a_point_as_kubectl_sends_them(crds: ControlPlane) -> None:
    """kubectl makes 8 of 8.0. In raw JSON the server takes 8.0 only for fields that no CEL rule reads."""
    said = policy(minimal(batching={"windowIdle": 8.0}, drainSeconds=1e2))
    printed = crds.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=yaml.safe_dump(said)).stdout
    assert _read(json.loads(printed))[0].spec == _read(said)[0].spec


def agree(server: Resources, said: Object) -> None:
    answer = server.try_create(said)
    read, refusal = _read(said)
    if read is None or answer.stored is None:
        assert read is None, f"pydantic accepts what the server refuses: {answer.message}"
        assert answer.stored is None, f"the server accepts what pydantic refuses: {refusal}"
        return
    assert _read(answer.stored)[0].spec == read.spec
    again = server.try_create(read.to_json())
    assert again.stored is not None, again.message
    assert _read(again.stored)[0].spec == read.spec


def _read(said: Object) -> tuple[BatchingPolicy | BatchingProfile | None, str]:
    kind = BatchingProfile if said["kind"] == "BatchingProfile" else BatchingPolicy
    try:
        return kind.model_validate(said, by_name=False), ""
    except ValidationError as error:
        return None, str(error)


def test_the_largest_policy_stays_within_the_cost_limit(server: Resources) -> None:
    tiers = [
        {"name": f"{'t' * 62}{n}", "deadlineMs": 1_000 + n, "timeoutMs": DAY_MS, "reservePercent": 11, "maxHoldMs": 5}
        for n in range(8)
    ]
    instances = [
        {
            "name": f"{'i' * 49}{n:02}",
            "model": {"name": "m" * 128, "engine": "causal-lm", "path": f"/{'a' * 511}"},
            "batching": {"windowIdle": 9, "windowBusy": 8, "tailLatencySlaMs": 1_007},
            "tiers": tiers,
            "defaultTier": tiers[7]["name"],
        }
        for n in range(32)
    ]
    agree(server, policy({"tiers": tiers, "defaultTier": tiers[6]["name"], "instances": instances}, name="p"))
