"""The five ways to batch are policies that the contract accepts, and differ in nothing but the batching."""

import pytest

from benchmarks.first_light.planted import Breach, rate_after
from benchmarks.first_light.ways import FIXED, GREEDY, ONE, OURS, TIMEOUT_FACTOR, WAYS, WINDOW, Way, spec
from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import Effective, resolve_all

INSTANCE = {"name": "minilm", "model": {"name": "minilm", "engine": "encoder", "path": "/models/minilm"}}


def effective(way: Way) -> Effective:
    return resolve_all(PolicySpec.model_validate(spec(way, 100, [INSTANCE])))["minilm"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.key)
def test_every_way_has_the_same_deadlines_and_timeouts(way: Way) -> None:
    found = effective(way)
    assert [(tier.name, tier.deadline_ms, tier.timeout_ms) for tier in found.tiers] == [
        ("interactive", 100, TIMEOUT_FACTOR * 100),
        ("batch", 6_000, 12_000),
    ]


def test_one_and_greedy_start_at_once_and_fixed_waits_without_limit() -> None:
    assert [tier.max_hold_ms for tier in effective(ONE).tiers + effective(GREEDY).tiers] == [0, 0, 0, 0]
    assert [tier.max_hold_ms for tier in effective(FIXED).tiers] == [100, 6_000]
    assert [effective(way).window_idle for way in (ONE, GREEDY, FIXED, OURS)] == [1, WINDOW, WINDOW, WINDOW]
    assert [effective(way).priority_queue for way in (GREEDY, OURS)] == [False, True]


def test_the_planted_load_is_more_than_one_at_a_time_serves() -> None:
    assert rate_after(0.006, 0.0025) > 1 / 0.0085


def test_a_breach_without_an_end_has_no_length() -> None:
    assert Breach(None, 15.2, None).lasted_s is None  # type: ignore[arg-type]
    assert Breach(None, 15.2, 25.0).lasted_s == pytest.approx(9.8)  # type: ignore[arg-type]
    assert Breach(None, None, None).lasted_s == 0.0  # type: ignore[arg-type]
