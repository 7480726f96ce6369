"""Promoting what is due and pruning what is old."""

from __future__ import annotations

import asyncio

import pytest

from fusee.engine.model.outcome import Effect, End
from fusee.engine.store.ready_queue import Promoted
from fusee.engine.store.retention import Pruned
from fusee.engine.store.tables import attempts, sessions
from fusee.errors import NotFound
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR, DAY = 3600.0, 86400.0


# --- promote ------------------------------------------------------------------------------------------


async def test_a_promotion_says_when_the_next_is_due(world: World) -> None:
    assert await world.store.ready_queue.promote() == Promoted(0, None)
    run_id = await world.enqueue_one(delay=10)
    await world.enqueue(delay=25.5)
    assert await world.store.ready_queue.promote() == Promoted(0, 10.0)
    await world.clock.tick(9.999999)
    assert await world.store.ready_queue.promote() == Promoted(0, 0.000001)
    await world.clock.tick(0.000001)
    assert await world.store.ready_queue.promote() == Promoted(1, 15.5)
    run = await world.run(run_id)
    assert (run.status, run.due_at) == ("pending", START + 10_000_000)
    await world.clock.tick(100)
    assert await world.store.ready_queue.promote() == Promoted(1, None)
    assert not await world.store.ready_queue.promote()


async def test_promotions_go_by_due_time_up_to_the_limit(world: World) -> None:
    ids = [await world.enqueue_one(delay=delay) for delay in (30, 10, 20, 10, 40)]
    await world.clock.tick(100)
    assert await world.store.ready_queue.promote(limit=2) == Promoted(2, 0.0)
    assert await world.statuses(ids) == ["delayed", "pending", "delayed", "pending", "delayed"]
    assert await world.store.ready_queue.promote(limit=2) == Promoted(2, 0.0)
    assert await world.statuses(ids) == ["pending", "pending", "pending", "pending", "delayed"]
    assert await world.store.ready_queue.promote(limit=2) == Promoted(1, None)


async def test_what_is_promoted_is_claimed_in_order(world: World) -> None:
    session = await world.session(ttl=HOUR)
    late, soon = await world.enqueue_one(delay=20), await world.enqueue_one(delay=10)
    urgent = await world.enqueue_one(delay=30, priority=1)
    await world.clock.tick(60)
    now = await world.enqueue_one()
    await world.store.ready_queue.promote()
    assert [run.id for run in await world.claim(session)] == [urgent, soon, late, now]


async def test_racing_promotions_promote_each_run_once(world: World) -> None:
    other = await world.another()
    await world.enqueue(200, delay=1)
    await world.clock.tick(2)
    answers = await asyncio.gather(
        *(store.ready_queue.promote(30) for _ in range(5) for store in (world.store, other))
    )
    done = sum(answer.count for answer in answers)
    while promoted := await world.store.ready_queue.promote(30):
        done += promoted.count
    assert done == 200
    assert await world.tally() == {"pending": 200}


