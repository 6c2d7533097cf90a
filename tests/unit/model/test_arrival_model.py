"""What is known about the arrivals: rates, shape of the gaps, and what a silence says about the next one."""

import itertools
import math
import random

import pytest

from tailkeeper.model.arrivals import ArrivalModel
from tailkeeper.model.loads import parse_arrivals


def learnt(text: str, count: int = 5000, clip_s: float = 0.2) -> tuple[ArrivalModel, float]:
    model, now_s = ArrivalModel(clip_s, clip_s / 4), 0.0
    for now_s in itertools.islice(parse_arrivals(text).times(random.Random(3)), count):
        model.arrive(now_s)
        model.rate_per_s(now_s)
    return model, now_s


@pytest.mark.parametrize("rate", [50, 400])
def test_rate_and_shape_of_poisson(rate: int) -> None:
    model, now_s = learnt(f"poisson:{rate}")
    assert model.rate_per_s(now_s) == pytest.approx(rate, rel=0.25)
    assert model.cv == pytest.approx(1.0, abs=0.15)
    assert model.dispersion == pytest.approx(1.0, abs=0.5)


def test_bursts_are_seen() -> None:
    model, _ = learnt("gamma:150,3.7")
    assert model.cv > 2.0
    assert model.dispersion > 3.0


def test_poisson_has_no_memory_and_bursts_have() -> None:
    poisson, _ = learnt("poisson:200")
    assert poisson.residual_s(0.005) == pytest.approx(poisson.residual_s(0.0), rel=0.3)
    bursts, _ = learnt("gamma:150,3.7")
    assert bursts.residual_s(0.01) > 3.0 * bursts.residual_s(0.0)


def test_many_noted_at_once_teach_the_same_as_one_by_one() -> None:
    one, now_s = learnt("poisson:300")
    many = ArrivalModel(0.2, 0.05)
    for at_s in itertools.islice(parse_arrivals("poisson:300").times(random.Random(3)), 5000):
        many.arrive(at_s)
    assert many.rate_per_s(now_s) == pytest.approx(one.rate_per_s(now_s), rel=0.05)
    assert many.mean_gap_s == pytest.approx(one.mean_gap_s, rel=0.15)


def test_a_long_silence_is_clipped_and_quiet_is_noticed_at_once() -> None:
    model, now_s = learnt("poisson:300")
    assert model.fast_rate_per_s(now_s + 5.0) < 1.0
    model.arrive(now_s + 217.0)
    assert model.mean_gap_s < 0.01
    assert model.residual_s(1.0) == math.inf


def test_nothing_known_is_never_nan() -> None:
    model = ArrivalModel(0.2, 0.05)
    assert model.rate_per_s(1.0) == model.fast_rate_per_s(1.0) == model.cv == 0.0
    assert model.mean_gap_s == math.inf
    model.arrive(1.0)
    assert model.silence_until_s(0.1, 0.0) == 0.0
    model.arrive(1.0)
    assert math.isfinite(model.cv)
