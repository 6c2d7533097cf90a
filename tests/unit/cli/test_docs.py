"""The examples of docs/cli.md that need no cluster run as they stand."""

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.cli.calling import Tailkeeper

REPOSITORY = Path(__file__).parents[3]
OFFLINE = ("lint", "plan")


def documented() -> list[list[str]]:
    text = (REPOSITORY / "docs" / "cli.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in re.findall(r"^tailkeeper [a-z].*$", text, re.MULTILINE)]
    return [command for command in commands if command[0] in OFFLINE]


def expanded(argument: str) -> list[str]:
    """As a shell does it."""
    return sorted(map(str, Path().glob(argument))) if "*" in argument else [argument]


@pytest.mark.parametrize("command", documented(), ids=" ".join)
def test_an_example_runs(tailkeeper: Tailkeeper, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    (tailkeeper.folder / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tailkeeper.folder)
    called = tailkeeper(*(each for argument in command for each in expanded(argument)))
    assert called.code == 0, called.err
    assert called.out
