"""The policy's file while it is followed: what `kubectl apply` and `kubectl annotate` are in a cluster."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

POLL_S: Final = 0.25
"""One `stat` each time; a change is read once it has been the same twice."""

_Print = tuple[int, int, int] | None


@dataclass
class FollowedFile:
    """Says when a file has changed. An editor may truncate it before it writes, or put another one in its place: what
    counts is what stays as it is for one poll."""

    path: Path
    _read: _Print = field(init=False)
    _last: _Print = field(init=False)

    def __post_init__(self) -> None:
        self._read = self._last = self._look()

    def changed(self) -> bool:
        """Whether it is another than the last time that this was so. A file that is gone is no change."""
        now = self._look()
        settled, self._last = now == self._last, now
        if not settled or now is None or now == self._read:
            return False
        self._read = now
        return True

    def _look(self) -> _Print:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
