"""The load generator against servers whose latencies and manners are known."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tailkeeper.bench.measured import columns
from tailkeeper.bench.outcome import Outcome
from tailkeeper.bench.plan import Api, Limits, Plan, Target
from tailkeeper.bench.probe import TargetError
from tailkeeper.bench.progress import Progress
from tailkeeper.bench.run import NotStartedError, SenderDiedError, measure, run_load
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_sizes import parse_sizes
from tailkeeper.model.loads import parse_arrivals
from tests.integration.bench_servers import EMBEDDING, polite, request_of, rude, sse

TIMING = {"server-timing": "hold;dur=2, busy;dur=1, slot;dur=0.5, exec;dur=6"}


def load(tier: str, arrivals: str, prompt: str = "5", output: str = "5", **more: Any) -> TierLoad:
    return TierLoad(tier, parse_arrivals(arrivals), parse_sizes(prompt), parse_sizes(output), **more)


def plan(
    url: str, *loads: TierLoad, api: Api = Api.EMBEDDINGS, target: dict[str, Any] | None = None, **more: Any
) -> Plan:
    return Plan(Target(url, api, **(target or {})), loads, **{"duration_s": 1.0, **more})


async def quick(request: web.Request, number: int) -> web.StreamResponse:
    return web.json_response(EMBEDDING, headers=TIMING)


async def test_latencies_tiers_and_waits_are_the_servers() -> None:
    async def by_tier(request: web.Request, number: int) -> web.StreamResponse:
        await asyncio.sleep(0.08 if request.headers["x-tailkeeper-tier"] == "batch" else 0.02)
        return web.json_response(EMBEDDING, headers=TIMING)

    loads = load("interactive", "poisson:40", deadline_ms=50), load("batch", "constant:30", tenant="reports")
    with polite(by_tier) as server:
        report = await run_load(
            plan(
                server.url,
                *loads,
                duration_s=2,
                limits={"interactive": Limits(sla_ms=1000), "batch": Limits(sla_ms=40)},
            )
        )
    fast, slow = report.tier("interactive"), report.tier("batch")
    assert fast.latency_ms is not None
    assert slow.latency_ms is not None
    assert 20 <= fast.latency_ms.p50 < 40
    assert 80 <= slow.latency_ms.p50 < 100
    assert (fast.late_ratio, slow.late_ratio) == (0.0, 1.0)
    assert slow.sent == 60
    assert fast.statuses == {"200": fast.sent}
    assert report.model == "mini"
    assert slow.waits is not None
    assert (slow.waits.hold_ms.p99, slow.waits.waiting_ms.p99, slow.waits.exec_ms.p99) == (2, 3.5, 6)
    heads = [seen.headers for seen in server.seen]
    assert {h.get("x-tailkeeper-deadline-ms") for h in heads if h["x-tailkeeper-tier"] == "interactive"} == {"50"}
    assert {h.get("x-tailkeeper-tenant") for h in heads if h["x-tailkeeper-tier"] == "batch"} == {"reports"}
    assert all(len(json.loads(seen.body)["input"].split()) in (5, 8) for seen in server.seen)


async def test_a_server_that_stalls_is_charged_for_all_whom_it_kept_waiting() -> None:
    """What a closed loop omits: of a stall of 1 s it would see one slow request; 200 were meant to be sent."""

    async def stalls(request: web.Request, number: int) -> web.StreamResponse:
        if number == 100:
            time.sleep(1.0)  # noqa: ASYNC251 - the whole server stands still
        return web.json_response(EMBEDDING)

    the_plan: Plan
    with polite(stalls) as server:
        the_plan = plan(server.url, load("a", "constant:200"), duration_s=2.5)
        measured = await measure(the_plan)
    every = columns(the_plan, measured)
    assert len(every) == 500
    stall_s = 99 / 200  # the first POST was the probe's
    for intended_s, latency_ms in zip(every.intended_s, every.latency_ms, strict=True):
        if stall_s < intended_s < stall_s + 1:
            assert latency_ms >= 1000 * (stall_s + 1 - intended_s) - 25
    assert (every.latency_ms > 500).sum() >= 90
    assert every.lag_ms.max() < 200


async def test_outcomes_are_counted_and_what_is_missing_counts_as_its_timeout() -> None:
    async def moody(request: web.Request, number: int) -> web.StreamResponse:
        match number % 10:
            case 1:
                return web.json_response({"error": {"message": "queue full"}}, status=429)
            case 2:
                return web.json_response({"error": {"message": "too late"}}, status=504)
            case 3:
                return web.json_response({"error": {"message": "engine broke"}}, status=500)
            case 4:
                await asyncio.sleep(30)
            case 5:
                await asyncio.sleep(0.05)
                assert request.transport is not None
                request.transport.abort()
        return web.json_response(EMBEDDING)

    with polite(moody) as server:
        report = await run_load(plan(server.url, load("a", "constant:50"), other_limits=Limits(100, 400), duration_s=2))
    tier = report.tier("a")
    outcomes = tier.outcomes
    assert (outcomes.shed, outcomes.expired, outcomes.timeout, outcomes.error) == (10, 10, 10, 20)
    assert outcomes.ok == 50
    assert tier.statuses == {"200": 50, "429": 10, "504": 10, "500": 10, "none": 20}
    assert (tier.late_ratio, tier.timeout_ratio, tier.error_ratio) == (0.5, 0.3, 0.2)
    assert tier.latency_ms is not None
    assert tier.latency_ms.p90 == 400
    assert any("engine broke" in error.what and error.count == 10 for error in report.errors)
    assert tier.breaches[0].inside_s is None


async def test_streams_give_first_token_gaps_and_tokens() -> None:
    async def tokens(request: web.Request, number: int) -> web.StreamResponse:
        wanted = json.loads(await request.read())["max_tokens"]

        async def events() -> AsyncIterator[str]:
            yield 'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
            await asyncio.sleep(0.1)
            for n in range(wanted):
                await asyncio.sleep(0.02 if n else 0)
                yield 'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
            usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": wanted + 1}}
            yield f"data: {json.dumps(usage)}\n\n: server-timing hold;dur=3, busy;dur=0, slot;dur=0, exec;dur=90\n\n"
            yield "data: [DONE]\n\n"

        return await sse(request, events())

    with polite(tokens) as server:
        report = await run_load(plan(server.url, load("a", "constant:10", output="6"), api=Api.CHAT, duration_s=2))
    tier = report.tier("a")
    assert tier.first_token_ms is not None
    assert tier.inter_token_ms is not None
    assert tier.latency_ms is not None
    assert tier.waits is not None
    assert 100 <= tier.first_token_ms.p50 < 125
    assert 18 < tier.inter_token_ms.p50 < 30
    assert 200 <= tier.latency_ms.p50 < 260
    assert tier.inter_token_ms.count == 20 * 5
    assert tier.output_tokens_per_s == 20 * 7 / 2
    assert tier.waits.hold_ms.p50 == 3


@pytest.mark.parametrize(
    ("ending", "outcome", "what"),
    [
        ("", "error", "the stream ended without [DONE]"),
        ('data: {"error": {"message": "engine broke"}}\n\ndata: [DONE]\n\n', "error", "engine broke"),
        ('data: {"error": {"message": "too late", "code": "deadline_exceeded"}}\n\n', "expired", "too late"),
        ('data: {"error": {"message": "full", "code": 429}}\n\n', "shed", "full"),
    ],
)
async def test_a_stream_that_breaks_off_is_what_it_says(ending: str, outcome: str, what: str) -> None:
    async def breaks(request: web.Request, number: int) -> web.StreamResponse:
        async def events() -> AsyncIterator[str]:
            yield 'data: {"choices":[{"text":"x"}]}\n\n'
            yield "data: [DONE]\n\n" if number == 0 else ending

        return await sse(request, events())

    with polite(breaks) as server:
        report = await run_load(plan(server.url, load("a", "constant:10"), api=Api.COMPLETIONS))
    assert getattr(report.tier("a").outcomes, outcome) == 10
    assert report.errors[0].what == what


async def test_v2_sends_the_tensor_that_the_model_says() -> None:
    async def outputs(request: web.Request, number: int) -> web.StreamResponse:
        return web.json_response({"model_name": "mini", "outputs": [{"name": "out", "data": [1]}]})

    with polite(outputs) as server:
        report = await run_load(plan(server.url, load("a", "constant:10"), api=Api.V2))
    assert report.tier("a").outcomes.ok == 10
    assert {json.loads(seen.body)["inputs"][0]["name"] for seen in server.seen} == {"words"}


async def test_an_idle_connection_closed_under_a_request_is_no_error() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hangs up just as a third request arrives, without having said so, as an idle timeout does."""
        body = json.dumps(EMBEDDING).encode()
        for _ in range(2):
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read(1)
        writer.close()

    with rude(closes) as server:
        the_plan = plan(server.url, load("a", "constant:50"), target={"model": "m"})
        measured = await measure(the_plan)
    every = columns(the_plan, measured)
    assert set(every.outcome) == {Outcome.ANSWERED}
    assert set(every.attempts) == {1, 2}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate of localhost, and a server's context with it."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    new = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command = ["openssl", "req", *new, *subject, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


