"""A plan says before anything is sent what is wrong with it, in one line."""

from dataclasses import replace
from typing import Any

import pytest

from tailkeeper.bench.plan import Api, Limits, Plan, Target
from tailkeeper.bench.schedule import draw_schedule
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError, parse_arrivals

TARGET = Target("http://localhost:8000", Api.EMBEDDINGS)
LOADS = (TierLoad("a", parse_arrivals("poisson:50")), TierLoad("b", parse_arrivals("gamma:20,3")))


@pytest.mark.parametrize(
    ("url", "api", "path"),
    [
        ("http://h/v1/embeddings", Api.EMBEDDINGS, "/v1/embeddings"),
        ("http://h/v1/embeddings/", Api.EMBEDDINGS, "/v1/embeddings"),
        ("https://h:1/deep/v1/chat/completions?x=1", Api.CHAT, "/deep/v1/chat/completions?x=1"),
        ("http://h/v1/completions", Api.COMPLETIONS, "/v1/completions"),
        ("http://[::1]:8/v2/models/mini/infer", Api.V2, "/v2/models/mini/infer"),
        ("http://h/v2/models/mini/versions/3/infer", Api.V2, "/v2/models/mini/versions/3/infer"),
    ],
)
def test_a_whole_url_says_its_api(url: str, api: Api, path: str) -> None:
    target = Target(url)
    assert target.chosen_api is api
    assert target.path("mini") == path


def test_a_host_takes_the_path_of_the_api() -> None:
    assert Target("http://h", Api.CHAT).path("m") == "/v1/chat/completions"
    assert Target("http://h/prefix/", Api.V2).path("m") == "/prefix/v2/models/m/infer"
    assert Target("http://h/prefix/v1/embeddings").base_path == "/prefix"
    assert Target("http://h/p/v2/models/mini/infer").base_path == "/p"
    assert Target("http://h/v2/models/mini/infer").chosen_model == "mini"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8000", "no URL"),
        ("ftp://h", "no URL"),
        ("http://", "no URL"),
        ("http://h:99999", "no URL"),
        ("http://h:0", "no URL"),
        ("http://[::1", "no URL"),
        ("http://h/v1/x y", "percent-encoded"),
        ("http://me:pw@h", "header"),
        ("http://h", "which API"),
    ],
)
def test_a_wrong_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(LoadError, match=why) as caught:
        Target(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", [("a b", "x"), ("a", "x\r\ny: z"), ("", "x"), ("a", "ü")])
def test_headers_cannot_smuggle_lines(header: tuple[str, str]) -> None:
    with pytest.raises(LoadError):
        Target("http://h", Api.CHAT, headers=(header,))


@pytest.mark.parametrize(
    "wrong",
    [
        {"loads": ()},
        {"duration_s": 0},
        {"duration_s": float("inf")},
        {"duration_s": 1e6},
        {"warmup_s": -1},
        {"max_requests": 0},
        {"max_requests": 10**9},
        {"processes": 0},
        {"processes": 1000},
        {"max_send_lag_ms": 0},
        {"inputs": (b"{}",), "texts": ("x",)},
        {"loads": (TierLoad("a\r\nx", parse_arrivals("poisson:1")),)},
        {"loads": (TierLoad("", parse_arrivals("poisson:1")),)},
    ],
)
def test_everything_is_bounded(wrong: dict[str, Any]) -> None:
    with pytest.raises(LoadError):
        replace(Plan(TARGET, LOADS), **wrong)


@pytest.mark.parametrize("limits", [{"sla_ms": 0}, {"timeout_ms": -1}, {"sla_ms": 2000, "timeout_ms": 1000}])
def test_an_sla_must_be_visible_within_the_timeout(limits: dict[str, float]) -> None:
    with pytest.raises(LoadError):
        Limits(**limits)


def test_the_same_seed_draws_the_same_schedule() -> None:
    plan = Plan(TARGET, LOADS, duration_s=5, seed=3)
    assert draw_schedule(plan) == draw_schedule(replace(plan))
    assert draw_schedule(plan) != draw_schedule(replace(plan, seed=4))


def test_a_schedule_holds_all_tiers_and_the_trace_in_order_and_ends_in_time() -> None:
    trace = tuple(LoadRequest(t, "c", 5, 5) for t in (0.0, 1.0, 4.9, 6.0))
    requests = draw_schedule(Plan(TARGET, LOADS, trace, duration_s=4, warmup_s=1)).requests
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    assert {r.tier for r in requests} == {"a", "b", "c"}
    assert sum(r.tier == "c" for r in requests) == 3
    assert requests[-1].arrival_s < 5


def test_a_schedule_is_cut_at_its_bound() -> None:
    drawn = draw_schedule(Plan(TARGET, LOADS, max_requests=10))
    assert len(drawn.requests) == 10
    assert drawn.cut
    assert not draw_schedule(Plan(TARGET, LOADS, duration_s=1)).cut


def test_a_load_with_nothing_to_measure_is_refused() -> None:
    with pytest.raises(LoadError, match="nothing to measure"):
        draw_schedule(Plan(TARGET, (), (LoadRequest(0.5, "a", 1, 1),), warmup_s=1, duration_s=5))
