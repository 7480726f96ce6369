"""Priorities rule, and yet nothing waits for ever."""

from __future__ import annotations

import pytest

from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _next(world: World, session: int) -> int:
    claimed = await world.claim_one(session)
    await world.finish(session, claimed)
    return claimed.id


async def test_a_low_priority_is_served_though_high_ones_keep_coming(world: World) -> None:
    session = await world.session()
    low = await world.enqueue_one(priority=-10)
    served: list[int] = []
    for _ in range(10):
        await world.enqueue(2, priority=10)  # always more than is served
        served.append(await _next(world, session))
        await world.clock.tick(60)
        await world.store.aging.lift(300)
    assert low in served
    assert served.index(low) == 6  # it has waited for longer than 300 s after the sixth minute


async def test_nothing_is_lifted_before_its_time(world: World) -> None:
    await world.enqueue(priority=-10)
    await world.enqueue(priority=10)
    await world.clock.tick(299)
    assert await world.store.aging.lift(300) == 0


async def test_only_one_of_each_lane_and_priority_is_lifted_at_a_time(world: World) -> None:
    old = await world.enqueue(5, priority=-10)
    older_queue = await world.enqueue(5, priority=0, queue="mail")
    await world.clock.tick(400)
    urgent = await world.enqueue_one(priority=500)
    assert await world.store.aging.lift(300) == 2
    session = await world.session()
    first = [claimed.id for claimed in await world.claim(session)]
    assert sorted(first[:2]) == [old[0], older_queue[0]]
    assert first[2] == urgent  # a backlog of old work does not stand in the way of something urgent


async def test_the_best_that_waits_is_never_lifted(world: World) -> None:
    (run_id,) = await world.enqueue(priority=3)
    await world.clock.tick(10_000)
    assert await world.store.aging.lift(300) == 0
    assert (await world.run(run_id)).priority == 3


async def test_a_lifted_run_can_be_canceled(world: World) -> None:
    low = await world.enqueue_one(priority=-10)
    await world.enqueue(priority=10)
    await world.clock.tick(400)
    assert await world.store.aging.lift(300) == 1
    assert await world.store.runs.cancel(low, "enough") == "canceled"
