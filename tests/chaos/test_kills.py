"""SIGKILL at random moments: nothing accepted is lost, no attempt starts twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fusee import RunHandle
from tests.chaos.harness import Fleet, fleet, judge, some_runs


async def under_fire(crew: Fleet, kills: int, portion: int, *, roles: tuple[str, ...]) -> list[RunHandle]:
    """Feed the fleet, and kill a member after a random part of each portion has begun."""
    handles: list[RunHandle] = []
    for _ in range(kills):
        before = crew.journal.count()
        handles += await crew.app.enqueue_many(some_runs(crew, portion))
        wanted = before + crew.chance.randrange(2 * portion)
        try:
            await crew.until(lambda at=wanted: crew.journal.count() >= at, 10)  # type: ignore[misc]
        except AssertionError:
            if crew.crashed():
                raise
        role = crew.chance.choice(roles)
        crew.kill(crew.chance.choice(crew.of(role)))
        crew.start(role)
    return handles


async def test_a_few_kills(database_url: str, tmp_path: Path) -> None:
    async with fleet(database_url, tmp_path, workers=2, dispatchers=1) as crew:
        handles = await under_fire(crew, 6, 34, roles=("worker",))
        judge(crew, await crew.all_ended(handles, 30))


@pytest.mark.chaos
async def test_fifty_kills(database_url: str, tmp_path: Path) -> None:
    async with fleet(database_url, tmp_path) as crew:
        handles = await under_fire(crew, 50, 40, roles=("worker",))
        told = judge(crew, await crew.all_ended(handles, 60))
    print(told)
    assert told["runs"] == 2000
    assert told["cut_short"] > 0, "no kill hit anything: the test was too kind"


@pytest.mark.chaos
async def test_dispatchers_die_too(database_url: str, tmp_path: Path) -> None:
    async with fleet(database_url, tmp_path) as crew:
        handles = await under_fire(crew, 20, 40, roles=("worker", "dispatcher"))
        # The last killed worker's runs are found by whoever is left.
        await asyncio.to_thread(crew.kill, crew.of("dispatcher")[0])
        told = judge(crew, await crew.all_ended(handles, 60))
    print(told)
