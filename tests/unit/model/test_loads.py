"""Loads are what they say: rate, burstiness, silence, size, the same from the same seed; bad ones fail in one line."""

import itertools
import random
from collections import Counter
from itertools import pairwise
from statistics import mean, median, quantiles, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.model.load_mix import TierLoad, requests
from tailkeeper.model.load_sizes import parse_sizes
from tailkeeper.model.load_trace import LoadRequest, read_trace, rescaled, write_trace
from tailkeeper.model.loads import LoadError, parse_arrivals

ALL = ["constant:40", "poisson:40", "gamma:40,3.7", "mmpp:40", "step:40,4,30,60", "onoff:40,10,60,220"]


def times(text: str, until_s: float, seed: int = 1) -> list[float]:
    process = parse_arrivals(text)
    return list(itertools.takewhile(lambda t: t < until_s, process.times(random.Random(seed))))


def cv(arrivals: list[float]) -> float:
    gaps = [b - a for a, b in pairwise(arrivals)]
    return stdev(gaps) / mean(gaps)


@pytest.mark.parametrize("text", ALL)
def test_times_rise_and_the_seed_decides_them(text: str) -> None:
    first = times(text, 100)
    assert first == sorted(first)
    assert first[0] >= 0
    assert first == times(text, 100)
    if not text.startswith("constant"):
        assert first != times(text, 100, seed=2)


@pytest.mark.parametrize("text", ALL)
def test_the_long_run_rate_is_the_one_promised(text: str) -> None:
    process = parse_arrivals(text)
    assert len(times(text, 3000)) / 3000 == pytest.approx(process.mean_rate_per_s, rel=0.1)
    assert process.scaled(2).mean_rate_per_s == pytest.approx(2 * process.mean_rate_per_s)


def test_gaps_have_the_variation_asked_for() -> None:
    assert cv(times("constant:40", 1000)) < 1e-6
    assert cv(times("poisson:40", 1000)) == pytest.approx(1, rel=0.05)
    assert cv(times("gamma:40,3.7", 3000)) == pytest.approx(3.7, rel=0.1)
    assert cv(times("gamma:40,0.3", 1000)) == pytest.approx(0.3, rel=0.1)


def test_two_states_are_bursts_of_three_times_the_rate() -> None:
    per_second = Counter(int(t) for t in times("mmpp:100", 2000))
    counts = sorted(per_second[s] for s in range(2000))
    assert quantiles(counts, n=20)[-1] > 250
    assert median(counts) < 80


def test_a_step_jumps_when_it_says_and_comes_back() -> None:
    arrivals = times("step:50,4,20,40", 60)
    parts = [sum(a <= t < b for t in arrivals) / 20 for a, b in [(0, 20), (20, 40), (40, 60)]]
    assert parts == pytest.approx([50, 200, 50], rel=0.15)


