"""Which settings document a worker applies. Every source offers what it sees; the newest valid generation wins,
anything else is refused whole and the last good one stays."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpu_worker.config import Identity
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import LONGEST_LEAP, Settings, parse_settings

log = logging.getLogger(__name__)

_LONGEST_REFUSAL = 1000


class Source(StrEnum):
    """Where a document came from."""

    CONFIG_MAP = "configmap"
    FILE = "file"


class Verdict(StrEnum):
    """What became of an offered document."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    LAGGING = "lagging"
    """Older than what another source brought, and not older than what this one had: a mounted file comes up to 90 s
    late."""
    REFUSED = "refused"


class Refusal(ValueError):
    """Why a document is not applied."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The document in force."""

    settings: Settings
    source: Source
    at: float
    """Wall clock, seconds since 1970: for people and for other machines' logs."""


@dataclass(slots=True)
class _Seen:
    """What one source showed last."""

    document: str | bytes | None = None
    newest: int = 0
    refusal: str | None = None


class SettingsKeeper:
    """Holds the applied settings and says why an offered document was not taken."""

    def __init__(self, identity: Identity, modes: frozenset[Mode], apply: Callable[[Settings], None]) -> None:
        self._identity = identity
        self._modes = modes
        self._apply = apply
        self._seen = {source: _Seen() for source in Source}
        self.applied: Applied | None = None
        self.refused = 0
        """Documents refused so far; one that is merely seen again counts once."""

    @property
    def last_refusal(self) -> str | None:
        """Why the newest document of a source is not in force; None when all that was seen last is in sync."""
        return next((seen.refusal for seen in self._seen.values() if seen.refusal is not None), None)

    def offer(self, document: str | bytes, source: Source) -> Verdict:
        """Applies the document, or keeps the last good one. Never raises."""
        seen = self._seen[source]
        if document == seen.document:
            return Verdict.REFUSED if seen.refusal is not None else Verdict.UNCHANGED
        seen.document = document
        try:
            verdict = self._judge(document, source)
        except Exception as error:
            seen.refusal = str(error)[:_LONGEST_REFUSAL]
            self.refused += 1
            log.warning("settings from %s refused: %s", source.value, seen.refusal)
            return Verdict.REFUSED
        seen.refusal = None
        return verdict

    def _judge(self, document: str | bytes, source: Source) -> Verdict:
        settings = parse_settings(document)
        self._must_be_ours(settings)
        seen = self._seen[source]
        current = self.applied.settings if self.applied is not None else None
        if current is not None and settings.generation <= current.generation:
            if settings == current:
                seen.newest = max(seen.newest, settings.generation)
                return Verdict.UNCHANGED
            if settings.generation == current.generation:
                raise Refusal(f"generation {settings.generation} is applied already, with other content")
            if settings.generation < seen.newest or source is current_source(self.applied):
                raise Refusal(f"generation {settings.generation} is older than {current.generation}, which is applied")
            seen.newest = settings.generation
            return Verdict.LAGGING
        if current is not None and settings.generation > current.generation + LONGEST_LEAP:
            raise Refusal(
                f"generation {settings.generation} is more than {LONGEST_LEAP} past {current.generation}, "
                "which is applied: nothing could follow it for long"
            )
        self._apply(settings)
        self.applied = Applied(settings, source, time.time())
        seen.newest = settings.generation
        log.info("settings generation %d from %s applied", settings.generation, source.value)
        return Verdict.APPLIED

    def _must_be_ours(self, settings: Settings) -> None:
        theirs = Identity(settings.policy_namespace, settings.policy, settings.model_instance)
        if theirs != self._identity:
            raise Refusal(f"they belong to {_path(theirs)}, not to {_path(self._identity)}")
        if settings.mode not in self._modes:
            modes = ", ".join(sorted(mode.value for mode in self._modes))
            raise Refusal(f"mode {settings.mode.value} does not fit this engine, which takes {modes}")


def current_source(applied: Applied | None) -> Source | None:
    """Where the document in force came from."""
    return applied.source if applied is not None else None


def _path(identity: Identity) -> str:
    return f"{identity.policy_namespace}/{identity.policy}/{identity.model_instance}"
