"""API keys from a mounted Secret: a file named TENANT holds `KEY`, or `KEY tier,tier` where the tenant may use some
tiers only. Keys are kept and looked up by their SHA-256: what a lookup's timing tells is about the digest, not about
the key, and no key is left in memory or in a log."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

RELOAD_S = 2.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    tenant: str
    tiers: frozenset[str] | None = None
    """Tiers that this caller may use; None: every one."""

    def may_use(self, tier: str) -> bool:
        """Whether this tier is open to the caller."""
        return self.tiers is None or tier in self.tiers


class ApiKeys:
    """The keys of one folder; `reload` takes up changes. A folder that cannot be read keeps the last keys; one that
    never could be, or is empty, lets nobody in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._callers: Mapping[bytes, Caller] = {}
        self._seen: tuple[tuple[str, int, int], ...] | None = None

    def caller(self, authorization: bytes | None) -> Caller | None:
        """The caller of an Authorization header `Bearer KEY`; None when it is missing or wrong."""
        scheme, _, key = (authorization or b"").partition(b" ")
        return self._callers.get(_digest(key.strip())) if scheme.lower() == b"bearer" and key.strip() else None

    def reload(self) -> None:
        """Reads the folder when it changed."""
        try:
            files = sorted(file for file in self._folder.iterdir() if file.is_file() and not file.name.startswith("."))
            seen = tuple((file.name, stat.st_mtime_ns, stat.st_ino) for file in files for stat in (file.stat(),))
            if seen == self._seen:
                return
            callers = dict(entry for file in files if (entry := _entry(file.name, file.read_bytes())) is not None)
        except OSError as error:
            log.warning("API keys: %s", error)
            return
        self._callers, self._seen = callers, seen
        log.info("API keys of %d tenants read", len(callers))


def _entry(tenant: str, content: bytes) -> tuple[bytes, Caller] | None:
    words = content.split()
    if len(words) not in (1, 2):
        log.warning("API keys: entry %s is neither `KEY` nor `KEY tier,tier`; it is left out", tenant)
        return None
    tiers = frozenset(words[1].decode(errors="replace").split(",")) if len(words) == 2 else None
    return _digest(words[0]), Caller(tenant, tiers)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
