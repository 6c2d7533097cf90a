"""`tailkeeper` as people call it, in this process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.cli import main as command

POLICY = """
apiVersion: tailkeeper.dev/v1alpha1
kind: BatchingPolicy
metadata: {name: chat}
spec:
  batching: {tailLatencySlaMs: 200, windowIdle: 32, windowBusy: 8}
  instances:
  - {name: small, replicas: 2, model: {name: m, engine: encoder, path: /m}}
"""


@dataclass(frozen=True)
class Called:
    """How it ended and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, as data."""
        return json.loads(self.out)


class Tailkeeper:
    """Calls the command with the test's own output capture."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capture = capture

    def __call__(self, *arguments: object) -> Called:
        self._monkeypatch.setattr("sys.argv", ["tailkeeper", *(str(one) for one in arguments)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        said = self._capture.readouterr()
        return Called(int(ended.value.code or 0), said.out, said.err)

    def file(self, text: str, name: str = "policy.yaml") -> Path:
        """A file to name on the command line."""
        path = self.folder / name
        path.write_text(text)
        return path
