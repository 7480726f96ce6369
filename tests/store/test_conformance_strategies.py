"""Strategies: a rule gives runs to workers; they stand in a lane of the worker's own, and are never lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import Claimed, RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Order
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.runs import RunFilter
from fusee.engine.store.tables import assigned, lanes, queues, ready, tickets
from fusee.placement.assign import Assigned
from fusee.stores import Store
from tests.store.clockwork import Clockwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def own(world: World, session: int, want: int = 1000) -> list[Claimed]:
    """What the worker claims of what it was given."""
    return await world.claim(session, want, lanes=[own_lane(session)])


async def waiting(world: World) -> dict[int, int]:
    """Own lane's session (0: at home) → how many stand there."""
    return dict(Counter(max(0, -row.lane_id) for row in await world.rows(ready)))


# -- placing


async def test_by_turns_each_worker_gets_as_many(world: World) -> None:
    sessions = [await world.session(name) for name in "abc"]
    ids = await world.enqueue(12, strategy="round_robin")
    assert await world.store.assignments.assign() == Assigned(placed=12, in_use=True)
    got = {session: await own(world, session) for session in sessions}
    assert {len(claimed) for claimed in got.values()} == {4}
    assert sorted(run.id for claimed in got.values() for run in claimed) == sorted(ids)
    assert {run.attempt for claimed in got.values() for run in claimed} == {1}


async def test_whose_turn_it_was_is_remembered(world: World) -> None:
    """Fair over many passes, and over many dispatchers."""
    other = await world.another()
    sessions = [await world.session(name) for name in "abc"]
    for store in (world.store, other, world.store, other):
        await world.enqueue(2, strategy="round_robin")
        await store.assignments.assign()
    stand = await waiting(world)
    assert [stand[session] for session in sessions] == [3, 3, 2]
    (row,) = await world.rows(lanes)
    assert row.turn == "b"


async def test_the_least_loaded_gets_the_next(world: World) -> None:
    busy, idle = await world.session("busy"), await world.session("idle")
    await world.store.sessions.renew(busy, 30, running=8)
    await world.enqueue(4, strategy="least_loaded")
    await world.store.assignments.assign()
    assert await waiting(world) == {idle: 4}


async def test_runs_of_one_key_go_to_one_worker(world: World) -> None:
    sessions = [await world.session(name, capacity=100) for name in "abcd"]
    for n in range(60):
        await world.enqueue(strategy="consistent_hash", hash_key=f"user-{n % 12}", payload={"n": n % 12})
    await world.store.assignments.assign()
    where: dict[int, set[int]] = {}
    for session in sessions:
        for run in await own(world, session):
            where.setdefault((await world.run(run.id)).payload["n"], set()).add(session)
    assert len(where) == 12 and all(len(homes) == 1 for homes in where.values())
    assert len({home for homes in where.values() for home in homes}) > 1


async def test_runs_of_one_handler_stay_together(world: World) -> None:
    for name in "abc":
        await world.session(name)
    await world.enqueue(5, strategy="affinity")
    await world.store.assignments.assign()
    assert list((await waiting(world)).values()) == [5]


async def test_nobody_is_given_more_than_twice_what_it_can_run(world: World) -> None:
    session = await world.session(capacity=3)
    await world.enqueue(20, strategy="round_robin")
    assert (await world.store.assignments.assign()).placed == 6
    assert (await world.store.assignments.assign()).placed == 0
    await own(world, session, 4)
    assert (await world.store.assignments.assign()).placed == 0, "what runs counts too"
    assert await waiting(world) == {0: 14, session: 2}


async def test_room_that_comes_free_is_filled(world: World) -> None:
    session = await world.session(capacity=3)
    await world.enqueue(20, strategy="round_robin")
    await world.store.assignments.assign()
    await world.finish(session, *(await own(world, session, 4)))
    assert (await world.store.assignments.assign()).placed == 4


async def test_a_queue_may_say_it_for_its_runs(world: World) -> None:
    a, b = await world.session("a"), await world.session("b")
    await world.enqueue(4)
    assert await world.store.assignments.assign() == Assigned(), "nothing asks for it"
    await world.store.queues.set_strategy("default", "round_robin")
    assert (await world.store.assignments.assign()).placed == 4
    assert await waiting(world) == {a: 2, b: 2}
    assert (await world.store.queues.read_limits())["default"].strategy == "round_robin"


