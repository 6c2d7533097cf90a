from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.model.statistics import Proportion, design_effect, difference_z

counted = st.integers(1, 100_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counted, st.floats(0.1, 5))
def test_bounds_enclose_the_ratio_and_stay_between_0_and_1(kn: tuple[int, int], z: float) -> None:
    p = Proportion(*kn)
    assert 0 <= p.lower(z) <= p.ratio + 1e-12
    assert p.ratio - 1e-12 <= p.upper(z) <= 1


def test_nothing_is_claimed_from_nothing() -> None:
    assert Proportion(0, 0).lower(2.6) == 0
    assert Proportion(0, 0).upper(1.645) == 1


def test_no_claim_of_at_most_one_percent_is_possible_below_about_270_requests() -> None:
    assert Proportion(0, 260).upper(1.645) > 0.01
    assert Proportion(0, 270).upper(1.645) < 0.01


@pytest.mark.parametrize(("k", "n"), [(1, 5), (2, 25), (3, 60)])
def test_a_few_misses_of_few_requests_prove_nothing(k: int, n: int) -> None:
    """Each happens by chance over once in a hundred at a true ratio of 1 %."""
    assert Proportion(k, n).lower(2.6) < 0.01


def test_alarms_at_exactly_the_allowed_ratio_are_rare() -> None:
    """z = 2.6 says .5 %; a binomial of mean 3 is skewed, so the truth is 1.2 %."""
    rng = Random(1)
    alarms = sum(Proportion(sum(rng.random() < 0.01 for _ in range(300)), 300).lower(2.6) > 0.01 for _ in range(3_000))
    assert alarms / 3_000 < 0.015


def moments(clusters: list[tuple[int, int]]) -> tuple[Proportion, float, float, float, int]:
    n, k = sum(n for n, _ in clusters), sum(k for _, k in clusters)
    return (
        Proportion(k, n),
        sum(n * n for n, _ in clusters),
        sum(n * k for n, k in clusters),
        sum(k * k for _, k in clusters),
        len(clusters),
    )


def test_misses_that_come_in_one_burst_count_as_one() -> None:
    burst = moments([(50, 0)] * 59 + [(50, 20)])
    assert burst[0].k / design_effect(*burst) == pytest.approx(1, rel=0.05)


def test_independent_misses_are_not_discounted() -> None:
    rng = Random(2)
    effects = [
        design_effect(*moments([(50, sum(rng.random() < 0.02 for _ in range(50))) for _ in range(60)]))
        for _ in range(200)
    ]
    assert sum(effects) / len(effects) < 1.25


def test_design_effect_is_1_where_it_cannot_be_known() -> None:
    assert design_effect(*moments([(10, 0)] * 5)) == 1
    assert design_effect(*moments([(10, 10)] * 5)) == 1
    assert design_effect(Proportion(0, 0), 0, 0, 0, 0) == 1


def test_difference_tells_worse_from_better_and_from_nothing() -> None:
    assert difference_z(Proportion(10, 1000), Proportion(60, 1000)) > 3
    assert difference_z(Proportion(60, 1000), Proportion(10, 1000)) < -3
    assert difference_z(Proportion(0, 0), Proportion(5, 10)) == 0
    assert difference_z(Proportion(0, 10), Proportion(0, 10)) == 0
