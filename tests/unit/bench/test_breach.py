"""When a tier left its SLA and was inside again: the first of three 5 s buckets in a row with at most 1 % late."""

import pytest

from tailkeeper.bench.breach import Breach, breaches


def load(*late_per_bucket: int | None, per_bucket: int = 100) -> tuple[list[float], list[bool]]:
    """Evenly spaced requests, of which so many at the end of each 5 s bucket are late; None is a silent bucket."""
    intended_s: list[float] = []
    late: list[bool] = []
    for n, late_count in enumerate(late_per_bucket):
        if late_count is not None:
            intended_s += [5.0 * n + 5.0 * i / per_bucket for i in range(per_bucket)]
            late += [i >= per_bucket - late_count for i in range(per_bucket)]
    return intended_s, late


def test_one_late_in_a_hundred_is_inside() -> None:
    assert breaches(*load(1, 1, 1, 1)) == []


def test_a_breach_runs_from_its_first_late_request_to_the_first_of_three_calm_buckets() -> None:
    (breach,) = breaches(*load(0, 50, 100, 0, 1, 0, 0))
    assert breach == Breach(first_late_s=7.5, inside_s=15.0)
    assert breach.lasted_s == 7.5


def test_two_calm_buckets_are_not_enough() -> None:
    (breach,) = breaches(*load(0, 50, 0, 0, 2, 0, 0, 0))
    assert breach.inside_s == 25.0


def test_a_load_that_ends_outside_is_said_to_be_outside() -> None:
    (breach,) = breaches(*load(0, 2, 0, 0))
    assert breach.inside_s is None
    assert breach.lasted_s is None


def test_silence_proves_nothing() -> None:
    assert breaches(*load(0, 50, None, None, None, None))[0].inside_s is None
    assert breaches(*load(0, 50, None, 0, None, 0, 0))[0].inside_s == 15.0


def test_each_breach_is_its_own() -> None:
    first, second = breaches(*load(100, 0, 0, 0, 100, 0, 0, 0))
    assert (first.first_late_s, first.inside_s) == (0.0, 5.0)
    assert (second.first_late_s, second.inside_s) == (20.0, 25.0)


def test_buckets_begin_after_the_warm_up() -> None:
    intended_s, late = load(0, 100, 0, 0, 0)
    (breach,) = breaches([t + 2 for t in intended_s], late, start_s=2.0)
    assert breach.inside_s == pytest.approx(12.0)


def test_nothing_sent_is_no_breach() -> None:
    assert breaches([], []) == []
