"""Totals that users alert on: kept in the database, so the same for every process that reads them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fusee.engine.dispatcher import Recover
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.totals import SESSIONS_LOST, Total, add_to_totals
from fusee.events import Bus, SessionLost
from fusee.tasks.model.policy import CatchUp
from tests.store.clockwork import Clockwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_losses_are_counted_once_and_seen_by_every_process(world: World) -> None:
    dispatcher, server = world.store, await world.another()
    elsewhere = await world.another("tenant")
    assert await server.totals.totals() == []
    once = RetryPolicy(max_attempts=1)
    await world.enqueue(2)
    await world.enqueue(1, retry=once)
    canceled = await world.enqueue_one()
    doomed = [await world.session(name, ttl=5.0) for name in ("one", "two")]
    for session in doomed:
        assert len(await world.claim(session, 2)) == 2
    await world.store.runs.cancel(canceled, "no more")
    await world.session("three", ttl=5.0, store=elsewhere)
    await world.clock.tick(10)
    await asyncio.gather(dispatcher.recovery.recover(), server.recovery.recover())
    await dispatcher.recovery.recover()
    totals = [
        Total("runs_lost", "canceled", 1),
        Total("runs_lost", "failed", 1),
        Total("runs_lost", "requeued", 2),
        Total("sessions_lost", "", 2),
    ]
    assert await server.totals.totals() == totals == await dispatcher.totals.totals()
    assert await elsewhere.totals.totals() == [Total("sessions_lost", "", 1)], "each tenant has its own"
    assert await (await world.another()).totals.totals() == totals, "a new process reads the same"


async def test_each_loss_is_told_with_its_own_runs(world: World) -> None:
    """And in full, also when it takes several passes to return them."""
    heard: list[SessionLost] = []
    bus = Bus()
    bus.subscribe(SessionLost, heard.append)
    await world.enqueue(3)
    await world.enqueue(1, retry=RetryPolicy(max_attempts=1))
    one, two = await world.session("one", ttl=5.0), await world.session("two", ttl=5.0)
    three = await world.session("three", ttl=5.0)
    for _ in range(3):
        assert len(await world.claim(one, 1)) == 1  # a receipt each
    assert len(await world.claim(two, 1)) == 1
    await world.clock.tick(10)
    loop = Recover(world.store, bus)
    whole = world.store.recovery.recover
    loop.store.recovery.recover = lambda limit=2: whole(limit)  # type: ignore[method-assign]
    while await loop.run_once():
        pass
    assert {(e.session, e.worker, e.requeued, e.failed, e.canceled) for e in heard} == {
        (one, "one", 3, 0, 0),
        (two, "two", 0, 1, 0),
        (three, "three", 0, 0, 0),
    }
    assert len(heard) == 3


async def test_late_results_are_counted_by_the_tenant_whose_run_it_is(world: World) -> None:
    tenant = await world.another("tenant")
    session = await world.session(ttl=5.0, store=tenant)
    run_id = await world.enqueue_one(store=tenant)
    await world.claim(session, store=tenant)
    await world.store.outcomes.record_stale(
        [(run_id, 1, "succeeded")]
    )  # by whoever serves the tenant's worker
    assert await tenant.totals.totals() == [Total("results_refused", "", 1)]
    assert await world.store.totals.totals() == []


async def test_fires_that_nobody_decided_in_time_are_counted(works: Clockwork) -> None:
    await works.make("compact", max_concurrency=0)
    await works.make("none", catch_up=CatchUp.NONE)
    await works.fire_at(1)
    assert await works.store.totals.totals() == [], "in time is nothing to count"
    await works.fire_at(5.5)
    counted = {(total.name, total.label): total.value for total in await works.store.totals.totals()}
    assert counted.keys() == {("fires_missed", "catch_up"), ("fires_missed", "caught_up")}


async def test_two_that_count_for_the_first_time_at_once_both_count(world: World) -> None:
    stores = [world.store, await world.another(), await world.another()]
    counts = Counter({("default", ""): 1})
    for _ in range(5):
        await asyncio.gather(
            *(
                store.database.write(lambda connection: add_to_totals(connection, SESSIONS_LOST, counts))
                for store in stores
            )
        )
    assert await world.store.totals.totals() == [Total("sessions_lost", "", 15)]