async def test_a_run_that_says_it_itself_counts_more_than_its_queue(world: World) -> None:
    session = await world.session("a")
    await world.store.queues.set_strategy("default", "round_robin")
    await world.enqueue(1, strategy="shared")
    await world.enqueue(1)
    assert (await world.store.assignments.assign()).placed == 1
    assert await waiting(world) == {0: 1, session: 1}


async def test_limits_and_strategy_of_a_queue_do_not_disturb_each_other(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=3))
    await world.store.queues.set_strategy("default", "affinity")
    await world.store.queues.set_limits("default", QueueLimits(rate=2.0))
    (row,) = await world.rows(queues)
    assert (row.strategy, row.concurrency, row.rate) == ("affinity", None, 2.0)
    await world.store.queues.set_limits("default", QueueLimits())
    assert (await world.rows(queues))[0].strategy == "affinity"
    await world.store.queues.set_strategy("default", None)
    await world.store.queues.set_limits("default", QueueLimits())
    assert await world.rows(queues) == []


async def test_priority_and_age_decide_who_is_placed_first(world: World) -> None:
    session = await world.session(capacity=1)
    await world.enqueue(2, strategy="round_robin")
    high = await world.enqueue(2, strategy="round_robin", priority=5)
    await world.store.assignments.assign()
    assert [run.id for run in await own(world, session)] == high


# -- filters


async def test_work_goes_only_to_who_has_what_it_asks_for(world: World) -> None:
    await world.session("undeclared")
    await world.session("small", cpu=1.0, memory=100)
    large = await world.session("large", cpu=4.0, memory=1000)
    await world.enqueue(3, cpu=2.0, memory=400)
    assert (await world.store.assignments.assign()).placed == 2, "a third does not fit beside two"
    assert await waiting(world) == {0: 1, large: 2}
    (seen,) = [one for one in await world.store.sessions.sessions() if one.id == large]
    assert (seen.cpu_free, seen.memory_free, seen.assigned) == (0.0, 200, 2)
    one, _ = await own(world, large)
    await world.finish(large, one)
    assert (await world.store.assignments.assign()).placed == 1, "what has ended needs nothing"


async def test_what_fits_goes_before_what_waits_for_room(world: World) -> None:
    session = await world.session("w", cpu=2.0)
    big = await world.enqueue_one(cpu=2.0, strategy="round_robin")
    await world.store.assignments.assign()
    await world.enqueue(2, cpu=2.0, strategy="round_robin")
    small = await world.enqueue_one(strategy="round_robin")
    await world.store.assignments.assign()
    assert [run.id for run in await own(world, session)] == [big, small]


async def test_regions_are_kept(world: World) -> None:
    eu = await world.session("eu", region="eu")
    us = await world.session("us", region="us")
    await world.enqueue(4, region="eu", strategy="round_robin")
    await world.enqueue(4, strategy="round_robin")
    assert (await world.store.assignments.assign("us")).placed == 4, (
        "a dispatcher of us leaves those of eu alone"
    )
    assert (await world.store.assignments.assign("eu")).placed == 4
    assert await waiting(world) == {eu: 6, us: 2}


async def test_workers_of_another_namespace_get_nothing(world: World) -> None:
    elsewhere = await world.another("other")
    mine, theirs = await world.session("w"), await world.session("w", store=elsewhere)
    await world.enqueue(2, strategy="round_robin")
    await world.enqueue(3, strategy="round_robin", store=elsewhere)
    assert (await world.store.assignments.assign()).placed == 5, "any dispatcher does it for all"
    assert await waiting(world) == {mine: 2, theirs: 3}


async def test_what_nobody_can_run_stays_in_line(world: World) -> None:
    await world.session("w", handlers=("other",))
    await world.enqueue(2, strategy="round_robin")
    assert not await world.store.assignments.assign()
    assert await waiting(world) == {0: 2}


# -- nothing is lost


async def test_what_was_given_to_a_worker_that_dies_goes_to_others(world: World) -> None:
    doomed = await world.session("doomed", ttl=30)
    ids = await world.enqueue(6, strategy="round_robin")
    await world.store.assignments.assign()
    held = await own(world, doomed, 2)
    other = await world.session("other", ttl=100)
    await world.clock.tick(31)
    recovered = await world.store.recovery.recover()
    assert recovered.requeued == 2, "those that ran were lost, those that waited were not"
    assert await waiting(world) == {0: 6}
    await world.store.assignments.assign()
    again = await own(world, other)
    assert sorted(run.id for run in again) == sorted(ids)
    assert {run.spent for run in again if run.id not in {h.id for h in held}} == {0}


