"""Scraping workers directly: all at once, and what cannot be read is unknown and names the pod."""

import time

import pytest

from tailkeeper.control.samples import CounterKey, InstanceKey, Reading, UnknownReason
from tailkeeper.signals.direct import DirectSource, Target
from tests.integration.exporters import exporting
from tests.unit.signals.faulty_server import FaultyServer, Say
from tests.unit.signals.worker_pages import KEY, WorkerPage, served


def target(address: str, pod: str = "demo-encoder-0", key: InstanceKey = KEY) -> Target:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return Target(key, pod, host, int(port))


async def scrape(*targets: Target, timeout_s: float = 2.0) -> Reading:
    source = DirectSource(timeout_s)
    try:
        return await source.read(targets)
    finally:
        await source.close()


async def test_every_pod_of_every_instance_is_read() -> None:
    other = InstanceKey("team-b", "demo", "encoder")
    with exporting(served()) as one, exporting(served()) as two, exporting(WorkerPage(other)) as three:
        found = await scrape(target(one, "a"), target(two, "b"), target(three, "c", other))
    assert found.faults == {}
    assert [sample.pod for sample in found.samples[KEY]] == ["a", "b"]
    (sample,) = found.samples[other]
    assert sample.counts[CounterKey(1, "interactive")].requests == 0
    assert abs(sample.time_s - time.time()) < 2


async def test_pods_are_asked_at_once() -> None:
    server = FaultyServer([lambda _: Say(served().text(), wait_s=0.5)])
    with server.running() as url:
        began = time.monotonic()
        found = await scrape(*(target(url, f"pod-{number}") for number in range(10)))
    assert len(found.samples[KEY]) == 10
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("say", "text"),
    [
        (Say("not found", 404), "answered 404"),
        (Say("", 302), "answered 302"),
        (Say(wait_s=2.0), "did not answer within 0.5 s"),
        (Say(reset=True), "cannot be reached"),
        (Say('tailkeeper_window{a="b\n'), "does not send Prometheus text"),
        (Say("tailkeeper_window NaNa\n"), "does not send Prometheus text"),
        (Say("x" * 5_000_000), "bytes: is it a worker?"),
    ],
)
async def test_one_pod_that_cannot_be_read_makes_its_instance_unknown_and_no_other(say: Say, text: str) -> None:
    other = InstanceKey("team-b", "demo", "encoder")
    with FaultyServer([say]).running() as bad, exporting(served()) as good, exporting(WorkerPage(other)) as apart:
        found = await scrape(target(bad, "bad"), target(good, "good"), target(apart, "apart", other), timeout_s=0.5)
    fault = found.of(KEY)
    assert not isinstance(fault, tuple)
    assert fault.reason is UnknownReason.PARTIAL
    assert text in fault.text
    assert "bad at http://127.0.0.1" in fault.text
    assert isinstance(found.of(other), tuple)


async def test_html_and_an_empty_page_are_no_worker() -> None:
    for say in (Say("<html></html>", content_type="text/html"), Say("")):
        with FaultyServer([say]).running() as url:
            fault = (await scrape(target(url))).of(KEY)
        assert not isinstance(fault, tuple)
        assert fault.reason is UnknownReason.ABSENT


async def test_an_address_that_another_instance_took_over_is_not_believed() -> None:
    with exporting(WorkerPage(InstanceKey("team-b", "demo", "encoder"))) as address:
        fault = (await scrape(target(address))).of(KEY)
    assert not isinstance(fault, tuple)
    assert "worker of another instance: team-b/demo/encoder" in fault.text


async def test_nobody_listens() -> None:
    fault = (await scrape(Target(KEY, "a", "127.0.0.1", 1))).of(KEY)
    assert not isinstance(fault, tuple)
    assert "cannot be reached" in fault.text
