"""A handler that hangs, under each policy: what the next fires do, and that nothing hangs with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fusee import Fusee
from fusee.tasks.model.fire import Fire
from fusee.tasks.store.history import FireFilter
from tests.chaos.inside import make_app, until

pytestmark = pytest.mark.heavy


@asynccontextmanager
async def _hanging(url: str) -> AsyncIterator[tuple[Fusee, list[int]]]:
    """An app whose handler never returns, and how many of it run at this moment."""
    app = make_app(url, dispatcher={"schedule_interval_seconds": 0.05})
    going: list[int] = []

    @app.handler("hangs")
    async def hangs() -> None:
        going.append(1)
        try:
            await asyncio.sleep(3600)
        finally:
            going.pop()

    async with app.running():
        yield app, going


async def _fires(app: Fusee, name: str = "stuck") -> list[Fire]:
    return list(reversed(await app.tasks.fires(name, FireFilter(limit=1000))))


async def _trigger(app: Fusee, times: int) -> list[str]:
    return [str((await app.tasks.trigger("stuck")).decision) for _ in range(times)]


TASK = {"name": "stuck", "handler": "hangs", "retry": {"max_attempts": 1}}


async def test_overlap_skip_leaves_the_next_fires_out(database_url: str) -> None:
    async with _hanging(database_url) as (app, going):
        await app.tasks.create({**TASK, "overlap_action": "SKIP"})
        await app.tasks.trigger("stuck")
        await until(lambda: len(going) == 1)
        assert await _trigger(app, 2) == ["skip", "skip"]
        assert len(going) == 1
        await _stop(app)


async def test_cancel_prev_ends_the_hanging_one_and_starts_the_new_one_after_it(database_url: str) -> None:
    async with _hanging(database_url) as (app, going):
        await app.tasks.create({**TASK, "overlap_action": "CANCEL_PREV"})
        first = (await app.tasks.trigger("stuck")).run_ids[0]
        await until(lambda: len(going) == 1)
        second = (await app.tasks.trigger("stuck")).run_ids[0]
        await until(lambda: _status(app, first, "canceled"))
        await until(lambda: _status(app, second, "running"))
        await until(lambda: len(going) == 1)
        await _stop(app)


async def test_parallel_starts_beside_it(database_url: str) -> None:
    async with _hanging(database_url) as (app, going):
        await app.tasks.create({**TASK, "overlap_action": "PARALLEL"})
        await _trigger(app, 3)
        await until(lambda: len(going) == 3)
        assert [fire.code for fire in await _fires(app)] == ["manual", "overlap", "overlap"]
        await _stop(app)


async def test_the_line_waits_behind_it_and_a_timeout_lets_it_move(database_url: str) -> None:
    async with _hanging(database_url) as (app, going):
        await app.tasks.create({**TASK, "queue_depth": 2, "timeout": 0.5})
        assert await _trigger(app, 4) == ["run", "queue", "queue", "skip"]
        ids = [fire.run_id for fire in (await _fires(app))[:3]]
        for run_id in ids:  # each hangs, is stopped by its timeout, and the next one starts
            await until(lambda run_id=run_id: _status(app, run_id, "timed_out"))  # type: ignore[misc]
        await until(lambda: not going)


async def test_a_failure_pause_stops_the_task_after_the_first_hang(database_url: str) -> None:
    async with _hanging(database_url) as (app, going):
        await app.tasks.create({**TASK, "failure_action": "PAUSE", "timeout": 0.3})
        await app.tasks.trigger("stuck")

        async def paused() -> bool:
            return (await app.tasks.get("stuck")).status == "paused"

        await until(paused)
        await until(lambda: not going)


async def _status(app: Fusee, run_id: int, status: str) -> bool:
    return (await app.store.runs.run(run_id)).status == status


async def _stop(app: Fusee) -> None:
    """Leaving an app waits for what runs: end it first."""
    for fire in await _fires(app):
        run = await app.store.runs.run(fire.run_id)
        if not run.ended:
            await app.store.runs.cancel(run.id, "the test is over")
