"""The command, called as people call it."""

from pathlib import Path

import pytest

from tests.unit.cli.calling import Tailkeeper


@pytest.fixture
def tailkeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tailkeeper:
    return Tailkeeper(tmp_path, monkeypatch, capsys)
