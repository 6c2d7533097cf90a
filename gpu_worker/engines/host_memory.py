"""How much memory this process may really use: the container's limit, not the node's. A share of the node's would end
in a kill at a moment of the kernel's choosing."""

import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/memory.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1) -> int:
    """Bytes: the smaller of the machine's memory and the cgroup's limit, of either version."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in (v2, v1):
        try:
            found.append(int(limit.read_text()))  # "max", and no such file, are no limit
        except (OSError, ValueError):
            continue
    return min(found)
