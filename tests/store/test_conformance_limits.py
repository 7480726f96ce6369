"""Limits are global: concurrency and rate count across all workers, in the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.tables import tickets
from fusee.runs.service.queues import QueueOperations
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_limits_are_kept_and_replaced(world: World) -> None:
    assert await world.store.queues.read_limits() == {}
    await world.store.queues.set_limits("mail", QueueLimits(concurrency=3, rate=0.5, burst=7))
    await world.store.queues.set_limits("video", QueueLimits(paused=True))
    other = await world.another()
    limits = {"mail": QueueLimits(concurrency=3, rate=0.5, burst=7), "video": QueueLimits(paused=True)}
    assert await other.queues.read_limits() == limits
    await world.store.queues.set_limits("mail", QueueLimits(concurrency=1))
    await world.store.queues.set_limits("video", QueueLimits())
    assert await other.queues.read_limits() == {"mail": QueueLimits(concurrency=1)}
    assert await world.store.for_namespace("tenant").queues.read_limits() == {}


async def test_a_concurrency_cap_counts_across_racing_sessions(world: World) -> None:
    other = await world.another()
    await world.enqueue(40)
    await world.store.queues.set_limits("default", QueueLimits(concurrency=5))
    first, second = await world.session("a"), await world.session("b", store=other)

    async def some(session: int, store: Any) -> list[int]:
        return [run.id for run in await world.claim_limited(session, 3, store=store)]

    parts = await asyncio.gather(
        *(
            some(session, store)
            for _ in range(4)
            for session, store in ((first, world.store), (second, other))
        )
    )
    claimed = [run_id for part in parts for run_id in part]
    assert len(claimed) == len(set(claimed)) == 5
    assert await world.tally() == {"running": 5, "pending": 35}
    assert await world.claim_limited(first) == []


async def test_a_rate_counts_across_racing_sessions(world: World) -> None:
    other = await world.another()
    await world.enqueue(100)
    await world.store.queues.set_limits("default", QueueLimits(rate=2, burst=6))
    first, second = await world.session("a", ttl=1e6), await world.session("b", store=other, ttl=1e6)

    async def starts() -> int:
        parts = await asyncio.gather(
            *(
                world.claim_limited(session, 4, store=store)
                for _ in range(3)
                for session, store in ((first, world.store), (second, other))
            )
        )
        return sum(map(len, parts))

    assert await starts() == 6, "the burst"
    assert await starts() == 0
    started = 0
    for _ in range(10):
        await world.clock.tick(0.75)
        started += await starts()
    assert started == 15, "2 a second for 7.5 s"
    await world.clock.tick(1000)
    assert await starts() == 6, "what was not used is not saved up beyond the burst"


async def test_a_paused_queue_starts_nothing(world: World) -> None:
    session = await world.session()
    await world.enqueue(2)
    await world.store.queues.set_limits("default", QueueLimits(paused=True, concurrency=5))
    assert await world.claim_limited(session) == []
    await world.store.queues.set_limits("default", QueueLimits(concurrency=5))
    assert len(await world.claim_limited(session)) == 2


async def test_a_queue_whose_limits_are_gone_is_free(world: World) -> None:
    session = await world.session()
    await world.enqueue(5)
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    await world.store.queues.set_limits("default", QueueLimits())
    assert len(await world.claim_limited(session)) == 5


async def test_limits_hold_for_one_queue_of_one_namespace(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    session, theirs = await world.session(), await world.session(store=tenant)
    await world.enqueue(3)
    await world.enqueue(3, queue="mail")
    await world.enqueue(3, store=tenant)
    assert len(await world.claim_limited(session)) == 1
    assert len(await world.claim_limited(session, queue="mail")) == 3
    assert len(await world.claim_limited(theirs, store=tenant)) == 3


async def test_limited_claims_go_by_priority_then_due_time(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=3))
    session = await world.session()
    low = await world.enqueue_one(handler="a", priority=-1)
    old = await world.enqueue_one(handler="b")
    await world.clock.tick(1)
    new = await world.enqueue_one(handler="a")
    high = await world.enqueue_one(handler="c", priority=1)
    claimed = await world.claim_limited(session)
    assert [run.id for run in claimed] == [high, old, new]
    assert [(run.attempt, run.ticket) for run in claimed] == [(1, True)] * 3
    assert (await world.run(low)).status == "pending"


ENDS: list[tuple[End, dict[str, Any]]] = [
    (End.SUCCEEDED, {}),
    (End.FAILED, {}),
    (End.FAILED, {"final": True}),
    (End.TIMED_OUT, {}),
    (End.ABANDONED, {}),
    (End.SKIPPED, {"effect": Effect.NONE}),
    (End.CANCELED, {}),
    (End.LOST, {}),
    (End.RETURNED, {"effect": Effect.NONE}),
]


async def test_every_kind_of_end_gives_the_ticket_back(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    session = await world.session()
    for end, fields in ENDS:
        run_id = await world.enqueue_one(priority=1)
        (claimed,) = await world.claim_limited(session)
        assert claimed.id == run_id
        assert len(await world.rows(tickets)) == 1
        await world.settle(session, claimed, end=end, **fields)
        assert await world.rows(tickets) == [], end
        if (await world.run(run_id)).status == "pending":
            await world.store.runs.cancel(run_id, "make room")


async def test_a_recovery_gives_the_tickets_back(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=2))
    doomed, other = await world.session("doomed"), await world.session("other", ttl=3600)
    await world.enqueue(3, retry=RetryPolicy(max_attempts=2))
    await world.claim_limited(doomed)
    assert await world.claim_limited(other) == []
    await world.clock.tick(31)
    await world.store.recovery.recover()
    assert await world.rows(tickets) == []
    assert [run.attempt for run in await world.claim_limited(other)] == [2, 2]


async def test_a_refused_write_gives_no_ticket_back(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    late, other = await world.session("late"), await world.session("other", ttl=3600)
    await world.enqueue(2)
    (claimed,) = await world.claim_limited(late)
    await world.clock.tick(31)
    await world.store.recovery.recover()
    (again,) = await world.claim_limited(other)
    assert again.id == claimed.id
    await world.settle(late, claimed, end=End.FAILED)
    assert len(await world.rows(tickets)) == 1
    assert await world.claim_limited(other) == []


async def test_a_lowered_cap_waits_for_places(world: World) -> None:
    session = await world.session()
    await world.enqueue(5)
    await world.store.queues.set_limits("default", QueueLimits(concurrency=3))
    claimed = await world.claim_limited(session)
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    await world.settle(session, claimed[0], end=End.SUCCEEDED)
    await world.settle(session, claimed[1], end=End.SUCCEEDED)
    assert await world.claim_limited(session) == []
    await world.settle(session, claimed[2], end=End.SUCCEEDED)
    assert len(await world.claim_limited(session)) == 1


async def test_a_cap_holds_while_it_is_being_changed(world: World) -> None:
    """Whoever claims while the limits are rewritten must see the old ones or the new, never none."""
    other = await world.another()
    await world.enqueue(200)
    await world.store.queues.set_limits("default", QueueLimits(concurrency=2))
    session = await world.session()
    await asyncio.gather(
        *(
            work
            for n in range(15)
            for work in (
                world.claim_limited(session, 50),
                other.queues.set_limits("default", QueueLimits(concurrency=2 - n % 2)),
                world.claim_limited(session, 50, store=other),
            )
        )
    )
    assert (await world.tally())["running"] <= 2


async def test_a_change_of_limits_lets_no_burst_through(world: World) -> None:
    session = await world.session()
    await world.enqueue(20)
    await world.store.queues.set_limits("default", QueueLimits(rate=1, burst=5))
    assert len(await world.claim_limited(session)) == 5
    for burst in (5, 4, 6):
        await world.store.queues.set_limits("default", QueueLimits(rate=1, burst=burst))
        assert await world.claim_limited(session) == []
    await world.clock.tick(2)
    assert len(await world.claim_limited(session)) == 2


async def test_the_first_limits_may_be_set_by_two_at_once(world: World) -> None:
    other = await world.another()
    wanted = QueueLimits(concurrency=2)
    await asyncio.gather(*(store.queues.set_limits("default", wanted) for store in (world.store, other) * 3))
    assert await world.store.queues.read_limits() == {"default": wanted}


async def test_of_two_changes_at_the_same_time_neither_undoes_the_other(world: World) -> None:
    queues = QueueOperations(world.store), QueueOperations(await world.another())
    for nr in range(10):
        name = f"mail{nr}"
        await queues[0].limit(name, QueueLimits(concurrency=1, rate=1, burst=2))
        await asyncio.gather(
            queues[0].pause(name, True),
            queues[1].change(name, {"concurrency": 7}),
            queues[0].change(name, {"rate": 5.0}),
            queues[1].change(name, {"burst": 9}),
        )
        changed = (await queues[0].get(name)).limits
        assert changed == QueueLimits(paused=True, concurrency=7, rate=5.0, burst=9)
