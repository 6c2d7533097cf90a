"""A worker's HTTP: OpenAI's API, Open Inference Protocol v2, probes; a bad call hurts nobody but its caller."""

import asyncio
import base64
import json
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from gpu_worker.scheduling import EngineLimits
from tailkeeper.api.settings import Settings
from tests.integration.worker_in_process import Running, eventually, running_worker
from tests.unit.worker.doubles import FifoScheduler, ScriptedEngine, document

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One worker for the tests that change nothing in it."""
    async with running_worker(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def worker(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_worker(tmp_path) as running:
        yield running


async def stepping(engine: ScriptedEngine) -> None:
    """Waits until the first step runs."""

    async def begun() -> bool:
        return bool(engine.batches)

    await eventually(begun)


# OpenAI


async def test_embeddings_as_openai_has_them(shared: Running) -> None:
    answer = await shared.embed(["hello", "hi there"])
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [5.0, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [8.0, 1.0]},
        ],
        "model": "minilm",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


async def test_base64_is_little_endian_float32(shared: Running) -> None:
    data = (await shared.embed("hello", encoding_format="base64")).json()["data"]
    assert struct.unpack("<2f", base64.b64decode(data[0]["embedding"])) == (5.0, 1.0)


@pytest.mark.parametrize(("given", "vectors"), [([1, 2, 3], [[3.0, 1.0]]), ([[1], [2, 3]], [[1.0, 1.0], [2.0, 1.0]])])
async def test_token_arrays_are_taken_as_they_are(shared: Running, given: Any, vectors: list[list[float]]) -> None:
    answer = (await shared.embed(given)).json()
    assert [entry["embedding"] for entry in answer["data"]] == vectors


async def test_server_timing_tells_where_the_time_went(shared: Running) -> None:
    timing = (await shared.embed()).headers["server-timing"]
    parts = dict(part.strip().split(";dur=") for part in timing.split(","))
    assert parts.keys() == {"hold", "busy", "slot", "exec"}
    assert all(float(milliseconds) >= 0 for milliseconds in parts.values())


async def test_dimensions_are_honoured_when_they_are_the_models_and_refused_otherwise(shared: Running) -> None:
    assert (await shared.embed(dimensions=2)).status_code == 200
    assert (await shared.embed(dimensions=1)).status_code == 400


async def test_models(shared: Running) -> None:
    listed = (await shared.http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["minilm"]
    assert (await shared.http.get("/v1/models/minilm")).json()["object"] == "model"
    assert (await shared.http.get("/v1/models/other")).status_code == 404


BAD_BODIES: list[tuple[bytes, int, str | None]] = [
    (b"", 400, None),
    (b"{", 400, None),
    (b"[]", 400, None),
    (b'"text"', 400, None),
    (b"\xff\xfe", 400, None),
    (b'{"model": "minilm", "input": NaN}', 400, None),
    (b'{"model": "minilm", "input": "\\ud800"}', 400, None),
    (b"[" * 100_000, 400, None),
    (b"{}", 400, "model"),
    (b'{"input": "x"}', 400, "model"),
    (b'{"model": null, "input": "x"}', 400, "model"),
    (b'{"model": "other", "input": "x"}', 404, "model"),
    (b'{"model": ["minilm"], "input": "x"}', 404, "model"),
    (b'{"model": "minilm"}', 400, "input"),
    (b'{"model": "minilm", "input": null}', 400, "input"),
    (b'{"model": "minilm", "input": ""}', 400, "input"),
    (b'{"model": "minilm", "input": []}', 400, "input"),
    (b'{"model": "minilm", "input": [""]}', 400, "input"),
    (b'{"model": "minilm", "input": [[]]}', 400, "input"),
    (b'{"model": "minilm", "input": {"text": "x"}}', 400, "input"),
    (b'{"model": "minilm", "input": ["x", 1]}', 400, "input"),
    (b'{"model": "minilm", "input": [1, "x"]}', 400, "input"),
    (b'{"model": "minilm", "input": [1, 1.5]}', 400, "input"),
    (b'{"model": "minilm", "input": [true]}', 400, "input"),
    (b'{"model": "minilm", "input": [[1], "x"]}', 400, "input"),
    (b'{"model": "minilm", "input": [[1], [null]]}', 400, "input"),
    (b'{"model": "minilm", "input": [101]}', 400, "input"),
    (b'{"model": "minilm", "input": "x", "encoding_format": "hex"}', 400, "encoding_format"),
    (b'{"model": "minilm", "input": "x", "encoding_format": 1}', 400, "encoding_format"),
    (b'{"model": "minilm", "input": "x", "dimensions": "2"}', 400, "dimensions"),
    (b'{"model": "minilm", "input": "x", "truncate": "no"}', 400, "truncate"),
    (b'{"model": "minilm", "input": "x", "tier": "gold"}', 400, "tier"),
    (b'{"model": "minilm", "input": "x", "priority": "high"}', 400, "priority"),
    (b'{"model": "minilm", "input": "x", "deadline_ms": "soon"}', 400, "deadline_ms"),
    (b'{"model": "minilm", "input": "x", "deadline_ms": 0}', 504, "deadline_ms"),
]


@pytest.mark.parametrize(("body", "status", "param"), BAD_BODIES)
async def test_a_bad_body_gets_openais_error_shape(
    worker: Running, body: bytes, status: int, param: str | None
) -> None:
    answer = await worker.http.post("/v1/embeddings", content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] == param


async def test_too_long_an_input_is_cut_or_refused_as_the_caller_wishes(shared: Running) -> None:
    long = "word " * 100
    assert (await shared.embed(long)).json()["usage"]["prompt_tokens"] == 32
    refused = await shared.embed(["short", long], truncate=False)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("input 1: the input is longer than")


async def test_too_many_inputs_and_too_large_a_body(tmp_path: Path) -> None:
    async with running_worker(tmp_path, "--max-inputs", "3", "--max-body-bytes", "1000") as worker:
        assert (await worker.embed(["a"] * 3)).status_code == 200
        assert (await worker.embed(["a"] * 4)).status_code == 400
        assert (await worker.embed("a" * 1000)).status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        answer = await worker.http.post("/v1/embeddings", content=chunks())
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/embeddings", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("POST", "/v1/embeddings/", 404),
        ("GET", "/v1/models/", 404),
    ],
)
async def test_a_path_that_is_not_there_gets_the_shape_too(
    worker: Running, method: str, path: str, status: int
) -> None:
    answer = await worker.http.request(method, path)
    assert (answer.status_code, answer.json()["error"].keys()) == (status, {"message", "type", "param", "code"})
    assert (await worker.http.get("/v2/nothing")).json() == {"error": "GET /v2/nothing is not served here"}


async def test_bytes_that_are_no_http_are_answered_and_hurt_nobody(shared: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    writer.write(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    assert (await shared.embed()).status_code == 200


# Failing alone


async def test_batch_mates_of_a_request_that_breaks_the_step_are_unharmed(worker: Running) -> None:
    worker.engine.poison = {"bad"}
    answers = await asyncio.gather(*(worker.embed("bad" if number == 7 else f"good {number}") for number in range(20)))
    assert [answer.status_code for answer in answers] == [500 if number == 7 else 200 for number in range(20)]
    assert answers[7].json()["error"]["code"] == "engine_error"
    assert answers[7].headers["x-should-retry"] == "false"
    assert "poison" not in answers[7].text, "what the engine says is for the log"


async def test_bad_bodies_among_good_ones_leave_them_unharmed(shared: Running) -> None:
    async def bad(body: bytes) -> int:
        return (await shared.http.post("/v1/embeddings", content=body)).status_code

    good = [shared.embed(f"good {number}") for number in range(len(BAD_BODIES))]
    statuses = await asyncio.gather(*good, *(bad(body) for body, _, _ in BAD_BODIES))
    assert all(answer.status_code == 200 for answer in statuses[: len(good)])  # type: ignore[union-attr]
    assert statuses[len(good) :] == [status for _, status, _ in BAD_BODIES]


async def test_a_crashed_engine_is_503_and_retryable_and_comes_back(worker: Running) -> None:
    worker.engine.broken = "device lost"
    answer = await worker.embed()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["type"] == "service_unavailable_error"
    assert (await worker.http.get("/readyz")).status_code == 503
    worker.engine.broken = None
    await worker.until_ready()
    assert (await worker.embed()).status_code == 200


async def test_a_client_that_goes_away_frees_its_place(tmp_path: Path) -> None:
    engine = ScriptedEngine(gate=threading.Event())
    async with running_worker(tmp_path, engine=engine) as worker:
        first = asyncio.create_task(worker.embed("first"))
        await stepping(engine)
        _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        body = json.dumps({"model": "minilm", "input": ["gone", "gone too"]}).encode()
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

        async def two_wait() -> bool:
            return (await worker.series())['tailkeeper_queue_length{tier="interactive"}'] == 2

        async def none_waits() -> bool:
            return (await worker.series())['tailkeeper_queue_length{tier="interactive"}'] == 0

        await eventually(two_wait)
        writer.close()
        await eventually(none_waits, 1)
        series = await worker.series()
        assert series['tailkeeper_requests_total{generation="1",outcome="cancelled",tier="interactive"}'] == 2
        engine.gate.set()  # type: ignore[union-attr]
        assert (await first).status_code == 200
        assert engine.batches == [["first"]], "nobody computes for who is gone"


# Overload and deadlines


async def test_a_deadline_that_passes_while_a_long_batch_runs_is_504_within_50_ms(tmp_path: Path) -> None:
    engine = ScriptedEngine(gate=threading.Event())
    async with running_worker(tmp_path, engine=engine) as worker:
        first = asyncio.create_task(worker.embed("first"))
        await stepping(engine)
        begun = asyncio.get_running_loop().time()
        late = await worker.embed("late", headers={"x-tailkeeper-deadline-ms": "200"})
        took_s = asyncio.get_running_loop().time() - begun
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "deadline_exceeded"
        assert "server-timing" in late.headers
        assert 0.19 <= took_s < 0.3
        engine.gate.set()  # type: ignore[union-attr]
        assert (await first).status_code == 200


def full_at_three(settings: Settings, now_s: float, limits: EngineLimits) -> FifoScheduler:
    scheduler = FifoScheduler(settings, now_s, limits)
    scheduler.full_at = 3
    return scheduler


async def test_a_shed_request_is_429_with_retry_after_and_takes_the_whole_call_with_it(tmp_path: Path) -> None:
    engine = ScriptedEngine(gate=threading.Event())
    async with running_worker(tmp_path, engine=engine, scheduler=full_at_three) as worker:
        first = asyncio.create_task(worker.embed("first"))
        await stepping(engine)
        shed = await worker.embed(["a", "b", "c", "d", "e"])
        assert shed.status_code == 429
        assert shed.headers["retry-after"] == "3"
        assert shed.json()["error"]["type"] == "rate_limit_error"
        series = await worker.series()
        assert series['tailkeeper_queue_length{tier="interactive"}'] == 0, "its other inputs would be work for nobody"
        assert series['tailkeeper_requests_total{generation="1",outcome="shed",tier="interactive"}'] == 4
        assert series['tailkeeper_requests_total{generation="1",outcome="cancelled",tier="interactive"}'] == 0, (
            "nobody left: they count as what happened to the call"
        )
        engine.gate.set()  # type: ignore[union-attr]
        assert (await first).status_code == 200


# Open Inference Protocol v2


def infer_body(data: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    texts = ["hello", "hi there"] if data is None else data
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return {"inputs": [tensor | changes.pop("tensor", {})], **changes}


async def test_infer_in_json(shared: Running) -> None:
    answer = await shared.http.post("/v2/models/minilm/infer", json=infer_body(id="42"))
    assert answer.status_code == 200
    assert answer.json() == {
        "model_name": "minilm",
        "model_version": "1",
        "id": "42",
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [2, 2], "data": [5.0, 1.0, 8.0, 1.0]}],
    }


async def test_infer_in_binary(shared: Running) -> None:
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in (b"hello", "né".encode()))
    tensor = {"name": "text", "shape": [2, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    outputs = [{"name": "embedding", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    answer = await shared.http.post("/v2/models/minilm/versions/1/infer", content=head + raw, headers=headers)
    length = int(answer.headers["inference-header-content-length"])
    described = json.loads(answer.content[:length])["outputs"][0]
    assert described["parameters"] == {"binary_data_size": 16}
    assert np.frombuffer(answer.content[length:], "<f4").tolist() == [5, 1, 2, 1]


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"inputs": []},
        {"inputs": [1]},
        infer_body(tensor={"name": "other"}),
        infer_body(tensor={"datatype": "FP32"}),
        infer_body(tensor={"shape": [3]}),
        infer_body(tensor={"shape": []}),
        infer_body(["one"], tensor={"shape": []}),
        infer_body([], tensor={"shape": [0]}),
        infer_body(tensor={"shape": "2"}),
        infer_body(tensor={"shape": [-2]}),
        infer_body(tensor={"data": "hello"}),
        infer_body(tensor={"data": [["a"], "b"]}),
        infer_body(tensor={"parameters": {"binary_data_size": 10}}),
        infer_body(tensor={"parameters": []}),
        infer_body([]),
        infer_body([1, 2]),
        infer_body(["", "x"]),
        infer_body(id=3),
        infer_body(outputs=[{"name": "logits"}]),
        infer_body(outputs="embedding"),
        infer_body(parameters={"tier": "gold"}),
        infer_body(parameters={"timeout": "long"}),
        infer_body(parameters=[]),
    ],
)
async def test_a_bad_infer_body_gets_the_protocols_error_shape(shared: Running, body: Any) -> None:
    answer = await shared.http.post("/v2/models/minilm/infer", json=body)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}


@pytest.mark.parametrize(
    "raw", [b"\x05\x00\x00\x00hell", b"\x05\x00", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00\xff\xfe"]
)
async def test_bad_binary_data_is_400(shared: Running, raw: bytes) -> None:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    for length in (str(len(head)), str(len(head) - 1), "-1", "many", str(10**6)):
        headers = {"inference-header-content-length": length}
        answer = await shared.http.post("/v2/models/minilm/infer", content=head + raw, headers=headers)
        assert answer.status_code == 400


async def test_tritons_timeout_in_microseconds_is_a_deadline(tmp_path: Path) -> None:
    engine = ScriptedEngine(gate=threading.Event())
    async with running_worker(tmp_path, engine=engine) as worker:
        first = asyncio.create_task(worker.embed("first"))
        await stepping(engine)
        late = await worker.http.post("/v2/models/minilm/infer", json=infer_body(parameters={"timeout": 100_000}))
        assert late.status_code == 504
        assert late.json()["error"].startswith("the deadline passed after 1")
        engine.gate.set()  # type: ignore[union-attr]
        await first


async def test_v2_metadata_and_health(shared: Running) -> None:
    get = shared.http.get
    assert (await get("/v2")).json()["extensions"] == ["binary_tensor_data"]
    assert (await get("/v2/models/minilm")).json()["outputs"] == [
        {"name": "embedding", "datatype": "FP32", "shape": [-1, 2]}
    ]
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/minilm/ready",
        "/v2/models/minilm/versions/1/ready",
    ):
        assert (await get(path)).status_code == 200
    assert (await get("/v2/models/minilm/versions/2")).status_code == 400
    assert (await get("/v2/models/other/ready")).json()["error"].startswith("the model 'other' does not exist")


# API keys


async def test_api_keys_are_asked_for_everywhere_but_at_the_probes(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "team-a").write_text("alpha batch,standard")
    async with running_worker(tmp_path, "--api-keys-dir", str(keys)) as worker:
        refused = await worker.embed()
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        good = {"authorization": "Bearer alpha"}
        assert (await worker.embed(headers=good)).status_code == 200
        assert (await worker.embed(headers=good, tier="interactive")).status_code == 403
        assert (await worker.http.post("/v2/models/minilm/infer", json=infer_body())).json().keys() == {"error"}
        assert (await worker.http.get("/v1/models")).status_code == 401
        assert (await worker.http.get("/settings")).status_code == 401
        for path in ("/readyz", "/healthz", "/v2/health/ready"):
            assert (await worker.http.get(path)).status_code == 200
        assert (await worker.metrics.get("/settings")).status_code == 200
        series = await worker.series()
        assert series['tailkeeper_requests_total{generation="1",outcome="ok",tier="standard"}'] == 1


# Settings and probes


async def test_settings_change_live_under_load_and_every_request_is_answered(worker: Running) -> None:
    worker.engine.pause_s = 0.002
    stop = asyncio.Event()
    statuses: list[int] = []

    async def client() -> None:
        while not stop.is_set():
            statuses.append((await worker.embed()).status_code)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for generation in range(2, 8):
        worker.change_settings(document(generation, ceiling=2**generation // 4))
        await worker.until_settings(generation=generation)
    stop.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert (await worker.series())["tailkeeper_window_ceiling"] == 32


async def test_what_a_worker_says_about_its_settings(worker: Running) -> None:
    status = (await worker.metrics.get("/settings")).json()
    assert (status["generation"], status["source"], status["refused"], status["lastRefusal"]) == (1, "file", 0, None)
    assert (status["podName"], status["podUid"], status["modelInstance"]) == ("chat-minilm-0", "uid-0", "minilm")
    assert status["ready"] is True
    assert status["settings"]["tiers"][0]["name"] == "interactive"
    worker.change_settings("{")
    status = await worker.until_settings(refused=1, generation=1)
    assert "Invalid JSON" in status["lastRefusal"]
    assert (await worker.series())["tailkeeper_settings_refused_total"] == 1
    assert (await worker.embed()).status_code == 200
    worker.change_settings(document(1))
    await worker.until_settings(lastRefusal=None)


async def test_a_hung_step_fails_the_liveness_probe(tmp_path: Path) -> None:
    engine = ScriptedEngine(gate=threading.Event())
    async with running_worker(tmp_path, "--hang-seconds", "0.2", engine=engine) as worker:
        assert (await worker.http.get("/healthz")).json() == {"live": True, "reason": ""}
        hung = asyncio.create_task(worker.embed())
        await stepping(engine)
        assert (await worker.http.get("/healthz")).status_code == 200
        await asyncio.sleep(0.3)
        dead = await worker.http.get("/healthz")
        assert dead.status_code == 503
        assert dead.json()["reason"].startswith("a step has been running for")
        engine.gate.set()  # type: ignore[union-attr]
        assert (await hung).status_code == 200
        assert (await worker.http.get("/healthz")).status_code == 200


async def test_three_crashes_in_a_row_are_not_ready_with_the_reason(worker: Running) -> None:
    worker.engine.broken = worker.engine.broken_load = "device lost"
    assert (await worker.embed()).status_code == 503

    async def gave_up() -> bool:
        reason = (await worker.http.get("/readyz")).json()["reason"]
        return "3 times in a row" in reason and "device lost" in reason

    await eventually(gave_up, 20)
    assert (await worker.embed()).status_code == 503


# Draining


async def test_a_draining_worker_serves_on_and_asks_its_clients_to_leave(tmp_path: Path) -> None:
    async with running_worker(tmp_path, "--endpoint-delay-seconds", "0.5") as worker:
        assert "connection" not in (await worker.embed()).headers
        worker.worker.stop()
        await asyncio.sleep(0.05)
        ready = await worker.http.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
        served = await worker.embed()
        assert (served.status_code, served.headers["connection"]) == (200, "close")
        worker.worker.stop()
        assert (await worker.embed()).status_code == 200, "a second signal kills nobody"
        await asyncio.wait_for(worker.task, 5)


async def test_what_is_in_flight_is_finished_and_what_takes_too_long_is_told_so(tmp_path: Path) -> None:
    engine = ScriptedEngine(gate=threading.Event())
    async with running_worker(tmp_path, "--drain-seconds", "1.5", engine=engine) as worker:
        first = asyncio.create_task(worker.embed("first"))
        await stepping(engine)
        second = asyncio.create_task(worker.embed("second"))
        await asyncio.sleep(0.05)
        worker.worker.stop()
        answers = await asyncio.wait_for(asyncio.gather(first, second), 5)
        assert [answer.status_code for answer in answers] == [503, 503]
        assert "shutting down" in answers[0].json()["error"]["message"]
        await asyncio.wait_for(worker.task, 5)
        engine.gate.set()  # type: ignore[union-attr]
