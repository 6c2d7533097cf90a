"""Chat and completions over real HTTP with the client that people use, on a small model and the real scheduler."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from gpu_worker.engines.causal_lm import CausalLm
from tailkeeper.api.enums import Mode
from tests.integration.tiny_causal import END, loaded, tiny_model
from tests.integration.worker_in_process import Running, eventually, running_worker
from tests.unit.worker.doubles import document

MODEL = "minilm"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello 🎉"}]
NO_END = {"ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_model(tmp_path_factory.mktemp("tiny"))
    loaded(made)  # torch and transformers are imported: that takes longer than a worker has to be ready
    return made


@pytest.fixture
def engine(folder: Path) -> CausalLm:
    return loaded(folder)


@pytest.fixture
async def worker(tmp_path: Path, engine: CausalLm) -> AsyncIterator[Running]:
    settings = document(1, sla_ms=20_000, mode=Mode.CONTINUOUS, first_token_sla_ms=5000, inter_token_sla_ms=2000)
    async with running_worker(tmp_path, engine=engine, settings=settings) as running:
        yield running


@pytest.fixture
async def client(worker: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{worker.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


async def test_a_streamed_chat_is_the_whole_one_in_pieces(client: openai.AsyncOpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 30, "seed": 5, "extra_body": NO_END}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert deltas[0].role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 30
    prompt = len("user: hello 🎉\nassistant: ".encode())
    assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (prompt, prompt + 30)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"


async def test_choices_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    asked = {"model": MODEL, "max_tokens": 8, "seed": 2, "extra_body": NO_END}
    both = await client.completions.create(prompt=["one", "two"], n=2, logprobs=2, **asked)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    one = await client.completions.create(prompt="one", **asked)
    ids = await client.completions.create(prompt=[[116, 119, 111]], **asked)
    assert both.choices[0].text == one.choices[0].text
    assert both.choices[0].text != both.choices[1].text
    assert ids.usage.prompt_tokens == 3
    assert both.usage.completion_tokens == 32
    logprobs = both.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 8
    stream = await client.completions.create(prompt=["one", "two"], stream=True, **asked)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts[0] == one.choices[0].text


async def test_stop_end_and_log_probabilities(client: openai.AsyncOpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "temperature": 0}
    whole = await client.chat.completions.create(**asked, logprobs=True, top_logprobs=3, extra_body=NO_END)
    text = whole.choices[0].message.content
    content = whole.choices[0].logprobs.content
    assert len(content) == 40
    assert content[0].token == content[0].top_logprobs[0].token
    stop = text[5:7]
    stopped = await client.chat.completions.create(**asked, stop=[stop], extra_body=NO_END)
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    ended = await client.chat.completions.create(**asked, logit_bias={str(END): 100})
    assert ended.choices[0].finish_reason == "stop"
    assert ended.usage.completion_tokens == 1


async def test_where_the_time_went_is_said(worker: Running) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 5, "ignore_eos": True}
    whole = await worker.http.post("/v1/completions", json=body)
    causes = [part.split(";")[0] for part in whole.headers["server-timing"].split(", ")]
    assert causes == ["hold", "busy", "slot", "exec"]
    streamed = await worker.http.post("/v1/completions", json=body | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in streamed.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert lines[-2].startswith(": server-timing hold;dur=")
    series = await worker.series()
    assert series['tailkeeper_first_token_seconds_count{tier="interactive"}'] == 2
    assert series['tailkeeper_inter_token_seconds_count{tier="interactive"}'] == 8


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages"),
        ("chat/completions", {"messages": HELLO, "temperature": -1}, "temperature"),
        ("chat/completions", {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        ("chat/completions", {"messages": HELLO, "max_tokens": 600}, "messages"),
        ("chat/completions", {"messages": HELLO, "tier": "golden"}, "tier"),
        ("chat/completions", {"messages": HELLO, "stream_options": {}}, "stream_options"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": [[9999]]}, "prompt"),
        ("completions", {"prompt": "x", "n": 0}, "n"),
        ("completions", {"prompt": "x", "echo": True}, "echo"),
        ("completions", {"prompt": "x", "stream": "yes"}, "stream"),
    ],
)
async def test_a_bad_call_is_told_what_is_bad(worker: Running, path: str, body: dict[str, object], param: str) -> None:
    answer = await worker.http.post(f"/v1/{path}", json={"model": MODEL} | body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


async def test_another_model_and_other_apis_are_not_here(worker: Running, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="other", messages=HELLO)
    assert (await worker.http.post("/v1/embeddings", json={})).status_code == 404
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_deadline_that_passes_has_a_status_before_the_first_token_and_an_event_after_it(
    worker: Running, engine: CausalLm
) -> None:
    body = {"model": MODEL, "prompt": "x" * 200, "max_tokens": 300, "ignore_eos": True}
    whole = await worker.http.post("/v1/completions", json=body | {"deadline_ms": 60})
    assert whole.status_code in (429, 504)
    streamed = await worker.http.post("/v1/completions", json=body | {"deadline_ms": 250, "stream": True})
    if streamed.status_code == 200:
        last = [line for line in streamed.text.split("\n\n") if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    else:
        assert streamed.status_code in (429, 504)
    await worker.http.post("/v1/completions", json=body | {"max_tokens": 1})
    assert not engine.held


async def test_callers_that_go_away_at_random_leave_nothing_behind(worker: Running, engine: CausalLm) -> None:
    """Their neighbours are served whole, with the text that they get alone."""
    chance = random.Random(2)
    body = {"model": MODEL, "prompt": "steady", "max_tokens": 25, "seed": 9, "ignore_eos": True}
    expected = (await worker.http.post("/v1/completions", json=body)).json()["choices"][0]["text"]

    async def leaves(number: int) -> None:
        asked = {"model": MODEL, "prompt": "x" * chance.randint(1, 200), "max_tokens": 100, "stream": number % 2 == 0}
        await asyncio.sleep(chance.random() * 2)
        try:
            async with asyncio.timeout(chance.random() * 0.6):
                async with worker.http.stream("POST", "/v1/completions", json=asked) as answer:
                    async for _ in answer.aiter_bytes():
                        pass
        except (TimeoutError, httpx.HTTPError):
            pass

    async def stays() -> str:
        await asyncio.sleep(chance.random() * 2)
        answer = await worker.http.post("/v1/completions", json=body | {"tier": "batch"})
        text: str = answer.json()["choices"][0]["text"]
        return text

    gone = [asyncio.create_task(leaves(number)) for number in range(60)]
    texts = await asyncio.gather(*(stays() for _ in range(10)))
    await asyncio.gather(*gone)
    assert set(texts) == {expected}

    async def nothing_left() -> bool:
        await worker.http.post("/v1/completions", json=body | {"max_tokens": 1})
        series = await worker.series()
        return not engine.held and series["tailkeeper_running"] == 0

    await eventually(nothing_left)