async def test_a_worker_that_drains_gives_back_at_once(world: World) -> None:
    leaving, other = await world.session("leaving"), await world.session("other")
    await world.enqueue(6, strategy="round_robin")
    await world.store.assignments.assign()
    await world.store.sessions.drain_session(leaving)
    assert await waiting(world) == {0: 3, other: 3}
    await world.store.assignments.assign()
    assert await waiting(world) == {other: 6}


@pytest.mark.parametrize("how", ["asked to drain", "ended"])
async def test_what_is_given_to_one_that_leaves_meanwhile_is_found(world: World, how: str) -> None:
    """The dispatcher thought it alive: whoever looks next takes it back."""
    leaving = await world.session("leaving")
    await world.enqueue(3, strategy="round_robin")
    await world.store.assignments.assign()
    change = "draining" if how == "asked to drain" else "ended"
    await world.sql(f"UPDATE fusee_sessions SET state = '{change}' WHERE id = {leaving}")
    other = await world.session("other")
    did = await world.store.assignments.assign()
    assert (did.returned, did.placed) == (3, 3)
    assert await waiting(world) == {other: 3}


async def test_also_where_no_strategy_is_left_what_was_given_comes_back(world: World) -> None:
    session = await world.session("w")
    await world.store.queues.set_strategy("default", "round_robin")
    await world.enqueue(3)
    await world.store.assignments.assign()
    await world.store.queues.set_strategy("default", None)
    assert await waiting(world) == {session: 3}
    await world.store.sessions.end_session(session)
    assert await waiting(world) == {0: 3}
    assert await world.rows(assigned) == []


async def test_what_a_worker_does_not_take_is_given_to_another(world: World) -> None:
    stuck = await world.session("stuck", ttl=1000)
    ids = await world.enqueue(4, strategy="least_loaded")
    await world.store.assignments.assign()
    free = await world.session("free", ttl=1000)
    await world.store.sessions.renew(stuck, 1000, running=10)
    await world.clock.tick(9)
    assert not await world.store.assignments.assign()
    await world.clock.tick(2)
    did = await world.store.assignments.assign()
    assert (did.returned, did.placed) == (4, 4)
    assert sorted(run.id for run in await own(world, free)) == ids


async def test_what_was_given_goes_home_soon_after_the_strategy_is_lifted(world: World) -> None:
    """A worker that never heard of the strategy does not look into its own lane."""
    await world.session("a", ttl=1000)
    await world.store.queues.set_strategy("default", "round_robin")
    await world.enqueue(2)
    await world.enqueue(2, strategy="affinity")
    await world.store.assignments.assign()
    await world.store.queues.set_strategy("default", None)
    await world.clock.tick(0.1)
    assert not await world.store.assignments.assign(), "it may be on its way to take them"
    await world.clock.tick(0.2)
    assert (await world.store.assignments.assign()).returned == 2, "and those that ask for it themselves stay"


@pytest.mark.parametrize("end", [End.FAILED, End.RETURNED], ids=["failed", "handed back"])
async def test_a_run_that_comes_back_is_placed_anew(world: World, end: End) -> None:
    a, b = await world.session("a", ttl=1000), await world.session("b", ttl=1000)
    run_id = await world.enqueue_one(strategy="round_robin")
    await world.store.assignments.assign()
    (claimed,) = await own(world, a)
    fields: dict[str, Any] = {"effect": "none"} if end is End.RETURNED else {"error": "broken"}
    await world.settle(a, claimed, end=end, **fields)
    await world.clock.tick(60)
    await world.store.ready_queue.promote()
    assert await waiting(world) == {0: 1}
    assert (await world.store.assignments.assign()).placed == 1
    (again,) = await own(world, b)
    assert (again.id, again.attempt) == (run_id, 2)


async def test_a_run_that_was_given_can_be_canceled(world: World) -> None:
    session = await world.session()
    ids = await world.enqueue(3, strategy="round_robin")
    await world.store.assignments.assign()
    assert await world.store.runs.cancel(ids[0], "no") == "canceled"
    assert [run.id for run in await own(world, session)] == ids[1:]
    await world.store.assignments.assign()
    assert sorted(row.run_id for row in await world.rows(assigned)) == ids[1:]


