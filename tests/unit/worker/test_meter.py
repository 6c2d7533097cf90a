"""What is counted, under which generation, and what Prometheus reads of it."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_worker.metrics.exposition import Exposition, Snapshot
from gpu_worker.metrics.meter import Meter
from gpu_worker.scheduling.interface import (
    Answer,
    Outcome,
    Request,
    SchedulerState,
    Step,
    StepReport,
    TierState,
    Waits,
    Work,
)
from tailkeeper.api.enums import Mode
from tests.unit.worker.doubles import IDENTITY, settings

TIERS = ("interactive", "standard", "batch")


def answer(outcome: Outcome, waits: Waits | None = None, tier: str = "interactive", ended_s: float = 5.0) -> Answer:
    return Answer(Request("1", tier, 0.0), outcome, waits or Waits(exec_s=0.1), ended_s)


def page(meter: Meter, second: int = 1000, state: SchedulerState | None = None) -> bytes:
    snapshot = Snapshot(state=state, refused=2, ready=True, load_progress=1.0, second=second)
    return Exposition(IDENTITY, meter, lambda: snapshot).text()


def samples(text: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def value(meter: Meter, name: str, second: int = 1000, **labels: str) -> float:
    found = [
        value for series, its, value in samples(page(meter, second)) if series == name and labels.items() <= its.items()
    ]
    assert len(found) == 1, f"{name}{labels}: {found}"
    return found[0]


@pytest.fixture
def meter() -> Meter:
    meter = Meter()
    meter.apply(settings(1))
    return meter


def test_every_series_the_tuner_judges_is_there_at_zero_before_the_first_request(meter: Meter) -> None:
    for tier in TIERS:
        for outcome in Outcome:
            assert value(meter, "tailkeeper_requests_total", tier=tier, outcome=outcome.value, generation="1") == 0


@pytest.mark.parametrize(
    ("outcome", "latency", "timeout"),
    [
        (Outcome.OK, 0, 0),
        (Outcome.LATE, 1, 0),
        (Outcome.SHED, 1, 1),
        (Outcome.EXPIRED, 1, 1),
        (Outcome.CANCELLED, 0, 0),
        (Outcome.ERROR, 0, 0),
    ],
)
def test_shed_and_expired_requests_count_as_late_and_as_timeouts(
    meter: Meter, outcome: Outcome, latency: int, timeout: int
) -> None:
    meter.ended(answer(outcome), 1)
    labels = {"tier": "interactive", "generation": "1"}
    assert value(meter, "tailkeeper_requests_total", outcome=outcome.value, **labels) == 1
    assert value(meter, "tailkeeper_late_total", objective="latency", **labels) == latency
    assert value(meter, "tailkeeper_late_total", objective="timeout", **labels) == timeout


def test_a_caller_that_left_after_its_sla_had_passed_was_let_down(meter: Meter) -> None:
    meter.ended(answer(Outcome.CANCELLED, Waits(slot_s=1.5)), 1)
    assert value(meter, "tailkeeper_late_total", tier="interactive", objective="latency") == 1


@pytest.mark.parametrize(("own_ms", "waited_ms", "late"), [(1, 1, 0), (1, 1500, 1), (499, 300, 0), (500, 500, 1)])
def test_a_callers_own_deadline_that_no_setting_promises_is_no_miss_of_the_tier(
    meter: Meter, own_ms: int, waited_ms: int, late: int
) -> None:
    request = Request("1", "interactive", 0.0, deadline_s=own_ms / 1000)
    meter.ended(Answer(request, Outcome.EXPIRED, Waits(busy_s=waited_ms / 1000), 5.0), 1)
    for objective in ("latency", "timeout"):
        assert value(meter, "tailkeeper_late_total", tier="interactive", objective=objective, generation="1") == late
    assert value(meter, "tailkeeper_requests_total", tier="interactive", outcome="expired", generation="1") == 1


def test_waits_are_counted_by_cause_and_those_of_late_requests_apart(meter: Meter) -> None:
    meter.ended(answer(Outcome.OK, Waits(0.1, 0.2, 0.3, 0.4)), 1)
    meter.ended(answer(Outcome.LATE, Waits(1, 2, 3, 4)), 1)
    for cause, all_s, late_s in (("hold", 1.1, 1), ("busy", 2.2, 2), ("slot", 3.3, 3), ("exec", 4.4, 4)):
        assert value(meter, "tailkeeper_wait_seconds_total", tier="interactive", cause=cause) == pytest.approx(all_s)
        assert value(meter, "tailkeeper_late_wait_seconds_total", tier="interactive", cause=cause) == late_s


def test_second_moments_are_sums_over_whole_seconds(meter: Meter) -> None:
    """Second 5: n 3, k 1. Second 7: n 2, k 2. So nn = 9 + 4, nk = 3 + 4, kk = 1 + 4."""
    for ended_s, outcome in ((5.0, "ok"), (5.5, "ok"), (5.9, "late"), (7.0, "late"), (7.1, "shed")):
        meter.ended(answer(Outcome(outcome), ended_s=ended_s), 1)

    def moments(second: int) -> list[float]:
        name = "tailkeeper_second_moments_total"
        return [value(meter, name, second, tier="interactive", moment=moment) for moment in ("nn", "nk", "kk")]

    assert moments(second=7) == [9, 3, 1], "the second that is not over is not counted"
    assert moments(second=8) == [13, 7, 5]
    assert moments(second=9) == [13, 7, 5]


def test_a_request_counts_under_the_generation_that_it_arrived_in(meter: Meter) -> None:
    meter.apply(settings(2))
    meter.ended(answer(Outcome.OK), 1)
    meter.ended(answer(Outcome.OK), 2)
    for generation in ("1", "2"):
        labels = {"tier": "interactive", "outcome": "ok", "generation": generation}
        assert value(meter, "tailkeeper_requests_total", **labels) == 1


def test_only_the_current_and_the_previous_generation_are_there_and_stragglers_are_not_lost(meter: Meter) -> None:
    meter.apply(settings(2))
    meter.apply(settings(3))
    meter.ended(answer(Outcome.OK), 1)
    generations = {labels["generation"] for _, labels, _ in samples(page(meter)) if "generation" in labels}
    assert generations == {"2", "3"}
    assert value(meter, "tailkeeper_requests_total", tier="interactive", outcome="ok", generation="2") == 1


def test_a_change_of_the_sla_moves_the_edges_and_any_other_change_keeps_the_counts(meter: Meter) -> None:
    meter.ended(answer(Outcome.OK), 1)
    meter.apply(settings(2, ceiling=8))
    assert value(meter, "tailkeeper_request_seconds_count", tier="interactive") == 1
    assert value(meter, "tailkeeper_request_seconds_bucket", tier="interactive", le="1.0") == 1
    meter.apply(settings(3, sla_ms=300))
    assert value(meter, "tailkeeper_request_seconds_count", tier="interactive") == 0
    assert value(meter, "tailkeeper_request_seconds_bucket", tier="interactive", le="0.3") == 0


def test_a_request_without_an_answer_counts_as_its_timeout_in_the_percentiles(meter: Meter) -> None:
    meter.ended(answer(Outcome.SHED, Waits()), 1)
    assert value(meter, "tailkeeper_request_seconds_sum", tier="interactive") == 2.0


def test_a_request_of_a_tier_that_is_gone_counts_as_the_default_tier(meter: Meter) -> None:
    tiers = [tier for tier in settings().tiers if tier.name != "standard"]
    meter.apply(settings(2, tiers=tiers))
    meter.ended(answer(Outcome.OK, tier="standard"), 1)
    assert value(meter, "tailkeeper_requests_total", tier="interactive", outcome="ok", generation="1") == 1


def test_work_is_requests_in_request_mode_and_tokens_in_continuous_mode() -> None:
    requests = [Request(str(index), "interactive", 0.0, prompt_tokens=10) for index in range(3)]
    step = Step(1, (Work(requests[0], prefill_tokens=10), *(Work(request, decode=True) for request in requests[1:])))
    report = StepReport(step, 1.0, 1.5, completed=frozenset({"1"}))
    for mode, work in ((Mode.REQUEST, 1), (Mode.CONTINUOUS, 12)):
        meter = Meter()
        meter.apply(settings(1, mode=mode))
        meter.step(report)
        assert value(meter, "tailkeeper_engine_work_total") == work
        assert value(meter, "tailkeeper_engine_busy_seconds_total") == 0.5
        assert value(meter, "tailkeeper_batch_size") == 3


def test_at_most_500_series_with_three_tiers_in_continuous_mode_and_two_generations() -> None:
    meter = Meter()
    for generation in (1, 2, 3):
        meter.apply(settings(generation, mode=Mode.CONTINUOUS))
    model = dict.fromkeys(("alpha", "beta", "gamma", "delta", "prompt_tokens", "output_tokens"), 0.1)
    state = SchedulerState(8, 64, 3, {tier: TierState(1, 0.1) for tier in TIERS}, 5.0, 1.1, model, 0.8)
    assert 400 < len(list(samples(page(meter, state=state)))) <= 500


def test_the_names_are_api(meter: Meter) -> None:
    state = SchedulerState(
        8, 64, 3, {tier: TierState(1, 0.1) for tier in TIERS}, 5.0, 1.1, {"c": 0.006, "a": 0.002}, 0.8
    )
    names = {name for name, _, _ in samples(page(meter, state=state)) if name.startswith("tailkeeper_")}
    histograms = {"request_seconds", "batch_wait_seconds"}
    assert names == {
        f"tailkeeper_{name}"
        for name in (
            *("requests_total", "late_total", "late_wait_seconds_total", "second_moments_total", "wait_seconds_total"),
            *("engine_busy_seconds_total", "engine_work_total", "preemptions_total", "settings_refused_total"),
            *("window", "window_cap", "window_ceiling", "latency_model", "arrival_rate", "arrival_cv", "queue_length"),
            *("batch_size", "efficiency", "settings_generation", "running", "ready", "load_progress"),
            *("settings_info", "sla_seconds", "timeout_target", "efficiency_target", "window_idle", "window_busy"),
            *(f"{histogram}_{part}" for histogram in histograms for part in ("bucket", "count", "sum")),
        )
    }


def test_what_alerts_compare_with_is_a_metric_and_follows_the_settings(meter: Meter) -> None:
    assert [value(meter, "tailkeeper_sla_seconds", tier=tier) for tier in TIERS] == [1, 5, 60]
    assert value(meter, "tailkeeper_timeout_target") == 0.005
    assert value(meter, "tailkeeper_efficiency_target") == 0.7
    info = {"traffic_class": "online", "mode": "request", "default_tier": "interactive"}
    assert value(meter, "tailkeeper_settings_info", **info) == 1
    meter.apply(settings(2, sla_ms=300, min_efficiency_percent=90))
    assert value(meter, "tailkeeper_sla_seconds", tier="interactive") == 0.3
    assert value(meter, "tailkeeper_efficiency_target") == 0.9


def test_labels_do_not_collide_with_those_of_a_scrape(meter: Meter) -> None:
    for name, labels, _ in samples(page(meter)):
        if name.startswith("tailkeeper_"):
            assert (
                labels.items() >= {"policy_namespace": "default", "policy": "chat", "model_instance": "minilm"}.items()
            )
            assert labels.keys().isdisjoint({"namespace", "instance", "pod", "job"})


def test_what_is_not_finite_is_not_shown(meter: Meter) -> None:
    state = SchedulerState(8, 64, 0, {}, 5.0, float("nan"), {"c": float("inf")}, None)
    names = {name for name, _, _ in samples(page(meter, state=state))}
    assert "tailkeeper_arrival_rate" in names
    assert names.isdisjoint({"tailkeeper_arrival_cv", "tailkeeper_latency_model", "tailkeeper_efficiency"})
