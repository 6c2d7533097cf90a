"""The tuner's counters through a real Prometheus, of both generations that people run."""

import asyncio
import itertools
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gpu_worker.scheduling.interface import Outcome, Waits
from tailkeeper.control.history import History
from tailkeeper.control.observation import Value
from tailkeeper.control.samples import CounterKey, Reading, Unknown, UnknownReason
from tailkeeper.signals.direct import DirectSource, Target
from tailkeeper.signals.prometheus import PrometheusSource
from tailkeeper.signals.query import Access
from tests.integration.exporters import exporting
from tests.integration.prometheus_server import GENERATIONS, PrometheusServer, Scrape
from tests.unit.signals.worker_pages import KEY, WorkerPage, served

WITHIN_S = 60.0


@pytest.fixture(params=GENERATIONS)
def prometheus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrometheusServer]:
    server = PrometheusServer(tmp_path, request.param)
    yield server
    server.stop()


@pytest.fixture
def source(prometheus: PrometheusServer) -> Iterator[PrometheusSource]:
    source = PrometheusSource(Access(prometheus.url, 4.0))
    yield source
    source.close()


async def eventually(source: PrometheusSource, wanted: Callable[[Reading | Unknown], bool]) -> Reading | Unknown:
    deadline = time.monotonic() + WITHIN_S
    while True:
        found = await source.read()
        if wanted(found):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


def requests(found: Reading | Unknown, generation: int = 1) -> float:
    """Of the interactive tier, of all pods; 0 while nothing is there."""
    if isinstance(found, Unknown):
        return 0
    key = CounterKey(generation, "interactive")
    return sum(sample.counts[key].requests for sample in found.samples.get(KEY, ()) if key in sample.counts)


async def test_it_reads_what_a_direct_scrape_reads(prometheus: PrometheusServer, source: PrometheusSource) -> None:
    page = served()
    with exporting(page) as address:
        prometheus.configure([Scrape(address, {"pod": "demo-encoder-0"})])
        prometheus.start()
        found = await eventually(source, lambda found: requests(found) == 8)
        direct = DirectSource()
        host, _, port = address.partition(":")
        straight = await direct.read([Target(KEY, "demo-encoder-0", host, int(port))])
        await direct.close()
    assert isinstance(found, Reading)
    (by_prometheus,), (by_scrape,) = found.samples[KEY], straight.samples[KEY]
    assert by_prometheus.counts == by_scrape.counts
    assert (by_prometheus.busy_s, by_prometheus.work) == (by_scrape.busy_s, by_scrape.work)
    assert by_prometheus.gauges.queue == {"interactive": 7}, "a queue of none is left out"
    assert by_prometheus.gauges.latency_model == by_scrape.gauges.latency_model
    assert by_prometheus.gauges.window_cap == by_scrape.gauges.window_cap
    assert abs(by_prometheus.time_s - time.time()) < 5


async def test_the_samples_own_times_move_with_the_scrape_and_not_with_the_read(
    prometheus: PrometheusServer, source: PrometheusSource
) -> None:
    prometheus.interval = "1s"
    with exporting(served()) as address:
        prometheus.configure([Scrape(address, {"pod": "demo-encoder-0"})])
        prometheus.start()
        await eventually(source, lambda found: requests(found) > 0)
        times = []
        for _ in range(15):
            found = await source.read()
            assert isinstance(found, Reading)
            times += [sample.time_s for sample in found.samples.get(KEY, ())]
            await asyncio.sleep(0.2)
    distinct = sorted(set(times))
    assert 2 <= len(distinct) <= 5
    assert all(later - earlier > 0.7 for earlier, later in itertools.pairwise(distinct)), "a read takes 0.2 s"


async def test_two_jobs_on_one_pod_do_not_double_it_and_two_pods_add_up(
    prometheus: PrometheusServer, source: PrometheusSource
) -> None:
    with exporting(served()) as one, exporting(served()) as two:
        prometheus.configure(
            [Scrape(one, {"pod": "demo-encoder-0"}), Scrape(one, {"pod": "demo-encoder-0"}), Scrape(two)]
        )
        prometheus.start()
        found = await eventually(source, lambda found: requests(found) == 16)
    assert isinstance(found, Reading)
    assert sorted(sample.pod for sample in found.samples[KEY]) == sorted(["demo-encoder-0", two])


async def test_a_target_that_is_gone_is_absent_and_not_idle(
    prometheus: PrometheusServer, source: PrometheusSource
) -> None:
    history = History()
    with exporting(served()) as address:
        prometheus.configure([Scrape(address, {"pod": "demo-encoder-0"})])
        prometheus.start()
        await eventually(source, lambda found: requests(found) > 0)
    found = await eventually(source, lambda found: isinstance(found, Reading) and not found.samples)
    assert isinstance(found, Reading)
    observation = history.observe(found.of(KEY), {"demo-encoder-0"}, time.time())
    assert isinstance(observation, Unknown)
    assert observation.reason is UnknownReason.ABSENT