def test_silence_is_as_long_as_it_says() -> None:
    arrivals = times("onoff:40,10,60,220", 5000)
    silences = [b - a for a, b in pairwise(arrivals) if b - a > 5]
    assert len(silences) >= 20
    assert min(silences) > 59
    assert max(silences) < 225


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown process"),
        ("poison:4", "unknown process 'poison'; known: constant, poisson, gamma, mmpp, step, onoff"),
        ("poisson", "write poisson:RATE"),
        ("poisson:many", "'many' is not a number"),
        ("poisson:nan", "not a finite number"),
        ("poisson:inf", "not a finite number"),
        ("poisson:0", "RATE must be above 0"),
        ("poisson:1e9", "at most 1e"),
        ("poisson:1,2", "2 numbers where poisson:RATE is wanted"),
        ("gamma:4", "gamma:RATE,CV"),
        ("gamma:4,-1", "CV must be above 0"),
        ("mmpp:40,9,1,4", "at most 5"),
        ("step:1,2,5,4", "BACK_S must be after AT_S"),
        ("onoff:1,2,5,4", "OFF_MAX_S must be at least OFF_S"),
    ],
)
def test_what_is_no_load_is_refused_in_one_line_that_says_why(text: str, why: str) -> None:
    with pytest.raises(LoadError) as caught:
        parse_arrivals(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_have_the_median_and_tail_asked_for() -> None:
    rng = random.Random(1)
    sizes = parse_sizes("lognormal:1020,4142")
    drawn = [sizes.draw(rng) for _ in range(20_000)]
    assert median(drawn) == pytest.approx(1020, rel=0.03)
    assert quantiles(drawn, n=100)[-1] == pytest.approx(4142, rel=0.06)
    assert mean(drawn) == pytest.approx(sizes.mean_tokens, rel=0.03)
    uniform = parse_sizes("uniform:3,5")
    assert {uniform.draw(rng) for _ in range(200)} == {3, 4, 5}
    assert parse_sizes("7").draw(rng) == 7


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "uniform:5,3", "uniform:5", "lognormal:9,3", "normal:3,4", "1.5"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(LoadError):
        parse_sizes(text)


def mix(*loads: TierLoad, until_s: float = 50) -> list[LoadRequest]:
    return list(requests(loads, lambda name: random.Random(f"7/{name}"), until_s))


def test_tiers_are_merged_in_order_of_arrival() -> None:
    both = mix(
        TierLoad("interactive", parse_arrivals("poisson:40"), deadline_ms=50),
        TierLoad("batch", parse_arrivals("poisson:100"), tenant="reports"),
    )
    assert [r.arrival_s for r in both] == sorted(r.arrival_s for r in both)
    count = Counter((r.tier, r.deadline_ms, r.tenant) for r in both)
    assert count["interactive", 50, None] == pytest.approx(2000, rel=0.1)
    assert count["batch", None, "reports"] == pytest.approx(5000, rel=0.1)


def test_sizes_and_other_tiers_leave_a_tiers_arrivals_alone() -> None:
    plain = TierLoad("a", parse_arrivals("poisson:40"))
    sized = TierLoad("a", parse_arrivals("poisson:40"), prompt=parse_sizes("uniform:1,99"))
    other = TierLoad("b", parse_arrivals("gamma:9,2"))
    alone = [r.arrival_s for r in mix(plain)]
    assert alone == [r.arrival_s for r in mix(sized, other) if r.tier == "a"]


HEADER = "arrival_s,tier,prompt_tokens,output_tokens"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "t.csv: empty"),
        (HEADER + "\n", "t.csv: no rows"),
        ("arrival_s,tier\n", "t.csv:1: the header lacks prompt_tokens, output_tokens"),
        (HEADER + ",deadlines\n", "t.csv:1: unknown column 'deadlines'"),
        (HEADER + ",tier\n", "t.csv:1: a column is there twice"),
        (HEADER + "\n0,a,1,1\n1,a,1\n", "t.csv:3: 3 cells where the header has 4"),
        (HEADER + "\n0,a,1,1\n\nx,a,1,1\n", "t.csv:4: arrival_s 'x' is not a number"),
        (HEADER + "\nnan,a,1,1\n", "t.csv:2: arrival_s 'nan' is not a time"),
        (HEADER + "\n-1,a,1,1\n", "t.csv:2: arrival_s '-1' is not a time"),
        (HEADER + "\n2,a,1,1\n1,a,1,1\n", "t.csv:3: arrival_s 1 is before the row above"),
        (HEADER + "\n2,,1,1\n", "t.csv:2: tier is empty"),
        (HEADER + "\n2,a,0,1\n", "t.csv:2: prompt_tokens 0 is not between"),
        (HEADER + "\n2,a,1,1.5\n", "t.csv:2: output_tokens '1.5' is not a whole number"),
        (HEADER + ',deadline_ms\n2,a,1,1,"x\n', "t.csv:2: not CSV"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(LoadError) as caught:
        read_trace(text.splitlines(keepends=True), "t.csv")
    assert str(caught.value).startswith(why)


def test_a_trace_may_order_its_columns_and_leave_cells_empty() -> None:
    text = "\ufefftier,arrival_s,output_tokens,prompt_tokens,tenant,deadline_ms\na,0.5,0,3,,\nb,0.5,1,3,me,20\n"
    assert read_trace(text.splitlines(keepends=True)) == [
        LoadRequest(0.5, "a", 3, 0),
        LoadRequest(0.5, "b", 3, 1, 20, "me"),
    ]


rows = st.builds(
    LoadRequest,
    arrival_s=st.integers(0, 10**9).map(lambda us: us / 1e6),
    tier=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=9),
    prompt_tokens=st.integers(1, 9999),
    output_tokens=st.integers(0, 9999),
    deadline_ms=st.none() | st.integers(1, 10**6),
    tenant=st.none() | st.text("ab,\"'", min_size=1, max_size=5),
)


@given(st.lists(rows, min_size=1, max_size=20))
def test_what_is_written_is_read_back(trace: list[LoadRequest]) -> None:
    trace.sort(key=lambda r: r.arrival_s)
    assert read_trace(write_trace(trace)) == trace


def test_a_trace_is_sped_up_and_shrunk_and_starts_at_zero() -> None:
    trace = [LoadRequest(10, "a", 1000, 10), LoadRequest(14, "a", 3, 0)]
    assert rescaled(trace, speed=2, tokens=0.1) == [LoadRequest(0, "a", 100, 1), LoadRequest(2, "a", 1, 0)]
    with pytest.raises(LoadError):
        rescaled(trace, speed=0)
    with pytest.raises(LoadError):
        rescaled(trace, tokens=float("nan"))