async def test_a_promotion_looks_at_every_namespace_and_wakes_the_workers(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    run_id = await world.enqueue_one(store=tenant, delay=5)
    heard: list[str] = []
    world.store.wakes.on("pending", lambda: heard.append("pending"))
    await world.clock.tick(5)
    assert (await world.store.ready_queue.promote()).count == 1
    assert (await tenant.runs.run(run_id)).status == "pending"
    assert heard


# --- prune --------------------------------------------------------------------------------------------


async def _finish_some(world: World, count: int, session: int) -> list[int]:
    ids = await world.enqueue(count)
    await world.finish(session, *await world.claim(session, count))
    return ids


async def test_pruning_deletes_by_age_of_the_end(world: World) -> None:
    session = await world.session(ttl=30 * DAY)
    old = await _finish_some(world, 3, session)
    await world.clock.tick(HOUR)
    new = await _finish_some(world, 2, session)
    await world.clock.tick(DAY - HOUR + 1)
    assert await world.store.retention.prune(DAY, 0, 1000) == Pruned(3, 0)
    for run_id in old:
        with pytest.raises(NotFound):
            await world.run(run_id)
    assert await world.statuses(new) == ["succeeded"] * 2
    await world.clock.tick(DAY)
    assert await world.store.retention.prune(DAY, 0, 1000) == Pruned(2, 0)
    assert await world.tally() == {}
    assert not await world.store.retention.prune(DAY, 0, 1000)


async def test_a_run_that_ended_exactly_then_is_kept(world: World) -> None:
    session = await world.session(ttl=30 * DAY)
    await _finish_some(world, 1, session)
    await world.clock.tick(DAY)
    assert (await world.store.retention.prune(DAY, 0, 10)).count == 0


async def test_pruning_keeps_what_has_not_ended_however_old(world: World) -> None:
    session = await world.session(ttl=1000 * DAY)
    await world.enqueue(3)
    running, retried, canceled = await world.claim(session)
    await world.settle(session, retried, end=End.FAILED, after=2 * DAY)
    await world.settle(session, canceled, end=End.CANCELED)
    await world.enqueue()
    await world.clock.tick(400 * DAY)
    assert await world.store.retention.prune(DAY, 0, 1000) == Pruned(1, 0)
    assert await world.tally() == {"running": 1, "delayed": 1, "pending": 1}
    assert (await world.run(running.id)).status == "running"
    assert len(await world.store.runs.attempts(retried.id)) == 1


async def test_pruning_goes_in_small_batches_from_its_cursor(world: World) -> None:
    session = await world.session(ttl=30 * DAY)
    ids = await _finish_some(world, 10, session)
    await world.clock.tick(2 * DAY)
    seen, cursor = [], 0
    while True:
        pruned = await world.store.retention.prune(DAY, cursor, 4)
        seen.append(pruned.count)
        cursor = pruned.cursor
        if not cursor:
            break
        assert cursor in ids
    assert seen == [4, 4, 2]
    assert await world.tally() == {}


async def test_pruning_takes_the_attempts_along(world: World) -> None:
    session = await world.session(ttl=30 * DAY)
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.FAILED, after=0)
    await world.store.ready_queue.promote()
    await world.settle(session, await world.claim_one(session), end=End.ABANDONED)
    assert len(await world.rows(attempts)) == 1
    await world.clock.tick(2 * DAY)
    assert (await world.store.retention.prune(DAY, 0, 10)).count == 1
    assert await world.rows(attempts) == []


async def test_pruning_forgets_sessions_that_ended_long_ago(world: World) -> None:
    alive, ended, lost = [
        await world.session(name, ttl=ttl) for name, ttl in (("a", 1e6), ("b", 9), ("c", 9))
    ]
    await world.store.sessions.end_session(ended)
    await world.clock.tick(10)
    await world.store.recovery.recover()
    await world.store.retention.prune(DAY, 0, 10)
    assert {row.id for row in await world.rows(sessions)} == {alive, ended, lost}
    await world.clock.tick(DAY + 1)
    await world.store.retention.prune(DAY, 0, 10)
    assert {row.id for row in await world.rows(sessions)} == {alive}


async def test_a_key_may_be_used_again_after_pruning(world: World) -> None:
    session = await world.session(ttl=30 * DAY)
    first = await world.enqueue_one(idempotency_key="k")
    await world.finish(session, await world.claim_one(session))
    await world.clock.tick(2 * DAY)
    await world.store.retention.prune(DAY, 0, 10)
    assert await world.enqueue_one(idempotency_key="k") != first


async def test_ids_are_never_used_again(world: World) -> None:
    """A worker that slept through the pruning must not write about another run."""
    session = await world.session(ttl=30 * DAY)
    (first,) = await world.enqueue(1)
    claimed = await world.claim_one(session)
    await world.settle(session, claimed, end=End.SKIPPED, effect=Effect.NONE)
    await world.clock.tick(2 * DAY)
    await world.store.retention.prune(DAY, 0, 10)
    assert await world.enqueue_one() > first
