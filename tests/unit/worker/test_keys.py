"""API keys of a mounted Secret."""

import logging
from pathlib import Path

import pytest

from gpu_worker.server.keys import ApiKeys, Caller


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "team-a").write_text("secret-a\n")
    (tmp_path / "team-b").write_text("secret-b standard,batch")
    (tmp_path / "broken").write_text("one two three")
    (tmp_path / "empty").write_text("")
    (tmp_path / "..data").mkdir()
    return tmp_path


def loaded(folder: Path) -> ApiKeys:
    keys = ApiKeys(folder)
    keys.reload()
    return keys


def test_a_key_names_its_tenant_and_tiers(folder: Path) -> None:
    keys = loaded(folder)
    assert keys.caller(b"Bearer secret-a") == Caller("team-a")
    assert keys.caller(b"bearer  secret-b") == Caller("team-b", frozenset({"standard", "batch"}))


@pytest.mark.parametrize(
    "bad", [None, b"", b"secret-a", b"Bearer", b"Bearer ", b"Basic secret-a", b"Bearer secret", b"Bearer one"]
)
def test_anything_else_lets_nobody_in(folder: Path, bad: bytes | None) -> None:
    assert loaded(folder).caller(bad) is None


def test_keys_change_without_a_restart(folder: Path) -> None:
    keys = loaded(folder)
    (folder / "team-a").unlink()
    (folder / "team-c").write_text("secret-c")
    keys.reload()
    assert keys.caller(b"Bearer secret-a") is None
    assert keys.caller(b"Bearer secret-c") == Caller("team-c")


def test_an_unreadable_folder_lets_nobody_in_at_first_and_keeps_the_last_keys_later(folder: Path) -> None:
    nowhere = folder / "nowhere"
    keys = loaded(nowhere)
    assert keys.caller(b"Bearer secret-a") is None
    keys = loaded(folder)
    folder.rename(folder.with_name("away"))
    keys.reload()
    assert keys.caller(b"Bearer secret-a") == Caller("team-a")


def test_no_key_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        loaded(folder)
    assert "2 tenants" in caplog.text
    assert "secret" not in caplog.text
    assert "two" not in caplog.text
