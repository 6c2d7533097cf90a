"""Where figures are kept: one JSON file a benchmark under benchmarks/results, with what they were measured on."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """What the figures were measured on; no host name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory_gib), "python": platform.python_version()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100).__trunc__() - 1)]


def keep(name: str, command: str, figures: Mapping[str, object]) -> Path:
    """Writes benchmarks/results/NAME.json and prints it."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    document = {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
        "machine": machine(),
        "figures": figures,
    }
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(figures, indent=2, ensure_ascii=False))
    return file
