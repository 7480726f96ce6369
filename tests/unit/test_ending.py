"""Tasks that are to end do, also when a cancel gets lost."""

from __future__ import annotations

import asyncio

import pytest

from fusee.engine import ending
from fusee.engine.ending import end


async def _deaf(times: int) -> None:
    """Loses so many cancels, as `wait_for` does when an answer comes at the same moment."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if times == 0:
                raise
            times -= 1


async def _broken() -> None:
    raise RuntimeError("broken")


async def test_a_task_that_loses_cancels_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "AGAIN", 0.01)
    tasks = [asyncio.create_task(_deaf(times)) for times in (0, 1, 3)]
    await asyncio.sleep(0)
    await asyncio.wait_for(end(tasks), 30)
    assert all(task.cancelled() for task in tasks)


async def test_one_that_failed_before_does_no_harm() -> None:
    task = asyncio.create_task(_broken())
    await asyncio.sleep(0)
    await end([task])
    assert task.done()


async def test_none_at_all() -> None:
    await end([])