async def test_what_has_ended_is_forgotten(world: World) -> None:
    session = await world.session()
    await world.enqueue(3, strategy="round_robin")
    await world.store.assignments.assign()
    await world.finish(session, *(await own(world, session)))
    await world.store.assignments.assign()
    assert await world.rows(assigned) == []


async def test_two_dispatchers_never_give_away_the_same(world: World) -> None:
    other = await world.another()
    sessions = [await world.session(name, cpu=10.0, capacity=100) for name in "ab"]
    await world.enqueue(40, cpu=1.0)
    stores: tuple[Store, ...] = (world.store, other, world.store, other)
    await asyncio.gather(*(store.assignments.assign() for store in stores))
    assert await waiting(world) == {0: 20, sessions[0]: 10, sessions[1]: 10}, "ten each is all they have"


# -- limits


async def test_limits_hold_for_what_was_given(world: World) -> None:
    session = await world.session()
    await world.store.queues.set_strategy("default", "round_robin")
    await world.store.queues.set_limits("default", QueueLimits(concurrency=2))
    await world.enqueue(5)
    await world.store.assignments.assign()

    async def claim(number: int) -> list[Claimed]:
        return await world.store.assigned_claims.claim_assigned(session, ["default"], Order(10, [], number))

    first = await claim(1)
    assert (len(first), {run.ticket for run in first}) == (2, {True})
    assert await claim(2) == []
    await world.settle(session, first[0], end=End.SUCCEEDED)
    assert len(await claim(3)) == 1
    await world.store.queues.set_limits("default", QueueLimits(paused=True))
    await world.settle(session, first[1], end=End.SUCCEEDED)
    assert await claim(4) == []
    assert len(await world.rows(tickets)) == 1


async def test_a_rate_holds_for_what_was_given(world: World) -> None:
    session = await world.session()
    await world.store.queues.set_limits("default", QueueLimits(rate=2.0, burst=2))
    await world.store.queues.set_strategy("default", "round_robin")
    await world.enqueue(9)
    await world.store.assignments.assign()
    counts = []
    for number in range(1, 5):
        counts.append(
            len(await world.store.assigned_claims.claim_assigned(session, ["default"], Order(10, [], number)))
        )
        await world.clock.tick(0.5)
    assert counts == [2, 1, 1, 1]


async def test_a_queue_over_its_limit_does_not_hold_up_another(world: World) -> None:
    session = await world.session(queues=("*",))
    for queue in ("slow", "fast"):
        await world.store.queues.set_strategy(queue, "round_robin")
    await world.store.queues.set_limits("slow", QueueLimits(concurrency=1))
    await world.enqueue(6, queue="slow", priority=9)
    await world.enqueue(6, queue="fast")
    await world.store.assignments.assign()
    claimed = await world.store.assigned_claims.claim_assigned(session, ["slow"], Order(20, [], 1))
    assert Counter(run.ticket for run in claimed) == {True: 1, False: 6}


async def test_a_paused_queue_gives_nothing_away(world: World) -> None:
    await world.session()
    await world.store.queues.set_strategy("default", "round_robin")
    await world.store.queues.set_limits("default", QueueLimits(paused=True))
    await world.enqueue(2)
    assert not await world.store.assignments.assign()


# -- what people see


async def test_what_was_given_still_counts_in_its_queue(world: World) -> None:
    await world.session()
    await world.enqueue(3, queue="default", strategy="round_robin")
    await world.enqueue(2, queue="default")
    await world.store.assignments.assign()
    counts = await world.store.queues.counts()
    assert sum(by_status["pending"][0] for by_status in counts.values()) == 5
    assert await world.tally() == {"pending": 5}
    await world.clock.tick(100)
    assert (await world.store.aging.stalled(50))["default", "default"] == 100.0


async def test_a_run_tells_its_strategy_and_what_it_asks_for(world: World) -> None:
    run_id = await world.enqueue_one(region="eu", cpu=1.5, memory=7, strategy="affinity")
    run = await world.run(run_id)
    assert (run.region, run.strategy, run.cpu, run.memory) == ("eu", "affinity", 1.5, 7)


# -- broadcast


async def test_a_broadcast_is_one_run_on_each_worker(world: World) -> None:
    sessions = {await world.session(name): name for name in "abc"}
    await world.session("else", handlers=("other",))
    first = await world.enqueue_one(strategy="broadcast", payload={"x": 1})
    while await world.store.assignments.assign():
        pass
    for session, name in sessions.items():
        (claimed,) = await own(world, session)
        run = await world.run(claimed.id)
        assert (run.target, run.payload, run.shard_total) == (name, {"x": 1}, 3)
        assert run.origin_id == (None if run.id == first else first)


