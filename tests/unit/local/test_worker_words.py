"""What is told of a worker by what it says of itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailkeeper.local.events import Event, Happening
from tailkeeper.local.launch import Launch
from tailkeeper.local.worker import MOST_UNANSWERED, Worker
from tailkeeper.signals.worker_settings import WorkerReport

LOADING = WorkerReport(0, False, "loading: importing torch")
READY = WorkerReport(1, True, "")


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def worker(tmp_path: Path, events: list[Event]) -> Worker:
    log = tmp_path / "m-0.log"
    worker = Worker(Launch("m-0", "m", (), {}, "127.0.0.1", 1, 2, log, log), events.append, lambda: 5.0)
    worker._process = cast("Any", SimpleNamespace(returncode=None, send_signal=lambda _: None))
    return worker


def told(events: list[Event]) -> list[str]:
    return [event.what.value for event in events]


def test_each_phase_is_told_once_also_when_an_answer_is_late(worker: Worker, events: list[Event]) -> None:
    for report in (LOADING, None, LOADING, READY, None, READY):
        worker.hear(report)
    assert told(events) == ["loading", "ready"]
    assert worker.ready


def test_a_worker_that_stays_silent_is_not_ready_until_it_answers(worker: Worker, events: list[Event]) -> None:
    for report in (READY, *[None] * (MOST_UNANSWERED + 2)):
        worker.hear(report)
    assert told(events) == ["ready", "unready"]
    assert not worker.ready
    worker.hear(READY)
    assert told(events)[-1] == "ready"
    assert worker.ready


def test_a_refusal_is_told_once(worker: Worker, events: list[Event]) -> None:
    for _ in range(3):
        worker.hear(WorkerReport(1, True, "", refusal="out of bounds"))
    assert told(events) == ["ready", "refused"]


def test_no_progress_for_three_probes_is_the_end_of_a_worker_that_was_ready(
    worker: Worker, events: list[Event]
) -> None:
    for _ in range(5):
        worker.probed(live=False)  # still loading: that may take its time
    worker.hear(READY)
    for live in (False, False, True, False, False):
        worker.probed(live)
    assert told(events) == ["ready"]
    worker.probed(live=False)
    assert events[-1].what is Happening.UNREADY
    assert events[-1].text == "makes no progress: killed"
