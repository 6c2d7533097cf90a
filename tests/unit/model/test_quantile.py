import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.model.quantile import Quantile, bucket_quantile

EDGES = (0.1, 0.2, 0.4, 0.8, math.inf)


def test_a_quantile_past_the_last_finite_edge_is_beyond_it_and_never_that_edge() -> None:
    p99 = bucket_quantile(EDGES, (0, 10, 50, 90, 100), 0.99)
    assert p99 == Quantile(0.8, beyond=True)
    assert p99 is not None
    assert p99.text() == ">800ms"


def test_inside_a_bucket_it_is_interpolated() -> None:
    assert bucket_quantile(EDGES, (50, 100, 100, 100, 100), 0.5) == Quantile(0.1)
    quarter = bucket_quantile(EDGES, (0, 100, 100, 100, 100), 0.25)
    assert quarter is not None
    assert quarter.seconds == pytest.approx(0.125)
    assert quarter.text() == "125ms"


def test_nothing_counted_is_no_quantile() -> None:
    assert bucket_quantile(EDGES, (0, 0, 0, 0, 0), 0.99) is None
    assert bucket_quantile((), (), 0.99) is None


@given(st.lists(st.floats(0.001, 3), min_size=1, max_size=200), st.floats(0.01, 1))
def test_the_true_quantile_lies_in_the_bucket_that_is_named(latencies: list[float], q: float) -> None:
    cumulative = [sum(latency <= edge for latency in latencies) for edge in EDGES]
    found = bucket_quantile(EDGES, cumulative, q)
    true = sorted(latencies)[max(0, math.ceil(q * len(latencies) - 1e-9) - 1)]
    assert found is not None
    if found.beyond:
        assert true > found.seconds
    else:
        below = max((edge for edge in EDGES if edge < true), default=0.0)
        above = min(edge for edge in EDGES if edge >= true)
        assert below - 1e-9 <= found.seconds <= above + 1e-9
