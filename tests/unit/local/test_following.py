"""When a process that died comes back, and when an edited file counts."""

import json
import os
from io import StringIO
from pathlib import Path

from tailkeeper.local.backoff import Backoff
from tailkeeper.local.child import ended
from tailkeeper.local.events import AsJson, AsText, Event, Happening
from tailkeeper.local.policy_file import FollowedFile


def test_the_backoff_is_the_kubelets() -> None:
    backoff = Backoff()
    assert [backoff.after(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.after(600) == 0
    assert backoff.after(1) == 10


def test_an_end_in_words() -> None:
    assert ended(1) == "ended with exit status 1"
    assert ended(-9) == "was killed by SIGKILL"


def test_a_change_counts_once_it_stays(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("one")
    followed = FollowedFile(file)
    assert not followed.changed()
    file.write_text("")
    assert not followed.changed()
    file.write_text("two, longer")
    assert not followed.changed()
    assert followed.changed()
    assert not followed.changed()
    file.unlink()
    assert not followed.changed()
    assert not followed.changed()
    (tmp_path / "new").write_text("three")
    os.replace(tmp_path / "new", file)
    assert [followed.changed() for _ in range(3)] == [False, True, False]


def test_events_as_text_and_as_json() -> None:
    event = Event(Happening.SETTINGS, "generation 2, Manual: ceiling 64 → 8", "m", facts={"generation": 2})
    text, lines = StringIO(), StringIO()
    AsText(text)(event)
    AsJson(lines)(event)
    assert text.getvalue()[8:] == " m: generation 2, Manual: ceiling 64 → 8\n"
    line = json.loads(lines.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {"event": "settings", "instance": "m", "text": event.text, "generation": 2}