async def test_certificates_are_checked(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, context = certificate
    with polite(quick, tls=context) as server:
        url = f"https://localhost:{server.port}"
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(url)
        unchecked = await run_load(plan(url, load("a", "constant:20"), target={"verify_tls": False}))
        assert unchecked.tier("a").outcomes.ok == 20
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert (await run_load(plan(url, load("a", "constant:20")))).tier("a").outcomes.ok == 20


async def test_a_server_that_dies_under_load_is_errors_and_an_end() -> None:
    with polite(quick) as server:
        task = asyncio.create_task(run_load(plan(server.url, load("a", "constant:100"), duration_s=2)))
        await asyncio.sleep(1.5)
    report = await task
    tier = report.tier("a")
    assert tier.sent == 200
    assert tier.outcomes.ok > 20
    assert tier.outcomes.error > 20
    assert tier.outcomes.ok + tier.outcomes.error == 200
    assert any("refused" in error.what.lower() for error in report.errors)


async def test_several_processes_send_the_load_once() -> None:
    load_of_both = load("a", "poisson:100"), load("b", "gamma:50,2")
    bodies = []
    for processes in (1, 3):
        with polite(quick) as server:
            report = await run_load(plan(server.url, *load_of_both, duration_s=1.5, processes=processes, probe=False))
        assert report.generator.processes == processes
        assert report.total.sent == len(server.seen)
        bodies.append(sorted(seen.body for seen in server.seen))
    assert bodies[0] == bodies[1]


async def test_stopped_early_it_reports_what_it_has() -> None:
    async def slow(request: web.Request, number: int) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response(EMBEDDING)

    stop = asyncio.Event()
    looks: list[Progress] = []
    with polite(slow) as server:
        the_plan = plan(server.url, load("a", "constant:50"), duration_s=60)
        task = asyncio.create_task(run_load(the_plan, looks.append, stop))
        await asyncio.sleep(3)
        stop.set()
        report = await asyncio.wait_for(task, 5)
    tier = report.tier("a")
    assert report.interrupted
    assert 10 < tier.sent < 200
    assert 5 <= tier.outcomes.unfinished <= 25
    assert tier.outcomes.ok == tier.sent - tier.outcomes.unfinished
    assert report.duration_s < 4
    assert looks[-1].planned == 3000
    assert looks[-1].in_flight > 0
    assert looks[-1].tiers[0].p99_ms is not None
    assert not children()


async def test_stopped_before_it_began_there_is_nothing_to_report() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    stop = asyncio.Event()
    with rude(silent) as server:
        task = asyncio.create_task(run_load(plan(server.url, load("a", "constant:10")), stop=stop))
        await asyncio.sleep(0.2)
        stop.set()
        with pytest.raises(NotStartedError):
            await asyncio.wait_for(task, 1)


async def test_a_sender_that_is_killed_is_said() -> None:
    with polite(quick) as server:
        task = asyncio.create_task(run_load(plan(server.url, load("a", "constant:50"), duration_s=60)))
        while not children():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SenderDiedError, match="-9"):
            await asyncio.wait_for(task, 5)


