"""Texts far longer than a model reads: whoever sends them waits for themselves, nobody else does."""

import asyncio
import threading
import time
from pathlib import Path

import httpx
import pytest

from gpu_worker.engines.heads import heads
from gpu_worker.engines.interface import InputError, Prepared
from gpu_worker.server.service import MOST_TOKENISED_AT_ONCE
from tests.integration import tiny_causal
from tests.integration.test_encoder import loaded, small_model
from tests.integration.worker_in_process import running_worker
from tests.unit.worker.doubles import ScriptedEngine, document

LONG = ["word " * 800_000, " " * 3_999_999 + "x", "x" * 4_000_000, "word " * 30 + " " * 3_999_000]
SLOWEST_S = 3.0
"""A small call, on a machine with other things to do; 4 MB tokenized with the GIL held stopped everything for 15 s."""


async def test_bodies_of_4_mb_stall_nobody(tmp_path: Path) -> None:
    engine = loaded(small_model(tmp_path / "model", "mean", normalise=True))
    async with running_worker(tmp_path, engine=engine, settings=document(1, sla_ms=20_000)) as worker:
        long = [asyncio.create_task(worker.embed(text)) for text in LONG]
        slowest_s, calls = 0.0, 0
        while calls < 5 or not all(task.done() for task in long):
            began_s = time.monotonic()
            assert (await worker.embed("small")).status_code == 200
            assert (await worker.metrics.get("/healthz")).status_code == 200
            slowest_s, calls = max(slowest_s, time.monotonic() - began_s), calls + 1
        assert slowest_s < SLOWEST_S
        answers = [task.result() for task in long]
        assert [answer.status_code for answer in answers] == [200] * len(LONG)
        assert answers[0].json()["usage"]["prompt_tokens"] == engine.max_tokens


async def test_the_timeout_of_a_call_holds_while_it_is_tokenized_and_small_calls_go_on(tmp_path: Path) -> None:
    """Also for calls that wait for their turn; and what was given up is not begun afterwards."""
    release, begun = threading.Event(), []

    class Slow(ScriptedEngine):
        def text(self, text: str, truncate: bool) -> Prepared:
            if len(text) > 100:
                begun.append(text)
                assert release.wait(20)
            return super().text(text, truncate)

    async with running_worker(tmp_path, engine=Slow()) as worker:

        async def timed(deadline_ms: int) -> tuple[httpx.Response, float]:
            began_s = time.monotonic()
            answer = await worker.embed(["word " * 2000] * 3, deadline_ms=deadline_ms)
            return answer, time.monotonic() - began_s

        try:
            long = asyncio.gather(*(timed(500) for _ in range(MOST_TOKENISED_AT_ONCE + 2)))
            while not long.done():
                assert (await worker.embed("small")).status_code == 200
                await asyncio.sleep(0.02)
            for answer, took_s in await long:
                assert answer.status_code == 504
                assert answer.json()["error"]["code"] == "deadline_exceeded"
                assert 0.45 < took_s < 5
        finally:
            release.set()
        assert (await worker.embed("word " * 2000)).status_code == 200
        assert len(begun) == MOST_TOKENISED_AT_ONCE + 1


def test_a_head_gives_the_first_tokens_of_the_whole_text(tmp_path: Path) -> None:
    encoder = loaded(small_model(tmp_path / "model", "mean", normalise=True))
    for text in ("unbelievable words, " * 400, "x " * 5000, " " * 2000 + "late words " * 100, "一二三" * 900):
        whole = encoder._tokenizer.encode(text)
        cut = encoder.text(text, truncate=True)
        assert (cut.content, cut.truncated) == (whole.ids, True)
        with pytest.raises(InputError, match="longer than"):
            encoder.text(text, truncate=False)
    fits = " " * 10_000 + "few words"
    assert encoder.text(fits, truncate=False).content == encoder._tokenizer.encode(fits).ids


def test_what_is_beyond_all_heads_counts_as_cut() -> None:
    assert [len(head) for head in heads("x" * 10_000, 2)] == [16, 128, 1024]
    assert list(heads("one two three", 1)) == ["one", "one two three"]


def test_a_prompt_far_too_long_is_refused_before_it_is_all_tokenized(tmp_path: Path) -> None:
    engine = tiny_causal.loaded(tiny_causal.tiny_model(tmp_path))
    began_s = time.monotonic()
    for text in ("word " * 800_000, "x" * 4_000_000):
        with pytest.raises(InputError, match=r"longest text is 512 tokens; the prompt of 4000000 characters"):
            engine.encode(text)
    with pytest.raises(InputError, match="512 tokens"):
        engine.chat([{"role": "user", "content": "word " * 800_000}])
    assert time.monotonic() - began_s < SLOWEST_S
    assert len(engine.encode("x" * 600)) == 600
