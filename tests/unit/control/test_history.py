"""Look-backs from single reads: exact over restarts, over pods that come and go, and never a number from nothing."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.control.history import History
from tailkeeper.control.observation import Idle, Observation, Value
from tailkeeper.control.samples import CounterKey, Counts, Gauges, PodSample, Unknown, UnknownReason


def sample(
    time_s: float, requests: float, late: float = 0, pod: str = "a", generation: int = 1, queue: float = 0
) -> PodSample:
    counts = Counts(requests=requests, late=late, nn=requests, nk=late, kk=late)
    return PodSample(
        pod=pod,
        time_s=time_s,
        counts={CounterKey(generation, "interactive"): counts},
        busy_s=requests / 100,
        work=requests,
        gauges=Gauges(window=8, queue={"interactive": queue}),
    )


def feed(history: History, samples: Iterable[PodSample], pods: set[str] | None = None) -> Observation:
    seen: Observation | None = None
    for each in samples:
        seen = history.observe([each], pods, each.time_s)
    assert seen is not None
    return seen


def test_growth_is_the_difference_over_the_samples_own_times() -> None:
    seen = feed(History(), (sample(t, requests=10 * t, late=t) for t in range(0, 200, 5)))
    assert isinstance(seen, Value)
    assert seen.interval_s == 5
    assert [look.whole for look in seen.look_backs] == [True, True, False, False]
    assert seen.short.span_s == 20, "four intervals of 5 s, not 15 s"
    assert seen.long.counts(1, "interactive").requests == pytest.approx(10 * seen.long.span_s)
    assert seen.long.counts(1, "interactive").late == pytest.approx(seen.long.span_s)
    assert seen.long.rate_per_s == pytest.approx(10)


@pytest.mark.parametrize("interval", [1, 5, 15, 30])
def test_a_look_back_spans_four_intervals_at_least(interval: int) -> None:
    seen = feed(History(), (sample(t, requests=t) for t in range(0, 2000, interval)))
    assert isinstance(seen, Value)
    assert seen.interval_s == interval
    assert seen.short.span_s == pytest.approx(max(15, 4 * interval))
    assert all(look.whole for look in seen.look_backs)
    for look, asked in zip(seen.look_backs, (15, 60, 300, 900), strict=True):
        wanted = max(asked, 4 * interval)
        assert wanted <= look.span_s <= wanted + 60


def test_a_pod_that_just_came_does_not_stretch_the_look_backs() -> None:
    history = History()
    feed(history, (sample(t, requests=10 * t) for t in range(0, 100, 2)), {"a"})
    seen = history.observe([sample(100, 1000), sample(100, 5, pod="b")], {"a", "b"}, 100)
    assert isinstance(seen, Value)
    assert (seen.interval_s, seen.pods, seen.short.asked_s) == (2, 2, 15)
    assert seen.short.rate_per_s == pytest.approx(10), "what it counted before we saw it is not of now"


def test_a_read_that_brings_the_same_sample_again_adds_nothing() -> None:
    history = History()
    for t in range(0, 120, 15):
        for delay in (1, 6, 11):
            seen = history.observe([sample(t, requests=t)], None, t + delay)
    assert isinstance(seen, Value)
    assert seen.interval_s == 15
    assert seen.age_s == 10


def test_a_restarted_worker_counts_on() -> None:
    history = History()
    feed(history, (sample(t, requests=10 * t) for t in range(0, 100, 5)))
    seen = feed(history, (sample(100 + t, requests=10 * t) for t in range(2, 40, 5)))
    assert isinstance(seen, Value)
    assert seen.long.rate_per_s == pytest.approx(10, rel=0.15)
    assert seen.long.counts(1, "interactive").requests >= 0


def test_a_new_generation_starts_at_zero_and_the_old_one_stays_apart() -> None:
    history = History()
    feed(history, (sample(t, requests=10 * t, late=10 * t) for t in range(0, 100, 5)))
    seen = feed(history, (sample(100 + t, requests=4 * t, generation=2) for t in range(0, 20, 5)))
    assert isinstance(seen, Value)
    assert seen.long.counts(2, "interactive").requests == 4 * 15
    assert seen.long.counts(2, "interactive").late == 0
    assert seen.long.counts(1, "interactive").late > 0


def test_two_pods_add_up_and_one_that_is_gone_no_longer_counts() -> None:
    history = History()
    for t in range(0, 100, 5):
        seen = history.observe([sample(t, 10 * t), sample(t, 10 * t, late=10 * t, pod="b")], {"a", "b"}, t)
    assert isinstance(seen, Value)
    assert seen.pods == 2
    assert seen.long.rate_per_s == pytest.approx(20)
    for t in range(100, 110, 5):
        seen = history.observe([sample(t, 10 * t), sample(95, 950, late=950, pod="b")], {"a"}, t)
    assert isinstance(seen, Value)
    assert seen.pods == 1
    assert seen.long.counts(1, "interactive").late == 0
    assert seen.long.rate_per_s == pytest.approx(10)


def test_a_ready_pod_without_samples_makes_the_answer_partial() -> None:
    history = History()
    history.observe([sample(0, 0)], {"a"}, 0)
    seen = history.observe([sample(5, 5)], {"a", "b"}, 5)
    assert isinstance(seen, Unknown)
    assert seen.reason is UnknownReason.PARTIAL
    assert "b" in seen.text


def test_no_series_is_absent_not_idle() -> None:
    for pods in (None, set[str](), {"a"}):
        seen = History().observe([], pods, 0)
        assert isinstance(seen, Unknown)
        assert seen.reason is UnknownReason.ABSENT


def test_a_fault_of_the_source_passes_through() -> None:
    fault = Unknown(UnknownReason.ERROR, "connection refused")
    assert History().observe(fault, None, 0) is fault


def test_series_that_do_not_grow_are_idle_and_with_a_queue_they_are_not() -> None:
    seen = feed(History(), (sample(t, requests=100) for t in range(0, 100, 5)))
    assert isinstance(seen, Idle)
    stuck = feed(History(), (sample(t, requests=100, queue=3) for t in range(0, 100, 5)))
    assert isinstance(stuck, Value)


def test_before_a_minute_was_seen_it_is_not_called_idle() -> None:
    assert isinstance(feed(History(), (sample(t, requests=100) for t in range(0, 50, 5))), Value)


def test_a_worker_that_stopped_moving_its_clock_is_stale_whatever_its_clock_says() -> None:
    history = History()
    for t in range(0, 60, 5):
        history.observe([sample(t + 7_200, requests=t)], None, t)
    assert isinstance(history.observe([sample(55 + 7_200, 55)], None, 64), Value)
    seen = history.observe([sample(55 + 7_200, 55)], None, 75)
    assert isinstance(seen, Unknown)
    assert seen.reason is UnknownReason.STALE


def test_a_growing_queue_is_arrivals_that_nobody_served_yet() -> None:
    seen = feed(History(), (sample(t, requests=10 * t, queue=5 * t) for t in range(0, 100, 5)))
    assert isinstance(seen, Value)
    assert seen.short.rate_per_s == pytest.approx(15)


def test_fifteen_minutes_take_few_points() -> None:
    history = History()
    feed(history, (sample(t, requests=t) for t in range(0, 4_000)))
    assert len(history._pods["a"].points) < 70


@given(
    st.lists(
        st.tuples(st.floats(0.5, 40), st.integers(0, 50), st.integers(0, 5), st.booleans()), min_size=2, max_size=80
    )
)
def test_no_history_makes_a_count_negative_or_more_than_happened(
    ticks: list[tuple[float, int, int, bool]],
) -> None:
    history, now, total, requests, late = History(), 0.0, 0, 0, 0
    for step, grown, missed, restart in ticks:
        now += step
        if restart:
            requests = late = 0
        requests, late, total = requests + grown, late + min(grown, missed), total + grown
        seen = history.observe([sample(now, requests, late)], None, now)
        assert not isinstance(seen, Unknown)
        if isinstance(seen, Value):
            for look in seen.look_backs:
                counts = look.counts(1, "interactive")
                assert 0 <= counts.requests <= total
                assert 0 <= counts.late <= total
                assert look.rate_per_s >= 0
