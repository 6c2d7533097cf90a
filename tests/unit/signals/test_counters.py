"""What the worker writes is what the tuner reads: the real page, through the real parser."""

import pytest

from gpu_worker.scheduling.interface import Outcome
from tailkeeper.control.samples import CounterKey, Counts, PodSample, Unknown, UnknownReason
from tailkeeper.signals.counters import Point, instance_of, pod_sample
from tailkeeper.signals.direct import parse
from tests.unit.signals.worker_pages import KEY, WorkerPage, served


def read(page: WorkerPage) -> PodSample | Unknown:
    return pod_sample("demo-encoder-0", 12.5, parse(page.text()))


def sample(page: WorkerPage) -> PodSample:
    found = read(page)
    assert isinstance(found, PodSample)
    return found


def test_every_counter_arrives_under_its_tier_and_generation() -> None:
    found = sample(served())
    assert found.time_s == 12.5
    assert found.counts[CounterKey(1, "interactive")] == Counts(
        requests=8,
        late=3,
        hold_s=pytest.approx(0.3),
        busy_s=pytest.approx(0.15),
        slot_s=pytest.approx(0.6),
        exec_s=pytest.approx(0.15),
        nn=25 + 9,
        nk=9,
        kk=9,
    )
    assert found.counts[CounterKey(1, "batch")].timeouts == 2
    assert found.counts[CounterKey(1, "batch")].late == 2
    assert found.counts[CounterKey(2, "interactive")].requests == 4
    assert found.counts[CounterKey(2, "batch")] == Counts()
    assert found.busy_s == 1.0
    assert found.work == 14


def test_gauges_arrive() -> None:
    gauges = sample(served()).gauges
    assert (gauges.window, gauges.window_cap, gauges.ceiling, gauges.arrival_cv) == (8, 31, 64, 1.5)
    assert gauges.queue == {"interactive": 7, "batch": 0}
    assert gauges.latency_model == {"c": 0.006, "a": 0.003}
    assert gauges.efficiency is None, "idle: not defined"


def test_the_page_names_its_instance() -> None:
    assert {instance_of(point.labels) for point in parse(served().text())} == {KEY}
    assert instance_of({"policy": "demo"}) is None


def test_a_worker_that_has_served_nothing_is_there_at_zero() -> None:
    assert sample(WorkerPage()).counts[CounterKey(1, "interactive")] == Counts()


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-Inf"])
def test_a_counter_that_is_no_number_is_unknown_and_names_itself(bad: str) -> None:
    page = served().text().replace("tailkeeper_engine_work_total{", f'tailkeeper_engine_work_total{{bad="{bad}",')
    lines = [
        line.rsplit(" ", 1)[0] + f" {bad}" if line.startswith("tailkeeper_engine_work_total{bad") else line
        for line in page.splitlines()
    ]
    found = pod_sample("demo-encoder-0", 0.0, parse("\n".join(lines)))
    assert isinstance(found, Unknown)
    assert found.reason is UnknownReason.NOT_FINITE
    assert "tailkeeper_engine_work_total of demo-encoder-0" in found.text


def test_a_gauge_that_is_no_number_is_only_missing() -> None:
    points = [*parse(served().text()), Point("tailkeeper_efficiency", {}, float("nan"))]
    found = pod_sample("a", 0.0, points)
    assert isinstance(found, PodSample)
    assert found.gauges.efficiency is None


def test_without_a_request_counter_nothing_is_known() -> None:
    found = pod_sample("a", 0.0, [Point("tailkeeper_settings_generation", {}, 0)])
    assert isinstance(found, Unknown)
    assert found.reason is UnknownReason.ABSENT


def test_labels_of_a_newer_worker_are_passed_over() -> None:
    page = served()
    extra = 'tailkeeper_late_total{tier="interactive",generation="1",objective="colour"} 5\n'
    extra += 'tailkeeper_requests_total{tier="interactive",generation="main",outcome="ok"} 5\n'
    found = pod_sample("demo-encoder-0", 12.5, parse(page.text() + extra))
    assert found == sample(page)


def test_lines_that_nobody_wants_are_not_even_parsed() -> None:
    assert list(parse('other{broken 5\ntailkeeper_request_seconds_bucket{le="x} 5\n')) == []
    with pytest.raises(ValueError, match="could not convert"):
        list(parse("tailkeeper_window five\n"))


def test_cancelled_requests_count_as_sent() -> None:
    page = WorkerPage()
    page.serve(Outcome.CANCELLED, 3)
    assert sample(page).counts[CounterKey(1, "interactive")].requests == 3
