"""The tuner of `tailkeeper run` on a worker process whose step takes 20 ms whatever its batch: a bad ceiling lasts
while the tuner is off and is mended once it may."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.bench.plan import Api, Plan, Target
from tailkeeper.bench.run import run_load
from tailkeeper.local.events import Event, Happening
from tailkeeper.local.launch import Wishes
from tailkeeper.local.run import Order, run
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.loads import parse_arrivals
from tests.integration.local_run import policy, write
from tests.integration.worker_process import REPOSITORY

SLA = {"tailLatencySlaMs": 400, "windowIdle": 16, "windowBusy": 4}
LOAD_S = 130


def planted(mode: str) -> dict[str, object]:
    document = policy(batching=SLA, retune={"mode": mode, "intervalSeconds": 1})
    document["metadata"]["annotations"] = {"tailkeeper.dev/set.minilm": "ceiling=1"}
    return document


async def until(events: list[Event], wanted: Callable[[Event], bool], within_s: float) -> Event:
    for _ in range(int(within_s * 10)):
        if found := [event for event in events if wanted(event)]:
            return found[0]
        await asyncio.sleep(0.1)
    raise TimeoutError("\n".join(event.text for event in events))


@pytest.mark.timeout(300)
async def test_a_bad_ceiling_lasts_with_the_tuner_off_and_is_mended_in_auto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'operator'}:{REPOSITORY}")
    file = tmp_path / "policy.yaml"
    write(file, planted("Off"))
    events: list[Event] = []
    (tmp_path / "models" / "model").mkdir(parents=True)
    order = Order(
        file=file,
        read=lambda: BatchingPolicy.model_validate(yaml.safe_load(file.read_text())),
        wishes=Wishes(
            tmp_path / "run",
            models=tmp_path / "models",
            program=(sys.executable, "-m", "tests.integration.worker_process"),
        ),
        mode=None,
        tell=events.append,
        status=True,
    )
    running = asyncio.create_task(run(order))
    ready = await until(events, lambda event: "urls" in event.facts, 30)
    # 50 a second is all that single requests come to; 70 arrive.
    load = TierLoad("interactive", parse_arrivals("poisson:70"))
    target = Target(str(ready.facts["urls"][0]), Api.EMBEDDINGS)  # type: ignore[index]
    loading = asyncio.create_task(run_load(Plan(target, (load,), duration_s=LOAD_S)))

    await asyncio.sleep(75)  # longer than the whole look-back that a decision needs
    causes = [event.facts["cause"] for event in events if event.what is Happening.SETTINGS]
    assert causes == ["Manual"]
    assert any("SlaMet=False" in event.text for event in events)

    write(file, planted("Auto"))
    moved = await until(events, lambda event: event.facts.get("cause") == "Capacity", 20)
    assert "sla_breached=true" in moved.text
    assert "action=window→" in moved.text
    mended = await until(events, lambda event: event.what is Happening.RECOVERED, 40)
    assert "reverted_in=" in mended.text

    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
