"""The mounted settings file, changed the way the kubelet changes it: a symbolic link swapped to a new folder."""

import asyncio
import os
from pathlib import Path

import pytest

from gpu_worker.settings.file import SettingsFile
from gpu_worker.settings.keeper import SettingsKeeper
from tailkeeper.api.enums import Mode
from tests.unit.worker.doubles import IDENTITY, document


class Mount:
    """A ConfigMap volume: settings.json -> ..data/settings.json, ..data -> ..N/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._versions = 0
        self.file = root / "settings.json"
        self.file.symlink_to("..data/settings.json")

    def publish(self, text: str) -> None:
        self._versions += 1
        folder = self.root / f"..{self._versions}"
        folder.mkdir()
        (folder / "settings.json").write_text(text)
        link = self.root / "..data_tmp"
        link.symlink_to(folder.name)
        os.rename(link, self.root / "..data")


@pytest.fixture
def keeper() -> SettingsKeeper:
    return SettingsKeeper(IDENTITY, frozenset({Mode.REQUEST}), lambda settings: None)


def generation(keeper: SettingsKeeper) -> int | None:
    return keeper.applied.settings.generation if keeper.applied else None


async def test_a_swapped_link_is_noticed(tmp_path: Path, keeper: SettingsKeeper) -> None:
    mount = Mount(tmp_path)
    mount.publish(document(1))
    task = asyncio.create_task(SettingsFile(mount.file, keeper, poll_s=0.01).run())
    await asyncio.sleep(0.05)
    assert generation(keeper) == 1
    mount.publish(document(2))
    await asyncio.sleep(0.1)
    assert generation(keeper) == 2
    task.cancel()


def test_a_missing_file_is_no_refusal_and_is_read_when_it_comes(tmp_path: Path, keeper: SettingsKeeper) -> None:
    mount = Mount(tmp_path)
    file = SettingsFile(mount.file, keeper)
    file.look()
    assert (generation(keeper), keeper.refused) == (None, 0)
    mount.publish(document(1))
    file.look()
    assert generation(keeper) == 1


def test_a_broken_document_keeps_the_last_good_one_until_the_next(tmp_path: Path, keeper: SettingsKeeper) -> None:
    mount = Mount(tmp_path)
    file = SettingsFile(mount.file, keeper)
    for text in (document(1), "not json", document(2)):
        mount.publish(text)
        file.look()
        file.look()
    assert (generation(keeper), keeper.refused, keeper.last_refusal) == (2, 1, None)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, keeper: SettingsKeeper) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b"\xff\xfe\x00")
    SettingsFile(path, keeper).look()
    assert keeper.refused == 1
