"""`python -m gpu_worker` on MiniLM: what clients that people use get, against the reference library."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
import tritonclient.http as triton
from sentence_transformers import SentenceTransformer
from tritonclient.utils import InferenceServerException

from tests.integration.worker_process import MINILM, WorkerProcess, minilm_worker
from tests.unit.worker.doubles import document

TOLERANCE = 1e-5

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "  spaces   and\nlines\t ",
    "日本語のテキスト と emoji 🎉🎉",
    "word " * 700,
    "Ünïcödé ﬁ ligature, e\u0301 combining",
    "[CLS] looks like a special token [SEP] [MASK]",
    *(f"text number {number} " * (number % 17 + 1) for number in range(25)),
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with minilm_worker(tmp_path_factory.mktemp("minilm"), "--endpoint-delay-seconds", "0.5") as running:
        yield running


@pytest.fixture(scope="module")
def reference() -> dict[str, npt.NDArray[np.float32]]:
    """One text at a time."""
    model = SentenceTransformer(str(MINILM), device="cpu")
    return {text: model.encode([text])[0] for text in TEXTS}


@pytest.fixture
def client(worker: WorkerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_vectors_equal_the_reference_library_whatever_the_batch_mates(
    client: openai.OpenAI, reference: dict[str, npt.NDArray[np.float32]]
) -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        return [entry.embedding for entry in client.embeddings.create(model="minilm", input=texts).data]

    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(embed, [[text] for text in TEXTS]))
    together = embed(TEXTS)
    for text, one, mixed in zip(TEXTS, alone, together, strict=True):
        assert np.abs(np.array(one[0]) - reference[text]).max() < TOLERANCE
        assert np.abs(np.array(mixed) - reference[text]).max() < TOLERANCE


def test_the_openai_client_unmodified(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="minilm", input="hello world")
    assert (answer.model, answer.usage.prompt_tokens, len(answer.data[0].embedding)) == ("minilm", 4, 384)
    floats = client.embeddings.create(model="minilm", input="hello world", encoding_format="float")
    assert floats.data[0].embedding == answer.data[0].embedding
    assert [model.id for model in client.models.list()] == ["minilm"]
    tokens = client.embeddings.create(model="minilm", input=[101, 7592, 2088, 102])
    assert np.abs(np.array(tokens.data[0].embedding) - np.array(answer.data[0].embedding)).max() < TOLERANCE
    tiered = {"tier": "batch", "priority": 2, "deadline_ms": 60_000}
    assert client.embeddings.create(model="minilm", input="x", extra_body=tiered).data
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.embeddings.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        client.embeddings.create(model="minilm", input=[30_522])
    with pytest.raises(openai.BadRequestError, match="unknown tier"):
        client.embeddings.create(model="minilm", input="x", extra_headers={"x-tailkeeper-tier": "gold"})


def test_tritons_client_unmodified(worker: WorkerProcess, reference: dict[str, npt.NDArray[np.float32]]) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{worker.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("minilm", "1")
    metadata = client.get_model_metadata("minilm")
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    texts = np.array(TEXTS[:4], dtype=object)
    for binary in (True, False):
        given = triton.InferInput("text", [4], "BYTES")
        given.set_data_from_numpy(texts, binary_data=binary)
        wanted = triton.InferRequestedOutput("embedding", binary_data=binary)
        result = client.infer("minilm", [given], outputs=[wanted], request_id="q1", priority=1, timeout=60_000_000)
        vectors = result.as_numpy("embedding")
        for text, vector in zip(TEXTS, vectors, strict=False):
            assert np.abs(vector - reference[text]).max() < TOLERANCE
        assert result.get_response()["id"] == "q1"
    with pytest.raises(InferenceServerException, match="does not exist"):
        client.infer("other", [given])


def test_settings_change_without_a_restart(worker: WorkerProcess) -> None:
    def status() -> dict[str, object]:
        answer = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/settings").json()
        assert isinstance(answer, dict)
        return answer

    uptime = status()["uptimeSeconds"]
    beside = worker.settings_file.with_suffix(".new")
    beside.write_text(document(2, ceiling=4))
    beside.rename(worker.settings_file)
    with httpx.Client(base_url=worker.url) as client:
        body = json.dumps({"model": "minilm", "input": "x"})
        statuses = {client.post("/v1/embeddings", content=body).status_code for _ in range(30)}
        while status()["generation"] != 2:
            statuses.add(client.post("/v1/embeddings", content=body).status_code)
    assert statuses == {200}
    assert status()["uptimeSeconds"] > uptime  # type: ignore[operator]


def test_a_model_that_is_not_there_ends_the_worker_with_the_reason(tmp_path: Path) -> None:
    last_words = tmp_path / "termination-log"
    last_words.touch()
    (tmp_path / "settings.json").write_text(document(1))
    arguments = [
        *("--engine", "encoder", "--model-name", "m", "--model-path", str(tmp_path / "nowhere")),
        *("--policy", "default/chat", "--model-instance", "minilm", "--settings-file", str(tmp_path / "settings.json")),
        *("--http-port", "0", "--metrics-port", "0", "--termination-log", str(last_words)),
    ]
    ended = subprocess.run([sys.executable, "-m", "gpu_worker", *arguments], timeout=120, check=False)
    assert ended.returncode == 1
    assert last_words.read_text() == f"LoadError: model folder {tmp_path / 'nowhere'} does not exist"