async def test_a_broadcast_waits_for_the_first_worker(world: World) -> None:
    await world.enqueue(1, strategy="broadcast")
    assert not await world.store.assignments.assign()
    session = await world.session("a")
    while await world.store.assignments.assign():
        pass
    assert len(await own(world, session)) == 1


async def test_a_broadcast_run_is_retried_on_its_own_worker(world: World) -> None:
    a, b = await world.session("a", ttl=1000), await world.session("b", ttl=1000)
    await world.enqueue(1, strategy="broadcast")
    while await world.store.assignments.assign():
        pass
    (claimed,) = await own(world, b)
    await world.settle(b, claimed, end=End.FAILED, error="broken")
    await world.clock.tick(60)
    await world.store.ready_queue.promote()
    await world.store.assignments.assign()
    (again,) = await own(world, b)
    assert (again.id, again.attempt) == (claimed.id, 2)
    assert len(await own(world, a)) == 1


async def test_it_waits_for_a_worker_that_restarts_and_not_for_one_that_has_left(world: World) -> None:
    await world.session("stays", ttl=1000)
    gone = await world.session("goes", ttl=1000)
    await world.enqueue(1, strategy="broadcast")
    while await world.store.assignments.assign():
        pass
    await world.store.sessions.end_session(gone)
    await world.clock.tick(30)
    await world.store.assignments.assign()
    assert (await world.tally())["pending"] == 2
    back = await world.session("goes", ttl=30)
    await world.store.assignments.assign()
    assert (await waiting(world))[back] == 1
    await world.store.sessions.end_session(back)
    await world.clock.tick(61)
    await world.store.assignments.assign()
    assert await world.tally() == {"pending": 1, "skipped": 1}
    (skipped,) = await world.store.runs.runs(RunFilter(status=[RunStatus.SKIPPED]))
    assert (skipped.target, skipped.reason) == ("goes", "broadcast: worker goes has left")


async def test_a_task_may_broadcast(works: Clockwork) -> None:
    """One fire, a shard for each worker; it has ended when all have."""
    world = works.world
    await world.store.sessions.end_session(works.session)
    sessions = [await world.session(name, ttl=10_000) for name in "abc"]
    await works.make("t", strategy="broadcast", concurrency="SKIP", max_concurrency=1)
    await works.fire_at(1)
    while await world.store.assignments.assign():
        pass
    assert await works.record() == ["1 run pending pending pending"]
    claimed = {session: await own(world, session) for session in sessions}
    assert [len(runs) for runs in claimed.values()] == [1, 1, 1]
    for session in sessions[:2]:
        await world.finish(session, *claimed[session])
    await works.fire_at(2)
    assert (await works.record())[-1] == "2 skip skipped", "two of three are not all"
    await world.finish(sessions[2], *claimed[sessions[2]])
    await works.react()
    assert (await works.task()).last_status == "succeeded"
    await works.fire_at(3)
    assert (await works.record())[-1] == "3 run pending"


async def test_what_belongs_to_a_batch_is_not_multiplied(world: World) -> None:
    session = await world.session("a")
    await world.session("b")
    await world.enqueue(1, strategy="broadcast")
    await world.sql("UPDATE fusee_runs SET kind = 'batch', owner_id = 7")
    await world.store.assignments.assign()
    assert await waiting(world) == {session: 1}
    await world.sql("UPDATE fusee_runs SET kind = NULL, owner_id = NULL")


# -- two versions


async def test_a_worker_that_knows_no_strategies_leaves_placed_runs_alone(world: World) -> None:
    """It reads a lane's strategy as part of the name of a region that it is not in."""
    await world.store.lanes.lane_ids([RunSpec(handler="work", strategy="round_robin").lane("default")])
    (row,) = await world.rows(lanes)
    assert row.region not in ("", "eu")


async def test_a_strategy_of_a_newer_version_is_left_to_it(world: World) -> None:
    await world.session()
    await world.enqueue(2, strategy="round_robin")
    await world.sql("UPDATE fusee_lanes SET region = '!by_moonlight'")
    assert not await world.store.assignments.assign()
    assert await waiting(world) == {0: 2}
