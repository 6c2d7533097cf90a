"""The settings document where the kubelet mounts it. The kubelet swaps a symbolic link (`..data`) to a new folder, so
what is watched is what the path leads to, not one open file."""

import asyncio
import logging
from pathlib import Path

from gpu_worker.settings.keeper import SettingsKeeper, Source

log = logging.getLogger(__name__)

POLL_S = 0.25
"""One `stat` of a file in memory each time; inotify would have to follow every link on the way."""

Fingerprint = tuple[int, int, int]


class SettingsFile:
    """Offers the file whenever it changed."""

    def __init__(self, path: Path, keeper: SettingsKeeper, poll_s: float = POLL_S) -> None:
        self._path = path
        self._keeper = keeper
        self._poll_s = poll_s
        self._seen: Fingerprint | None = None
        self._missing = False

    async def run(self) -> None:
        """Never returns."""
        while True:
            self.look()
            await asyncio.sleep(self._poll_s)

    def look(self) -> None:
        """Reads the file when it is another than the last time. A missing one is no refusal: the last good one
        stays."""
        try:
            stat = self._path.stat()
            fingerprint = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if fingerprint == self._seen:
                return
            document = self._path.read_bytes()
        except OSError as error:
            if not self._missing:
                log.warning("settings file: %s", error)
            self._missing = True
            self._seen = None
            return
        self._missing = False
        self._seen = fingerprint
        self._keeper.offer(document, Source.FILE)
