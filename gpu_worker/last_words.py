"""Why a container ended, where the kubelet looks for it; outside a container there is no such file."""

import logging
from pathlib import Path

log = logging.getLogger(__name__)

DEFAULT = Path("/dev/termination-log")
MOST = 4000
"""The kubelet keeps 4096 bytes."""


def write_last_words(path: Path, message: str) -> None:
    """Never raises."""
    try:
        if path.exists():
            path.write_text(message[:MOST])
    except OSError as error:
        log.warning("termination message: %s", error)
