"""The container's memory limit counts, under both versions of cgroups."""

from pathlib import Path

import pytest

from gpu_worker.engines.host_memory import memory_bytes


@pytest.mark.parametrize(("v2", "v1", "bound"), [("1000", None, 1000), (None, "2000", 2000), ("max", "3000", 3000)])
def test_the_limit_of_either_version_counts(tmp_path: Path, v2: str | None, v1: str | None, bound: int) -> None:
    for name, text in (("v2", v2), ("v1", v1)):
        if text is not None:
            (tmp_path / name).write_text(text + "\n")
    assert memory_bytes(tmp_path / "v2", tmp_path / "v1") == bound


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "v2", tmp_path / "v1") > 100 * 2**20
