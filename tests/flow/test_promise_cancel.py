"""Promise 7 where a handler begins long after its claim, because its process is slow to start."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import RunStatus
from tests.chaos.inside import make_app, until, working

SLOW_MODULE = """
import os, time
from pathlib import Path

# The worker imports it before the variable is set; a handler's process imports it afterwards.
if gate := os.environ.get("FUSEE_TEST_GATE"):
    Path(gate + ".importing").touch()
    while not Path(gate).exists():
        time.sleep(0.005)


def work(journal):
    with open(journal, "a") as file:
        file.write(f"{time.monotonic()}\\n")
"""


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module whose import in a handler's process lasts until the file `gate` appears."""
    (tmp_path / "slow_to_import.py").write_text(SLOW_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("slow_to_import")
    monkeypatch.setenv("FUSEE_TEST_GATE", str(tmp_path / "gate"))
    yield module
    del sys.modules["slow_to_import"]


async def test_a_handler_in_a_cold_process_does_not_start_after_an_acknowledged_cancel(
    database_url: str, tmp_path: Path, slow_module: ModuleType
) -> None:
    """The process is still importing when the cancel is acknowledged, and the worker hears of no cancel."""
    app, elsewhere = make_app(database_url), make_app(database_url)
    app.handler("work", isolation="process")(slow_module.work)
    journal = tmp_path / "journal"
    async with working(app) as worker, elsewhere:

        async def deaf(*_: object) -> list[tuple[int, int]]:
            return []

        app.store.runs.cancel_requests = deaf  # type: ignore[method-assign]
        handle = await app.enqueue("work", {"journal": str(journal)})
        await until((tmp_path / "gate.importing").exists)

        async def certain() -> bool:
            return (await app.store.runs.claimed_ago(handle.id) or 0) > 1.5

        await until(certain)
        answer = await elsewhere.runs.cancel(handle.id)
        assert answer.run.status is RunStatus.RUNNING
        (tmp_path / "gate").touch()
        run = await handle.wait(20)
        await until(lambda: not worker.pool.busy)
    assert (run.status, run.effect) == (RunStatus.CANCELED, Effect.NONE)
    assert not journal.exists(), "the handler started after the cancel was acknowledged"


async def test_a_handler_in_a_cold_process_starts_when_nobody_canceled_it(
    database_url: str, tmp_path: Path, slow_module: ModuleType
) -> None:
    """However long its process needs to begin; once, in the same attempt."""
    app = make_app(database_url)
    app.handler("work", isolation="process")(slow_module.work)
    journal = tmp_path / "journal"
    async with working(app):
        handle = await app.enqueue("work", {"journal": str(journal)})
        await until((tmp_path / "gate.importing").exists)

        async def late() -> bool:
            return (await app.store.runs.claimed_ago(handle.id) or 0) > 1.5

        await until(late)
        (tmp_path / "gate").touch()
        run = await handle.wait(20)
    assert (run.status, run.attempt) == (RunStatus.SUCCEEDED, 1)
    assert len(journal.read_text().splitlines()) == 1
