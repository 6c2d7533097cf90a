"""The load generator against a real worker process on MiniLM: both tell the same story."""

import re
from collections import Counter
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tailkeeper.bench.measured import columns
from tailkeeper.bench.outcome import Outcome
from tailkeeper.bench.plan import Api, Limits, Plan, Target
from tailkeeper.bench.probe import TargetError
from tailkeeper.bench.run import measure, run_load
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_sizes import Fixed
from tailkeeper.model.loads import parse_arrivals
from tests.integration.worker_process import WorkerProcess, minilm_worker


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with minilm_worker(tmp_path_factory.mktemp("minilm"), "--endpoint-delay-seconds", "0.5") as running:
        yield running


def load(tier: str, arrivals: str, deadline_ms: int | None = None) -> TierLoad:
    return TierLoad(tier, parse_arrivals(arrivals), prompt=Fixed(8), deadline_ms=deadline_ms)


def counted(worker: WorkerProcess, tier: str) -> Counter[str]:
    """Requests by outcome, as the worker itself says."""
    text = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/metrics").text
    found: Counter[str] = Counter()
    for labels, value in re.findall(r"^tailkeeper_requests_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        if f'tier="{tier}"' in labels:
            found[re.findall(r'outcome="(\w+)"', labels)[0]] += int(float(value))
    return found


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.V2])
async def test_counts_and_waits_are_the_workers_own(worker: WorkerProcess, api: Api) -> None:
    before = {tier: counted(worker, tier) for tier in ("interactive", "batch")}
    loads = load("interactive", "poisson:5"), load("batch", "gamma:5,2")
    plan = Plan(Target(worker.url, api), loads, duration_s=5, other_limits=Limits(timeout_ms=120_000), probe=False)
    every = columns(plan, await measure(plan))
    # On a busy machine some may be shed or expire: then both say so.
    for tier in ("interactive", "batch"):
        theirs = counted(worker, tier) - before[tier]
        mine = Counter(every.outcome[every.tier == tier].tolist())
        assert mine[Outcome.ANSWERED] == theirs["ok"] + theirs["late"]
        assert mine[Outcome.SHED] == theirs["shed"]
        assert mine[Outcome.EXPIRED] == theirs["expired"]
        assert mine.total() == theirs.total()
    done = every.where(every.outcome == Outcome.ANSWERED)
    assert len(done)
    served_ms = done.waiting_ms + done.exec_ms
    # The rest is what the worker does not see: the network, both sides' loops, the sender's lag.
    assert np.all(served_ms <= done.latency_ms + 1)
    assert np.median(done.latency_ms - served_ms) < 0.5 * np.median(done.latency_ms)


async def test_a_deadline_that_cannot_be_met_is_never_ok(worker: WorkerProcess) -> None:
    plan = Plan(
        Target(worker.url, Api.EMBEDDINGS),
        (load("interactive", "constant:10", deadline_ms=1),),
        duration_s=1,
        probe=False,
    )
    tier = (await run_load(plan)).tier("interactive")
    # An engine at rest serves what its estimate alone says is hopeless: that answer is late, the others expire.
    outcomes = tier.outcomes
    assert (outcomes.ok, outcomes.late + outcomes.expired + outcomes.shed) == (0, 10)
    assert tier.timeout_ratio == (outcomes.expired + outcomes.shed) / 10


async def test_an_unknown_tier_or_model_is_one_line(worker: WorkerProcess) -> None:
    with pytest.raises(TargetError, match="tier 'vip' got 400: unknown tier 'vip'; the tiers are interactive"):
        await run_load(Plan(Target(worker.url, Api.EMBEDDINGS), (load("vip", "constant:1"),)))
    with pytest.raises(TargetError, match=r"got 404: .*nobody"):
        await run_load(Plan(Target(worker.url, Api.EMBEDDINGS, model="nobody"), (load("batch", "constant:1"),)))
