"""A dispatcher with a region fires the tasks of that region and of none; others are left to others."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from fusee.tasks.store.tables import tasks
from tests.store.clockwork import Clockwork

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def fires(works: Clockwork) -> dict[str, int]:
    """Task → how many of its fires are on record."""
    return {name: len(rows) for name, rows in (await works.records()).items()}


async def three(works: Clockwork) -> None:
    await works.make("anywhere")
    await works.make("eu", region="eu")
    await works.make("us", region="us")


async def test_it_fires_its_own_and_those_of_none(works: Clockwork) -> None:
    await three(works)
    await works.go_to(1)
    assert (await works.store.tasks.firing.fire_due(region="eu")).tasks == 2
    assert await fires(works) == {"anywhere": 1, "eu": 1}
    assert not await works.store.tasks.firing.fire_due(region="eu")
    assert (await works.store.tasks.firing.fire_due(region="us")).tasks == 1
    assert await fires(works) == {"anywhere": 1, "eu": 1, "us": 1}


async def test_one_without_a_region_fires_all(works: Clockwork) -> None:
    await three(works)
    await works.go_to(1)
    assert (await works.store.tasks.firing.fire_due()).tasks == 3


async def test_what_is_due_elsewhere_neither_wakes_it_nor_stands_in_its_way(works: Clockwork) -> None:
    for n in range(5):
        await works.make(f"us{n}", region="us")
    await works.go_to(0.5)
    await works.make("eu", region="eu", cron="30 * * * * *")
    await works.go_to(1)
    quiet = await works.store.tasks.firing.fire_due(limit=2, region="eu")
    assert (quiet.tasks, quiet.next_in) == (0, 30.0)
    await works.go_to(1.5)
    assert (await works.store.tasks.firing.fire_due(limit=2, region="eu")).tasks == 1


async def test_a_task_that_moves_to_another_region_is_fired_there(works: Clockwork) -> None:
    await works.make("t", region="eu")
    await works.change("t", region="us")
    await works.go_to(1)
    assert not await works.store.tasks.firing.fire_due(region="eu")
    assert (await works.store.tasks.firing.fire_due(region="us")).tasks == 1


@pytest.mark.parametrize("written", [None, "eu"], ids=["before the column", "by a version without it"])
async def test_the_definition_has_the_last_word(works: Clockwork, written: str | None) -> None:
    """An older version knows nothing of the column: what it says may be missing, or be out of date."""
    await works.make("t", region="us")
    stale = update(tasks).values(region=written)
    await works.store.database.write(lambda connection: connection.execute(stale).close())
    await works.go_to(1)
    assert not await works.store.tasks.firing.fire_due(region="eu"), "it looked, and left it alone"
    (row,) = await works.world.rows(tasks)
    assert row.region == "us"
    assert (await works.store.tasks.firing.fire_due(region="us")).tasks == 1


async def test_dispatchers_of_all_regions_at_once_fire_each_task_once(works: Clockwork) -> None:
    other = await works.world.another()
    for n in range(12):
        await works.make(f"t{n}", region=("", "eu", "us")[n % 3])
    await works.go_to(1)
    calls = [
        store.tasks.firing.fire_due(limit=3, region=r)
        for store in (works.store, other)
        for r in ("eu", "us", "")
    ]
    await asyncio.gather(*calls)
    while await works.store.tasks.firing.fire_due(region="eu") or await works.store.tasks.firing.fire_due(
        region="us"
    ):
        pass
    assert sorted((await fires(works)).values()) == [1] * 12
