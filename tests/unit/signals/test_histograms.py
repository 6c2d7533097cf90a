"""Latencies for people: what the workers' histograms grew by."""

import math

from tailkeeper.signals.counters import Point
from tailkeeper.signals.direct import SHOWN, parse
from tailkeeper.signals.histograms import BUCKET, SUM, Growth, Histogram, Series, histograms
from tests.unit.signals.worker_pages import KEY, served

SERIES = Series(KEY, "a", "interactive")


def counted(under_100_ms: float, over: float = 0.0, sum_s: float = 1.0) -> Histogram:
    return Histogram({0.1: under_100_ms, math.inf: under_100_ms + over}, sum_s)


def test_a_workers_own_page_has_them_by_tier() -> None:
    found = histograms(KEY, "a", tuple(parse(served().text(), SHOWN)))
    assert {series.tier for series in found} == {"interactive", "batch"}
    interactive = found[SERIES]
    assert interactive.buckets[math.inf] == 12, "5 in time, 3 late, then 4"
    assert interactive.sum_s > 0


def test_growth_over_the_last_minute_is_told() -> None:
    growth = Growth()
    assert growth.add({SERIES: counted(100, sum_s=5.0)}, 0.0, 60.0) == {}
    assert growth.add({SERIES: counted(100, sum_s=5.0)}, 60.0, 60.0) == {KEY: ()}, "nothing came in"
    (latency,) = growth.add({SERIES: counted(200, sum_s=15.0)}, 75.0, 60.0)[KEY]
    assert (latency.tier, latency.mean_s) == ("interactive", 0.1)
    assert latency.p99.seconds < 0.1
    assert growth.add({SERIES: counted(200, sum_s=15.0)}, 300.0, 60.0) == {KEY: ()}, "what is old does not count"


def test_past_the_last_edge_only_so_much_is_known() -> None:
    growth = Growth()
    growth.add({SERIES: counted(0, sum_s=0.0)}, 0.0, 60.0)
    (latency,) = growth.add({SERIES: counted(90, 10, sum_s=50.0)}, 15.0, 60.0)[KEY]
    assert latency.p99.text() == ">100ms"


def test_workers_are_added_up_and_one_that_began_anew_counts_from_then() -> None:
    growth, other = Growth(), Series(KEY, "b", "interactive")
    growth.add({SERIES: counted(100, sum_s=100.0), other: counted(50, sum_s=5.0)}, 0.0, 60.0)
    (latency,) = growth.add({SERIES: counted(10, sum_s=1.0), other: counted(60, sum_s=6.0)}, 15.0, 60.0)[KEY]
    assert latency.mean_s == 0.1, "10 of the one, 10 more of the other, 2 s together"


def test_a_broken_histogram_is_none() -> None:
    growth = Growth()
    points = [Point(BUCKET, {"tier": "interactive", "le": "+Inf"}, value) for value in (1.0, 2.0)]
    for number, point in enumerate(points):
        found = growth.add(histograms(KEY, "a", [point]), 15.0 * number, 60.0)
    assert found == {KEY: ()}, f"no {SUM}"
