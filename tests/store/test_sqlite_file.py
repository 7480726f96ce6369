"""The file of an embedded database: it holds every payload and every result, so it is its owner's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fusee.stores import open_store


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: mode(file) for file in folder.iterdir()}


async def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = open_store(f"sqlite:///{tmp_path}/fusee.db")
        await store.open()
        await store.upgrade()
        found = modes(tmp_path)
        assert "fusee.db" in found
        assert set(found.values()) == {0o600}, "also what SQLite writes beside it"
        await store.close()
    finally:
        os.umask(before)


async def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "fusee.db"
    file.touch()
    file.chmod(0o640)
    store = open_store(f"sqlite:///{file}")
    await store.open()
    await store.upgrade()
    await store.close()
    assert mode(file) == 0o640
