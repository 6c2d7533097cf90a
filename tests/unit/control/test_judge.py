"""Verdicts on counters: sure before loud, as far back as it takes, and not fooled by one burst."""

from dataclasses import replace

import pytest

from tailkeeper.control.judge import Objective, Verdict, judge
from tailkeeper.control.observation import Value
from tests.unit.control.loop import settings
from tests.unit.control.observed import value


def latency(observation: Value) -> Verdict:
    (found,) = [each for each in judge(observation, settings()) if each.objective is Objective.LATENCY]
    return found.verdict


def clustered(observation: Value, seconds: float) -> Value:
    """The same counts, all misses within that many seconds."""
    looks = []
    for look in observation.look_backs:
        row = look.tiers[0]
        n, k = row.counts.requests / look.span_s, row.counts.late / seconds
        counts = row.counts._replace(nk=n * row.counts.late, kk=k * k * seconds)
        looks.append(replace(look, tiers=(replace(row, counts=counts),)))
    return replace(observation, look_backs=tuple(looks))


@pytest.mark.parametrize(
    ("rate", "late", "verdict"),
    [
        (100, 0.0, Verdict.CLEAN),
        (100, 0.009, Verdict.OPEN),
        (100, 0.03, Verdict.BREACH),
        (100, 0.2, Verdict.SEVERE),
        (2, 0.2, Verdict.SEVERE),
        (0.2, 0.0, Verdict.FEW),
    ],
)
def test_verdicts(rate: float, late: float, verdict: Verdict) -> None:
    assert latency(value(rate, late)) is verdict


def test_at_a_low_rate_it_looks_further_back() -> None:
    (found,) = [each for each in judge(value(5), settings()) if each.objective is Objective.LATENCY]
    assert found.verdict is Verdict.CLEAN
    assert found.span_s == 300, "5 a second make 300 requests in a minute: too few for under half a percent"


def test_one_burst_of_misses_is_no_breach() -> None:
    assert latency(value(100, 0.03)) is Verdict.BREACH
    assert latency(clustered(value(100, 0.03), 1.0)) is not Verdict.BREACH


def test_a_breach_must_still_be_going_on() -> None:
    assert latency(value(100, 0.05, short_late=0.0)) is Verdict.OPEN


def test_what_just_began_is_a_breach_but_severe_only_when_the_minute_agrees() -> None:
    assert latency(value(100, 0.04, short_late=0.3)) is Verdict.BREACH


def test_a_single_late_request_of_a_few_is_none() -> None:
    assert latency(value(0.1, 0.2)) is not Verdict.BREACH


def test_a_timeout_target_of_zero_can_be_kept_and_broken() -> None:
    def verdict(observation: Value) -> Verdict:
        found = judge(observation, settings(timeout_target_per_mille=0))
        return next(each.verdict for each in found if each.objective is Objective.TIMEOUT)

    assert verdict(value(100)) is Verdict.CLEAN
    assert verdict(value(100, timeouts=0.01)) is Verdict.SEVERE


def test_the_worst_comes_first_and_what_had_no_request_is_not_judged() -> None:
    found = judge(value(100, 0.02, timeouts=0.02), settings())
    assert [(each.tier, each.objective) for each in found] == [
        ("interactive", Objective.TIMEOUT),
        ("interactive", Objective.LATENCY),
    ]
