"""Latency models converge on what ran, and are not thrown by pauses, one size only, or a change of speed."""

import random

import pytest

from tailkeeper.model.iterations import Cost, IterationLatency, efficient_window, saturation
from tailkeeper.model.latency import BatchLatency
from tailkeeper.model.windows import Line

C, A = 0.006, 0.0005


def taught(model: BatchLatency, count: int, factor: float = 1.0, noise: float = 0.03, sizes: int = 32) -> BatchLatency:
    rng = random.Random(1)
    for _ in range(count):
        size = rng.randint(1, sizes)
        model.learn(size, factor * (C + A * size) * (1.0 + rng.uniform(-noise, noise)))
    return model


def test_converges() -> None:
    line = taught(BatchLatency(), 300).line
    assert line is not None
    assert line.c == pytest.approx(C, rel=0.1)
    assert line.a == pytest.approx(A, rel=0.1)


def test_a_pause_does_not_teach() -> None:
    model = taught(BatchLatency(), 300)
    before = model.at(16)
    model.learn(16, 2.0)
    taught(model, 8)
    assert model.at(16) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 10.0])
def test_another_speed_is_believed(factor: float) -> None:
    model = taught(taught(BatchLatency(), 400), 400, factor)
    assert model.at(16) == pytest.approx(factor * (C + 16 * A), rel=0.15)


def test_one_size_only_gives_a_line_through_it_and_the_priors_shape() -> None:
    model = BatchLatency(Line(0.012, 0.001))
    for _ in range(50):
        model.learn(32, C + 32 * A)
    line = model.line
    assert line is not None
    assert line.at(32) == pytest.approx(C + 32 * A)
    assert line.c / line.a == pytest.approx(12)


def test_a_slope_that_would_be_negative_stays_above_zero() -> None:
    model = BatchLatency()
    for _ in range(50):
        model.learn(1, 0.020)
        model.learn(32, 0.010)
    assert model.line is not None
    assert model.line.a > 0.0
    assert model.line.c >= 0.0


def test_full_batches_do_not_make_it_forget_the_slope() -> None:
    model = taught(BatchLatency(), 200)
    for _ in range(400):
        model.learn(32, C + A * 32)
    assert model.at(1) == pytest.approx(C + A, rel=0.25)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_cannot_be_true_is_left_out(seconds: float) -> None:
    model = taught(BatchLatency(), 100)
    before = model.line
    for _ in range(20):
        model.learn(4, seconds)
    assert model.line == before


COST = Cost(0.060, 0.002, 0.0027, 2e-6)


def iterations(model: IterationLatency, count: int, cost: Cost = COST) -> IterationLatency:
    rng = random.Random(2)
    for _ in range(count):
        decoding = rng.randint(0, 32)
        prefill = rng.choice([0, 0, 0, rng.randint(1, 400)]) or (0 if decoding else 16)
        kv = decoding * rng.randint(100, 900) + prefill
        model.learn(prefill, decoding, kv, cost.at(prefill, decoding, kv) * rng.uniform(0.98, 1.02))
    return model


def test_iterations_converge() -> None:
    cost = iterations(IterationLatency(), 1500).cost
    assert cost is not None
    for at in ((0, 16, 8000), (200, 8, 4000), (0, 1, 100)):
        assert cost.at(*at) == pytest.approx(COST.at(*at), rel=0.1)
    assert cost.alpha == pytest.approx(COST.alpha, rel=0.15)


def test_iterations_of_another_speed_are_believed() -> None:
    model = iterations(IterationLatency(), 800)
    faster = Cost(*(value / 10 for value in (COST.alpha, COST.beta, COST.gamma, COST.delta)))
    cost = iterations(model, 800, faster).cost
    assert cost is not None
    assert cost.at(0, 16, 8000) == pytest.approx(faster.at(0, 16, 8000), rel=0.15)


def test_kv_memory_is_not_blamed_for_what_prefill_costs() -> None:
    model = IterationLatency()
    for size in (1, 8):
        model.learn(16 * size, 0, 16 * size, COST.alpha + COST.beta * 16 * size)
        model.learn(0, size, 16 * size, COST.alpha + COST.gamma * size)
    assert model.cost is not None
    assert model.cost.at(0, 32, 20_000) < 1.0


def test_the_efficient_window_is_the_smallest_that_takes_at_most_its_share_more_than_saturation() -> None:
    cost = Cost(alpha=0.060, beta=0.002, gamma=0.0027)

    def per_token_s(window: int) -> float:
        return cost.per_request(window, prompt=124, output=22) / 22

    saturated_s = per_token_s(saturation(cost, 124, 22, 64))
    window = efficient_window(cost, 124, 22, 64, 0.7)
    assert per_token_s(window) <= saturated_s / 0.7 < per_token_s(window - 1)
