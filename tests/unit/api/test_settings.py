"""The settings document: what a worker takes, and what it refuses whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.resolve import initial_settings, resolve_all
from tailkeeper.api.settings import FORMAT_VERSION, MAX_BYTES, Settings, parse_settings
from tests.policies import policies

DOCUMENT = {
    "formatVersion": 1,
    "generation": 7,
    "policyNamespace": "team-a",
    "policy": "chat",
    "modelInstance": "small",
    "trafficClass": "online",
    "mode": "continuous",
    "windowDynamic": True,
    "windowIdle": 64,
    "windowBusy": 16,
    "priorityQueue": True,
    "firstTokenSlaMs": 400,
    "timeoutTargetPerMille": 5,
    "minEfficiencyPercent": 70,
    "tiers": [
        {"name": "fast", "deadlineMs": 1000, "timeoutMs": 2000, "maxHoldMs": 20, "preempts": True},
        {"name": "slow", "deadlineMs": 60000, "maxHoldMs": 60000, "reservePercent": 10, "boostMs": 5},
    ],
    "defaultTier": "fast",
    "ceiling": 8,
    "marginPercent": 20,
    "tokenBudget": 512,
    "latencyPrior": {"fixedNs": 1000, "perPrefillTokenNs": 3},
    "moved": ["boost.slow", "ceiling", "margin", "tokenBudget"],
}


def test_document_reads_back_as_written() -> None:
    settings = parse_settings(json.dumps(DOCUMENT))
    assert settings.tier("slow").boost_ms == 5
    assert settings.sla_ms == 1000
    assert parse_settings(json.dumps(settings.to_json())) == settings
    assert settings.to_json()["tokenBudget"] == 512


def test_what_a_newer_operator_adds_is_ignored_at_every_depth() -> None:
    newer = json.loads(json.dumps(DOCUMENT))
    newer |= {"colour": "red", "moved": ["aNewLever.fast"]}
    newer["tiers"][0]["colour"] = newer["latencyPrior"]["colour"] = {"deep": [1]}
    assert parse_settings(json.dumps(newer)).tiers == parse_settings(json.dumps(DOCUMENT)).tiers


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "1", 1.5, True])
def test_another_format_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match="formatVersion"):
        parse_settings(json.dumps({**DOCUMENT, "formatVersion": version}))


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "null",
        "[]",
        "7",
        '"text"',
        "{",
        "{}",
        "\x00",
        "[" * 10_000,
        b"\xff\xfe",
        "{'a': 1}",
        json.dumps(DOCUMENT)[:-9],
    ],
)
def test_junk_is_refused_with_a_value_error(junk: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_settings(junk)


@given(st.one_of(st.text(), st.binary()))
def test_any_junk_is_refused_with_a_value_error(junk: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_settings(junk)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", 0),
        ("windowIdle", 0),
        ("windowBusy", 65),
        ("ceiling", 65),
        ("ceiling", 0),
        ("marginPercent", 91),
        ("tokenBudget", 0),
        ("defaultTier", "nobody"),
        ("tiers", []),
        ("tiers", [DOCUMENT["tiers"][0]] * 2),
        ("tiers", [{**DOCUMENT["tiers"][0], "timeoutMs": 999}]),
        ("tiers", [{**DOCUMENT["tiers"][0], "reservePercent": 91}]),
        ("tiers", [{**tier, "reservePercent": 46} for tier in DOCUMENT["tiers"]]),
        ("windowIdle", 64.5),
        ("windowIdle", "64"),
        ("windowDynamic", "yes"),
        ("policy", "Chat"),
        ("trafficClass", "Online"),
        ("moved", ["ceiling", "ceiling"]),
    ],
)
def test_out_of_bounds_is_refused_whole(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        parse_settings(json.dumps({**DOCUMENT, field: value}))


@pytest.mark.parametrize("missing", ["generation", "windowIdle", "tiers", "ceiling", "defaultTier", "policy"])
def test_a_document_without_what_has_no_default_is_refused(missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        parse_settings(json.dumps({key: value for key, value in DOCUMENT.items() if key != missing}))


def test_size_is_counted_in_bytes() -> None:
    padding = "é" * (MAX_BYTES // 2)
    with pytest.raises(ValueError, match="over 65536"):
        parse_settings(json.dumps({**DOCUMENT, "padding": padding}, ensure_ascii=False))


def test_names_in_python_style_are_not_read() -> None:
    with pytest.raises(ValidationError, match="windowIdle"):
        parse_settings(json.dumps({**{k: v for k, v in DOCUMENT.items() if k != "windowIdle"}, "window_idle": 64}))


def test_a_changed_copy_is_validated() -> None:
    settings = parse_settings(json.dumps(DOCUMENT))
    assert settings.but(ceiling=9).ceiling == 9
    with pytest.raises(ValidationError, match="ceiling"):
        settings.but(ceiling=65)


@given(policies())
def test_every_accepted_policy_makes_valid_documents(policy: dict) -> None:
    """And never another exception than the refusal of the policy."""
    try:
        accepted = BatchingPolicy.model_validate(policy, by_name=False)
    except ValidationError:
        return
    for name, effective in resolve_all(accepted.spec).items():
        settings = initial_settings(
            effective, policy_namespace="a", policy=accepted.metadata.name, model_instance=name, generation=1
        )
        assert parse_settings(json.dumps(settings.to_json())) == settings
        assert isinstance(settings, Settings)
        assert [tier.deadline_ms for tier in settings.tiers] == sorted(tier.deadline_ms for tier in settings.tiers)
