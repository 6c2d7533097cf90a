"""Edges that follow the SLA, with one exactly on it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.metrics.histogram import Histogram, edges_s

SLAS_MS = st.integers(1, 86_400_000)


@given(SLAS_MS)
def test_24_edges_from_a_sixteenth_to_eight_times_the_sla_and_one_exactly_at_it(sla_ms: int) -> None:
    sla_s = sla_ms / 1000
    edges = edges_s(sla_s)
    assert len(edges) == 24
    assert sla_s in edges
    assert edges[0] == pytest.approx(sla_s / 16, rel=1e-3)
    assert edges[-1] == pytest.approx(8 * sla_s, rel=1e-3)


@given(SLAS_MS)
def test_edges_are_geometric(sla_ms: int) -> None:
    edges = edges_s(sla_ms / 1000)
    for lower, upper in pairwise(edges):
        assert upper / lower == pytest.approx(1.234, rel=0.01)


@given(st.lists(st.floats(0, 20, allow_nan=False), max_size=50))
def test_buckets_hold_the_values_that_do_not_exceed_their_edge(values: list[float]) -> None:
    histogram = Histogram(edges_s(1.0))
    for value in values:
        histogram.observe(value)
    counts = histogram.buckets()
    for edge, (_, count) in zip(histogram.edges, counts, strict=False):
        assert count == sum(value <= edge for value in values)
    assert counts[-1] == ("+Inf", len(values))
    assert histogram.sum_s == pytest.approx(sum(values))


def test_a_latency_equal_to_the_sla_keeps_it() -> None:
    histogram = Histogram(edges_s(1.0))
    histogram.observe(1.0)
    histogram.observe(1.0001)
    assert dict(histogram.buckets())["1.0"] == 1
