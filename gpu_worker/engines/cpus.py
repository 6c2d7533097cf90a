"""How many CPUs this process may really use: the container's quota, not the node's count. A pool of 64 threads under a
quota of 2 CPUs spends its slice in a few milliseconds and then stands still for the rest of each 100 ms period."""

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def cpus_available(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1) -> int:
    """Whole CPUs, at least 1: the smaller of affinity and cgroup quota (rounded up)."""
    affinity = len(os.sched_getaffinity(0))
    quota = _quota(v2, v1)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def _quota(v2: Path, v1: Path) -> float | None:
    try:
        limit, period = v2.read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit, period = ((v1 / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return None if int(limit) <= 0 else int(limit) / int(period)
    except (OSError, ValueError):
        return None
