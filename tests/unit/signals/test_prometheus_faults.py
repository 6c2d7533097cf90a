"""Whatever Prometheus answers, it is a reading or an Unknown that says what to do; never zero, never an exception."""

import asyncio
import time
from pathlib import Path

import pytest

from tailkeeper.control.samples import InstanceKey, Reading, Unknown, UnknownReason
from tailkeeper.signals.prometheus import COUNTERS, TIMES, PrometheusSource
from tailkeeper.signals.query import Access
from tests.unit.signals.faulty_server import FaultyServer, Say, vector

WHO = {"policy_namespace": "a", "policy": "p", "model_instance": "m", "pod": "p-m-0", "instance": "10.0.0.1:9000"}
KEY = InstanceKey("a", "p", "m")


def healthy(query: str) -> Say:
    """What one worker with ten requests would look like."""
    if query == TIMES:
        return vector((WHO, "95.5"))
    if query == COUNTERS["tailkeeper_requests_total"]:
        return vector(({**WHO, "tier": "t", "generation": "1"}, "10"))
    return vector()


async def read(*answers: object, timeout_s: float = 2.0, **access: object) -> tuple[Reading | Unknown, FaultyServer]:
    server = FaultyServer(list(answers))  # type: ignore[arg-type]
    with server.running() as url:
        source = PrometheusSource(Access(url, timeout_s, **access))  # type: ignore[arg-type]
        try:
            return await source.read(), server
        finally:
            source.close()


@pytest.mark.parametrize(
    ("say", "reason", "text"),
    [
        (
            Say("<html>login</html>", content_type="text/html"),
            UnknownReason.ERROR,
            "answered text/html instead of JSON",
        ),
        (Say("<html>", 404, "text/html"), UnknownReason.ERROR, "is it the base address of a Prometheus?"),
        (Say("no", 401), UnknownReason.ERROR, "refuses us (401): check the credentials"),
        (Say("no", 403), UnknownReason.ERROR, "refuses us (403): check the credentials"),
        (Say('{"status":"error","error":"query timed out"}', 422), UnknownReason.ERROR, "query timed out"),
        (Say("oh dear", 500), UnknownReason.ERROR, "answered 500: oh dear"),
        (Say("Service Unavailable", 503), UnknownReason.ERROR, "answered 503: Service Unavailable"),
        (Say("null"), UnknownReason.ERROR, "something else than a query's result"),
        (Say("[]"), UnknownReason.ERROR, "something else than a query's result"),
        (Say("{}"), UnknownReason.ERROR, "something else than a query's result"),
        (Say('{"data": null}'), UnknownReason.ERROR, "something else than a query's result"),
        (Say('{"data": {"result": null}}'), UnknownReason.ERROR, "something else than a vector"),
        (Say('{"data": {"result": [null]}}'), UnknownReason.ERROR, "something else than a vector"),
        (Say('{"data": {"result": [{"metric": {}, "values": []}]}}'), UnknownReason.ERROR, "else than a vector"),
        (vector((WHO, "a lot")), UnknownReason.ERROR, "a value that is no number: a lot"),
        (Say(""), UnknownReason.ERROR, "instead of JSON"),
        (Say('{"status": "succ'), UnknownReason.ERROR, "instead of JSON"),
        (vector((WHO, "95"), warnings=["store 2 is away"]), UnknownReason.PARTIAL, "in part: store 2 is away"),
        (Say(reset=True), UnknownReason.ERROR, "cannot be reached"),
    ],
)
async def test_a_bad_answer_is_unknown_and_says_what_to_do(say: Say, reason: UnknownReason, text: str) -> None:
    found, _ = await read(say)
    assert isinstance(found, Unknown)
    assert found.reason is reason
    assert text in found.text
    assert "http://127.0.0.1" in found.text
    assert "\n" not in found.text


@pytest.mark.parametrize("say", [Say(wait_s=3.0), Say("x" * 10_000, drip_s=0.05)], ids=["silent", "dripping"])
async def test_a_slow_answer_costs_no_more_than_the_timeout(say: Say) -> None:
    began = time.monotonic()
    found, _ = await read(say, timeout_s=0.4)
    assert time.monotonic() - began < 1.0
    assert isinstance(found, Unknown)
    assert "did not answer within 0.4 s" in found.text


async def test_while_one_read_hangs_no_second_one_piles_up() -> None:
    server = FaultyServer([Say("{}", drip_s=0.6)])
    with server.running() as url:
        source = PrometheusSource(Access(url, 0.2))
        for _ in range(5):
            assert isinstance(await source.read(), Unknown)
        source.close()
    assert len(server.queries) == 1


async def test_a_warning_late_in_the_read_spoils_all_of_it() -> None:
    found, _ = await read(healthy, healthy, vector(warnings=["half is missing"]))
    assert isinstance(found, Unknown)
    assert found.reason is UnknownReason.PARTIAL


