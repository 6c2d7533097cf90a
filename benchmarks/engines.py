"""causal-lm against what it stands on: the same model in a bare loop, in `generate`, and behind the worker's HTTP.

    python benchmarks/engines.py [--model FOLDER] [--batch 16] [--rounds 6] [--threads N] [--long 4000]
                                 [--generate-batch] [--keep]

Bare loop and engine take turns in one process, a few steps each, so that a busy machine slows both; medians of the
steps, and CPU time, which other processes change less. Then a worker of its own process serves `--batch` streams: its
tokens/s, the share of time between forward passes, and the gaps between tokens while a long prompt arrives."""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
from results_file import keep, percentile
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

from gpu_worker.engines.causal_lm import CausalLm
from gpu_worker.engines.cpus import cpus_available
from gpu_worker.engines.interface import Sampling, Task
from gpu_worker.engines.source import LocalFolder
from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import initial_settings, resolve_all

CACHE = Path(os.environ.get("TAILKEEPER_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tailkeeper")
PROMPT_TOKENS = 64
STEPS = 8
"""Decoding steps per turn."""
OUTPUT = 32
Figures = dict[str, object]


class Bare:
    """The model, a cache, a loop."""

    def __init__(self, model: Any, batch: int) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._forward(torch.full((batch, PROMPT_TOKENS), 300))

    def _forward(self, tokens: torch.Tensor) -> None:
        with torch.inference_mode():
            output = self._model(input_ids=tokens, cache=self._cache, use_cache=True, logits_to_keep=1)
            self._next = output.logits[:, -1].argmax(dim=-1, keepdim=True)

    def step(self) -> None:
        """One token of every sequence."""
        self._forward(self._next)


class Engine:
    """The same through `CausalLm.step`."""

    def __init__(self, engine: CausalLm, batch: int) -> None:
        self._engine = engine
        sampling = Sampling(max_tokens=1000, temperature=0.0, ignore_eos=True)
        contents = [engine.generation([300] * PROMPT_TOKENS, sampling).content for _ in range(batch)]
        engine.step([Task(str(n), content, PROMPT_TOKENS) for n, content in enumerate(contents)], ())
        self._tasks = [Task(str(n), content, 0, True) for n, content in enumerate(contents)]

    def step(self) -> None:
        """One token of every sequence."""
        self._engine.step(self._tasks, ())


def take_turns(sides: dict[str, Callable[[], None]], rounds: int, batch: int) -> Figures:
    """Milliseconds and CPU milliseconds of a step, and tokens/s, by side."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, step in sides.items():
            for _ in range(STEPS):
                begun, begun_cpu = time.perf_counter(), time.process_time()
                step()
                if turn:  # the first turn warms up
                    wall[name].append(time.perf_counter() - begun)
                    cpu[name].append(time.process_time() - begun_cpu)
    figures: Figures = {}
    for name in sides:
        step_s = statistics.median(wall[name])
        figures[name] = {
            "step_ms": round(step_s * 1e3, 1),
            "cpu_ms": round(statistics.median(cpu[name]) * 1e3, 1),
            "tokens_per_s": round(batch / step_s, 1),
        }
    return figures


def plain_generate(model: Any, batch: int, paged: bool) -> Figures:
    """Whole requests through transformers' own loops."""
    prompts = torch.full((batch, PROMPT_TOKENS), 300)
    config = GenerationConfig(max_new_tokens=STEPS * 2, min_new_tokens=STEPS * 2, do_sample=False, pad_token_id=2)
    begun = time.perf_counter()
    if paged:
        outputs = model.generate_batch(inputs=prompts.tolist(), generation_config=config)
        made = sum(len(output.generated_tokens) for output in outputs.values())
    else:
        mask = torch.ones_like(prompts)
        made = model.generate(prompts, attention_mask=mask, generation_config=config).numel() - prompts.numel()
    return {"tokens_per_s": round(made / (time.perf_counter() - begun), 1)}


def settings(name: str) -> str:
    """An offline-like instance that neither holds nor sheds: the engine is what is measured."""
    policy = {
        "batching": {"tailLatencySlaMs": 600_000, "interTokenSlaMs": 60_000},
        "tiers": [{"name": "interactive", "deadlineMs": 600_000, "maxHoldMs": 0}],
        "instances": [{"name": name, "model": {"name": name, "engine": "causal-lm", "path": "/nowhere"}}],
    }
    effective = resolve_all(PolicySpec.model_validate(policy))[name]
    made = initial_settings(effective, policy_namespace="bench", policy="engines", model_instance=name, generation=1)
    return made.model_dump_json(by_alias=True, exclude_none=True)


async def served(port: int, metrics_port: int, batch: int, long: int) -> Figures:
    """16 streams; then the same while a long prompt arrives."""
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        url = f"http://127.0.0.1:{port}"
        for _ in range(1800):
            try:
                if (await client.get(f"{url}/readyz")).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)

        async def stream(prompt: list[int], output: int) -> list[float]:
            body = {"model": "m", "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
            times = []
            # A log probability makes every token visible, also those without a whole character.
            asked = body | {"stream": True, "logprobs": 0}
            async with client.stream("POST", f"{url}/v1/completions", json=asked) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["logprobs"]:
                        times.append(time.perf_counter())  # noqa: PERF401 - when it came is what is kept
            return times

        async def busy_s() -> float:
            page = (await client.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
            line = next(row for row in page.splitlines() if row.startswith("tailkeeper_engine_busy_seconds_total"))
            return float(line.rsplit(" ", 1)[1])

        await asyncio.gather(*(stream([300] * PROMPT_TOKENS, 24) for _ in range(batch)))
        busy, begun = await busy_s(), time.perf_counter()
        steady = await asyncio.gather(*(stream([300] * PROMPT_TOKENS, OUTPUT) for _ in range(batch)))
        wall_s, busy = time.perf_counter() - begun, await busy_s() - busy
        running = [asyncio.create_task(stream([300] * PROMPT_TOKENS, 2 * OUTPUT)) for _ in range(batch)]
        await asyncio.sleep(wall_s / 4)
        arrived = time.perf_counter()
        first = (await stream([300] * long, 1))[0]
        disturbed = await asyncio.gather(*running)
    decoding = max(map(min, steady)), min(map(max, steady))
    tokens = sum(decoding[0] < at <= decoding[1] for times in steady for at in times)
    gaps = [b - a for times in disturbed for a, b in pairwise(times) if arrived < b <= first]
    before = [b - a for times in disturbed for a, b in pairwise(times) if b <= arrived]
    return {
        "tokens_per_s": round(tokens / (decoding[1] - decoding[0]), 1),
        "between_forward_passes_percent": round(100 * (1 - busy / wall_s), 2),
        "inter_token_median_ms": round(statistics.median(before) * 1e3, 1),
        "while_a_long_prompt_arrives": {
            "prompt_tokens": long,
            "first_token_s": round(first - arrived, 2),
            "inter_token_median_ms": round(statistics.median(gaps) * 1e3, 1),
            "inter_token_p99_ms": round(percentile(gaps, 99) * 1e3, 1),
        },
    }


def through_a_worker(model: Path, threads: int, batch: int, long: int) -> Figures:
    """Starts one, measures, ends it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        file.write_text(settings("m"))
        ports = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as free:
                ports.append(free.getsockname()[1])
        command = [
            *(sys.executable, "-m", "gpu_worker", "--engine", "causal-lm", "--model-name", "m"),
            *("--model-path", str(model), "--policy", "bench/engines", "--model-instance", "m"),
            *("--settings-file", str(file), "--host", "127.0.0.1", "--http-port", str(ports[0])),
            *("--metrics-port", str(ports[1]), "--threads", str(threads), "--kv-tokens", "16384"),
            *("--endpoint-delay-seconds", "0", "--log-level", "WARNING"),
        ]
        process = subprocess.Popen(command)
        try:
            return asyncio.run(served(ports[0], ports[1], batch, long))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def steps(given: argparse.Namespace) -> Figures:
    """In this process."""
    engine = CausalLm(LocalFolder(given.model), "cpu", given.threads, kv_tokens=16384)
    engine.load(lambda share, what: None)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    sides = {"bare_loop": Bare(model, given.batch).step, "engine": Engine(engine, given.batch).step}
    figures = take_turns(sides, given.rounds, given.batch)
    figures["generate"] = plain_generate(model, given.batch, paged=False)
    if given.generate_batch:
        figures["generate_batch"] = plain_generate(model, given.batch, paged=True)
    return figures


def worker(given: argparse.Namespace) -> Figures:
    """In a process of its own."""
    return {"worker": through_a_worker(given.model, given.threads, given.batch, given.long)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=CACHE.expanduser() / "models" / "smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=cpus_available())
    parser.add_argument("--long", type=int, default=4000)
    parser.add_argument("--generate-batch", action="store_true", help="transformers' own continuous batching as well")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/engines.json")
    given = parser.parse_args()
    figures: Figures = {"batch": given.batch, "threads": given.threads}
    for part in (steps, worker):
        figures |= part(given)
        print(json.dumps(figures), file=sys.stderr)
    figures["load_average_after"] = round(os.getloadavg()[0], 1)
    if given.keep:
        keep("engines", "python benchmarks/engines.py " + " ".join(sys.argv[1:]), figures)
    else:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
