"""Workers die, drain and come with work assigned to them: all of it is done, and no attempt starts twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from fusee import RunHandle
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import SessionState
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.tables import ready
from tests.chaos.harness import Fleet, Member, fleet, judge, some_runs

STRATEGIES = ("round_robin", "least_loaded", "affinity", "consistent_hash")


def placed(crew: Fleet, count: int) -> list[RunSpec]:
    """Runs of every kind, each with a strategy."""
    return [
        replace(spec, strategy=crew.chance.choice(STRATEGIES)) for spec in some_runs(crew, count, shell=0.0)
    ]


async def burdened(crew: Fleet) -> Member | None:
    """A worker in whose own lane something stands."""
    sessions = {session.info.pid: session for session in await crew.app.store.sessions.sessions()}
    for member in crew.of("worker"):
        session = sessions.get(member.pid)
        if session is not None and session.state is SessionState.ALIVE:
            here = select(func.count()).select_from(ready).where(ready.c.lane_id == own_lane(session.id))
            if await crew.app.store.database.read(lambda c, q=here: c.execute(q).scalar_one()):  # type: ignore[misc]
                return member
    return None


async def under_fire(crew: Fleet, kills: int, portion: int) -> tuple[list[RunHandle], int]:
    """Feed it, and kill a worker that holds assigned work each time; answers how many really held some."""
    handles: list[RunHandle] = []
    hit = 0
    for _ in range(kills):
        handles += await crew.app.enqueue_many(placed(crew, portion))
        victim = None
        for _ in range(100):
            if (victim := await burdened(crew)) is not None:
                break
            await asyncio.sleep(0.01)
        hit += victim is not None
        victim = victim or crew.chance.choice(crew.of("worker"))
        # One that has just begun to start would not drain but die, which is the other case.
        if crew.chance.random() < 0.25 and b"ready" in victim.log.read_bytes():
            assert await crew.terminate(victim) == 0
        else:
            await asyncio.to_thread(crew.kill, victim)
        crew.start("worker")
    return handles, hit


async def test_a_few_workers_die_with_work_assigned_to_them(database_url: str, tmp_path: Path) -> None:
    async with fleet(database_url, tmp_path, workers=2, dispatchers=1) as crew:
        handles, hit = await under_fire(crew, 3, 150)
        judge(crew, await crew.all_ended(handles, 60))
    assert hit > 0, "no worker held anything when it died: the test was too kind"


@pytest.mark.chaos
async def test_thirty_workers_die_with_work_assigned_to_them(database_url: str, tmp_path: Path) -> None:
    async with fleet(database_url, tmp_path, workers=3, dispatchers=2) as crew:
        handles, hit = await under_fire(crew, 30, 100)
        await asyncio.to_thread(crew.kill, crew.of("dispatcher")[0])
        told = judge(crew, await crew.all_ended(handles, 120))
    print(told, "held assigned work:", hit)
    assert told["runs"] == 3000
    assert hit > 10
