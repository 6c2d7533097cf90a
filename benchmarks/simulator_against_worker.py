"""The simulator against a real worker: the same trace, the same settings, and the latency model that the worker learnt.

    python -m benchmarks.simulator_against_worker [--seconds 60] [--rate 30] [--keep]

Starts `python -m gpu_worker` on MiniLM, sends it bursty interactive requests and patient ones with `tailkeeper bench`,
reads T(b) = c + a·b from its metrics, and simulates the trace. `worker` is from arrival to end as the worker itself has
it (Server-Timing), `client` what the caller saw, with the way over loopback and the load generator's own processor
time. Run it on a machine with nothing else to do: a real engine on shared cores does not take what it took before."""

import argparse
import csv
import itertools
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.results_file import keep, percentile
from tailkeeper.api.settings import TierSettings
from tailkeeper.model.load_mix import TierLoad, requests
from tailkeeper.model.load_trace import LoadRequest, write_trace
from tailkeeper.model.loads import parse_arrivals
from tailkeeper.model.windows import Line
from tailkeeper.simulate.model import EngineModel
from tailkeeper.simulate.run import simulate
from tests.integration.worker_process import WorkerProcess, minilm_worker
from tests.unit.worker.doubles import document, settings

SLA_MS = 150
TIERS = [
    TierSettings(name="interactive", deadline_ms=SLA_MS, timeout_ms=4 * SLA_MS, max_hold_ms=SLA_MS, preempts=True),
    TierSettings(name="batch", deadline_ms=20 * SLA_MS, max_hold_ms=20 * SLA_MS, reserve_percent=10),
]
CAUSES = ("hold_ms", "busy_ms", "slot_ms", "exec_ms")


def trace(rate: float, seconds: float) -> list[LoadRequest]:
    """Interactive in bursts, and a fifth as many patient ones."""
    loads = [
        TierLoad("interactive", parse_arrivals(f"gamma:{rate},1.5")),
        TierLoad("batch", parse_arrivals(f"poisson:{rate / 5}")),
    ]
    return list(requests(loads, lambda name: random.Random(f"1/{name}"), seconds))


def send(worker: WorkerProcess, rows: Sequence[LoadRequest], folder: Path) -> list[dict[str, str]]:
    """What became of each, by `tailkeeper bench`."""
    recorded, raw = folder / "trace.csv", folder / "raw.csv"
    recorded.write_text("".join(write_trace(rows)))
    command = ["bench", worker.url, "--api", "embeddings", "--trace", str(recorded), "--raw", str(raw), "--quiet"]
    program = "from tailkeeper.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", program, *command], check=True, stdout=subprocess.DEVNULL)
    with raw.open() as lines:
        return list(csv.DictReader(lines))


def learnt(worker: WorkerProcess) -> Line:
    """T(b) as the worker has it, from its metrics."""
    text = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/metrics").text
    found = re.findall(r'^tailkeeper_latency_model\{.*coefficient="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    coefficients = {name: float(value) for name, value in found}
    return Line(coefficients["c"], coefficients["a"])


def compare(rate: float, seconds: float, folder: Path) -> dict[str, object]:
    changes = {"tiers": TIERS, "default_tier": "interactive"}
    rows = trace(rate, seconds)
    with minilm_worker(folder) as worker:
        worker.settings_file.write_text(document(2, **changes))
        until_applied(worker)
        sent = send(worker, rows, folder)
        line = learnt(worker)
    simulated = simulate(settings(2, **changes), rows, EngineModel(line=line))
    report: dict[str, object] = {"c_ms": round(1000 * line.c, 3), "a_ms": round(1000 * line.a, 3), "sent": len(sent)}
    for tier in TIERS:
        mine = [row for row in sent if row["tier"] == tier.name]
        answered = [row for row in mine if row["exec_ms"]]
        worker_ms = percentile([sum(float(row[cause]) for cause in CAUSES) for row in answered], 99)
        client_ms = percentile([float(row["latency_ms"]) for row in mine], 99)
        simulated_ms = simulated.tiers[tier.name].p99_ms
        report[tier.name] = {
            "answered": f"{len(answered)} of {len(mine)}",
            "simulated_p99_ms": round(simulated_ms, 1),
            "worker_p99_ms": round(worker_ms, 1),
            "client_p99_ms": round(client_ms, 1),
            "simulated_to_worker": round(simulated_ms / worker_ms, 3),
        }
    return report


def until_applied(worker: WorkerProcess, generation: int = 2) -> None:
    for _ in itertools.repeat(None, 600):
        applied = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/settings").json()["generation"]
        if applied == generation:
            return
        time.sleep(0.1)
    raise TimeoutError(worker.log.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        report = compare(arguments.rate, arguments.seconds, Path(folder))
    command = f"python -m benchmarks.simulator_against_worker --seconds {arguments.seconds:g} --rate {arguments.rate:g}"
    if arguments.keep:
        keep("simulator_against_worker", command, report)
    else:
        print(report)


if __name__ == "__main__":
    main()
