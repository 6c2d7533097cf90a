"""What happens, told as lines for people or as lines of JSON."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, TextIO


class Happening(StrEnum):
    """Kinds of events."""

    STARTED = "started"
    LOADING = "loading"
    READY = "ready"
    UNREADY = "unready"
    DIED = "died"
    RESTARTED = "restarted"
    SETTINGS = "settings"
    """A new generation is written."""
    APPLIED = "applied"
    """Every ready worker applies it."""
    REFUSED = "refused"
    """An edit of the policy, a manual value, or a worker's refusal: the last good one stays."""
    POLICY = "policy"
    """The policy was read again."""
    NEEDS_RESTART = "needsRestart"
    """An edit that settings cannot carry."""
    UNHEEDED = "unheeded"
    """What the policy says and only a cluster can do."""
    ENDED = "ended"
    """A move's trial: kept or rolled back."""
    RECOVERED = "recovered"
    RECOMMENDED = "recommended"
    CONDITION = "condition"
    STATUS = "status"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """One of them. `facts` are for programs; the text says the same to people."""

    what: Happening
    text: str
    instance: str = ""
    worker: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Tell(Protocol):
    """Takes events."""

    def __call__(self, event: Event) -> None:
        """Tells it at once."""
        ...


@dataclass(frozen=True)
class AsText:
    """`12:30:01 minilm: text`."""

    out: TextIO

    def __call__(self, event: Event) -> None:
        """Tells it at once."""
        who = event.worker or event.instance
        print(time.strftime("%H:%M:%S"), f"{who}: {event.text}" if who else event.text, file=self.out, flush=True)


@dataclass(frozen=True)
class AsJson:
    """One JSON object a line."""

    out: TextIO

    def __call__(self, event: Event) -> None:
        """Tells it at once."""
        who = {"instance": event.instance, "worker": event.worker}
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "event": event.what.value,
            **{name: value for name, value in who.items() if value},
            "text": event.text,
            **event.facts,
        }
        print(json.dumps(line, ensure_ascii=False), file=self.out, flush=True)