def children() -> list[int]:
    """Processes that this one started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" ", 1)
        except OSError:
            continue  # gone meanwhile
        state, parent = rest.rpartition(")")[2].split()[:2]
        if parent == str(os.getpid()) and state != "Z":
            found.append(int(pid))
    return found


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def refused(url: str, **more: Any) -> str:
    with pytest.raises(TargetError) as caught:
        await run_load(plan(url, load("a", "constant:10"), **more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_nobody_there_is_one_line() -> None:
    assert "connection refused" in await refused(nobody())
    assert "'no.such.host.invalid' is not known" in await refused("http://no.such.host.invalid")


async def test_a_server_that_refuses_the_first_request_is_one_line() -> None:
    async def picky(request: web.Request, number: int) -> web.StreamResponse:
        if request.path != "/v1/embeddings":
            return web.Response(status=404, text="<html>\nno such\npage</html>", content_type="text/html")
        if request.headers["x-tailkeeper-tier"] == "a":
            return web.json_response({"error": {"message": "unknown tier 'a'; there are x, y"}}, status=400)
        return web.json_response(EMBEDDING)

    with polite(picky) as server:
        assert "tier 'a' got 400: unknown tier 'a'; there are x, y" in await refused(server.url)
        assert "got 404: <html> no such page</html>" in await refused(f"{server.url}/v1/completions")


async def test_what_is_no_api_is_one_line() -> None:
    async def page(request: web.Request, number: int) -> web.StreamResponse:
        return web.Response(text="<html>welcome</html>", content_type="text/html")

    with polite(page) as server:
        assert "no embeddings API" in await refused(server.url)
        assert "ended without [DONE]" in await refused(server.url, api=Api.CHAT)


async def test_what_is_no_http_is_one_line() -> None:
    async def ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await reader.read()
        writer.close()

    with rude(ssh) as server:
        assert "not HTTP" in await refused(server.url, target={"model": "m"})
        assert "not HTTP" in await refused(server.url)


async def test_a_server_that_never_answers_is_one_line() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with rude(silent) as server:
        found = await refused(server.url, target={"model": "m"}, other_limits=Limits(timeout_ms=300))
        assert "no answer within 1 s" in found


async def test_a_busy_server_is_a_warning_and_is_loaded() -> None:
    async def busy(request: web.Request, number: int) -> web.StreamResponse:
        return web.json_response(EMBEDDING) if number else web.json_response({"error": "full"}, status=429)

    with polite(busy) as server:
        report = await run_load(plan(server.url, load("a", "constant:10")))
    assert report.tier("a").outcomes.ok == 10
    assert "busy already" in report.warnings[0]