async def test_an_empty_warnings_field_is_none() -> None:
    found, _ = await read(lambda query: vector((WHO, "95.5"), warnings=[]) if query == TIMES else healthy(query))
    assert isinstance(found, Reading)


@pytest.mark.parametrize("hiccup", [Say(reset=True), Say("busy", 503), Say("bad gateway", 502)])
async def test_a_hiccup_is_asked_again(hiccup: Say) -> None:
    found, server = await read(hiccup, healthy)
    assert isinstance(found, Reading)
    assert found.samples[KEY][0].pod == "p-m-0"
    assert server.queries[:2] == [TIMES, TIMES]


async def test_an_error_of_the_query_is_not_asked_again() -> None:
    _, server = await read(Say("boom", 500))
    assert len(server.queries) == 1


async def test_an_empty_vector_has_no_samples_at_all() -> None:
    found, _ = await read(vector())
    assert found == Reading()


async def test_a_worker_scraped_during_the_read_is_left_for_the_next_one() -> None:
    times = [vector((WHO, "95.5")), vector((WHO, "96.5"))]
    found, _ = await read(lambda query: times.pop(0) if query == TIMES else healthy(query))
    assert found == Reading()


async def test_nan_in_one_instance_is_a_fault_of_that_one_alone() -> None:
    other = {**WHO, "model_instance": "other"}

    def answer(query: str) -> Say:
        if query == TIMES:
            return vector((WHO, "95.5"), (other, "95.5"))
        if query == COUNTERS["tailkeeper_requests_total"]:
            row = {"tier": "t", "generation": "1"}
            return vector(({**WHO, **row}, "10"), ({**other, **row}, "NaN"))
        return vector()

    found, _ = await read(answer)
    assert isinstance(found, Reading)
    assert found.samples.keys() == {KEY}
    assert found.faults[KEY._replace(instance="other")].reason is UnknownReason.NOT_FINITE


async def test_a_pod_that_two_jobs_scrape_under_two_addresses_counts_once() -> None:
    twin = {**WHO, "instance": "p-m-0"}

    def answer(query: str) -> Say:
        if query == TIMES:
            return vector((WHO, "95.5"), (twin, "96.0"))
        if query == COUNTERS["tailkeeper_requests_total"]:
            row = {"tier": "t", "generation": "1"}
            return vector(({**WHO, **row}, "10"), ({**twin, **row}, "11"))
        return vector()

    found, _ = await read(answer)
    assert isinstance(found, Reading)
    (sample,) = found.samples[KEY]
    assert sample.time_s == 96.0
    assert [counts.requests for counts in sample.counts.values()] == [11]


async def test_a_constant_number_of_queries_all_at_the_servers_own_time() -> None:
    _, server = await read(healthy)
    assert server.queries == [TIMES, *COUNTERS.values(), TIMES]
    assert len(server.queries) == 9


async def test_headers_and_token_are_sent_and_a_rotated_token_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    server = FaultyServer([healthy])
    with server.running() as url:
        source = PrometheusSource(Access(url + "/", 2.0, {"X-Scope-OrgID": "team-a"}, tmp_path))
        assert isinstance(await source.read(), Reading)
        (tmp_path / "token").write_text("second")
        assert isinstance(await source.read(), Reading)
        source.close()
    assert server.requests[0]["Authorization"] == "Bearer first"
    assert server.requests[-1]["Authorization"] == "Bearer second"
    assert {request["X-Scope-OrgID"] for request in server.requests} == {"team-a"}


async def test_username_and_password_are_sent(tmp_path: Path) -> None:
    (tmp_path / "username").write_text("reader")
    (tmp_path / "password").write_text("word")
    _, server = await read(healthy, credentials=tmp_path)
    assert server.requests[0]["Authorization"] == "Basic cmVhZGVyOndvcmQ="


async def test_an_empty_folder_of_credentials_is_said(tmp_path: Path) -> None:
    found, server = await read(healthy, credentials=tmp_path)
    assert isinstance(found, Unknown)
    assert "has neither token" in found.text
    assert server.queries == []


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:1", "cannot be reached"),
        ("http://prometheus.invalid:9090", "cannot be reached"),
        ("127.0.0.1:9090", "is no address: write http://HOST:PORT"),
        ("http://", "is no address: write http://HOST:PORT"),
    ],
)
async def test_a_wrong_address_is_said(url: str, text: str) -> None:
    source = PrometheusSource(Access(url, 2.0))
    found = await source.read()
    source.close()
    assert isinstance(found, Unknown)
    assert found.reason is UnknownReason.ERROR
    assert text in found.text


async def test_reading_does_not_hold_up_the_event_loop() -> None:
    server = FaultyServer([Say(wait_s=0.5)])
    with server.running() as url:
        source = PrometheusSource(Access(url, 1.0))
        reading = asyncio.create_task(source.read())
        began, ticks = time.monotonic(), 0
        while not reading.done():
            await asyncio.sleep(0.01)
            ticks += 1
        source.close()
    assert ticks > (time.monotonic() - began) / 0.05