async def test_a_prometheus_without_targets_has_nothing_and_says_nothing_wrong(
    prometheus: PrometheusServer, source: PrometheusSource
) -> None:
    prometheus.configure([])
    prometheus.start()
    assert await source.read() == Reading()


async def test_it_goes_away_and_comes_back(prometheus: PrometheusServer, source: PrometheusSource) -> None:
    with exporting(served()) as address:
        prometheus.configure([Scrape(address, {"pod": "demo-encoder-0"})])
        prometheus.start()
        await eventually(source, lambda found: requests(found) > 0)
        prometheus.stop()
        gone = await source.read()
        assert isinstance(gone, Unknown)
        assert gone.reason is UnknownReason.ERROR
        assert "cannot be reached" in gone.text
        prometheus.start()
        await eventually(source, lambda found: requests(found) > 0)


async def test_look_backs_from_a_real_scrape_count_exactly(
    prometheus: PrometheusServer, source: PrometheusSource
) -> None:
    page, history = WorkerPage(), History()
    with exporting(page) as address:
        prometheus.configure([Scrape(address, {"pod": "demo-encoder-0"})])
        prometheus.start()
        first = await eventually(source, lambda found: isinstance(found, Reading) and KEY in found.samples)
        assert isinstance(first, Reading)
        history.observe(first.of(KEY), None, time.time())
        page.serve(Outcome.OK, 90)
        page.serve(Outcome.LATE, 10, Waits(slot_s=1.0))
        page.apply(2)
        page.serve(Outcome.OK, 50)
        last = await eventually(source, lambda found: requests(found) == 100 and requests(found, 2) == 50)
        assert isinstance(last, Reading)
        observation = history.observe(last.of(KEY), None, time.time())
    assert isinstance(observation, Value)
    old, new = (observation.short.counts(generation, "interactive") for generation in (1, 2))
    assert (old.requests, old.late, old.slot_s, old.nn, old.kk) == (100, 10, 10, 90**2 + 10**2, 100)
    assert (new.requests, new.late) == (50, 0)


async def test_quantiles_for_people_and_one_beyond_the_last_edge(
    prometheus: PrometheusServer, source: PrometheusSource
) -> None:
    page = WorkerPage()
    with exporting(page) as address:
        prometheus.configure([Scrape(address, {"pod": "demo-encoder-0"})])
        prometheus.start()
        await eventually(source, lambda found: isinstance(found, Reading) and KEY in found.samples)
        assert await source.read_latencies(60) == {}, "nothing served is no latency, not one of zero"
        page.serve(Outcome.OK, 96, Waits(exec_s=0.05))
        page.serve(Outcome.LATE, 4, Waits(exec_s=60.0))
        deadline = time.monotonic() + WITHIN_S
        while not (latencies := await source.read_latencies(60)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    assert not isinstance(latencies, Unknown)
    (interactive,) = latencies[KEY]
    assert interactive.tier == "interactive"
    assert interactive.p99.beyond
    assert interactive.p99.seconds == pytest.approx(1.6), "8 times the SLA is the last edge, not the value"
    assert not interactive.p95.beyond
    assert interactive.p95.seconds <= 0.06
    assert interactive.mean_s == pytest.approx(2.448, rel=0.01)


def certificates(folder: Path) -> None:
    """A CA, and with it one certificate for the server at 127.0.0.1 and one for the client."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr")
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1")
        openssl(
            "x509", "-req", "-in", "csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-extfile", "ext", "-out", f"{name}.crt"
        )


async def test_mutual_tls(prometheus: PrometheusServer, tmp_path: Path) -> None:
    certificates(tmp_path)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "ca.crt").write_bytes((tmp_path / "ca.crt").read_bytes())
    prometheus.web = {
        "tls_server_config": {
            "cert_file": "server.crt",
            "key_file": "server.key",
            "client_ca_file": "ca.crt",
            "client_auth_type": "RequireAndVerifyClientCert",
        }
    }
    prometheus.configure([])
    trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    trusting.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    with httpx.Client(verify=trusting) as probe:
        prometheus.start(probe)

    async def read(credentials: Path | None) -> Reading | Unknown:
        source = PrometheusSource(Access(prometheus.url, 4.0, credentials=credentials))
        try:
            return await source.read()
        finally:
            source.close()

    strange = await read(None)
    assert isinstance(strange, Unknown)
    assert "is its CA in ca.crt" in strange.text
    assert isinstance(await read(secret), Unknown), "no certificate of ours"
    (secret / "tls.crt").write_bytes((tmp_path / "client.crt").read_bytes())
    (secret / "tls.key").write_bytes((tmp_path / "client.key").read_bytes())
    assert await read(secret) == Reading()
