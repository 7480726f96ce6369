"""Claiming: in order, only what was named, never twice, and only by a session that is alive."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import RunSpec
from fusee.engine.store.contract import Finished, Order
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.tables import ready, receipts
from tests.store.harness import START, World, finished_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_claim_takes_the_run_under_a_new_attempt(world: World) -> None:
    session = await world.session("worker-7")
    run_id = await world.enqueue_one(payload={"n": 1}, timeout=5)
    await world.clock.tick(2)
    (claimed,) = await world.claim(session)
    assert (claimed.id, claimed.attempt, claimed.spent) == (run_id, 1, 0)
    assert (claimed.payload, claimed.options) == ('{"n":1}', '{"timeout":5.0}')
    assert [claimed.lane_id] == await world.lane_ids()
    run = await world.run(run_id)
    assert (run.status, run.attempt, run.worker) == ("running", 1, "worker-7")
    assert run.started_at == START + 2_000_000
    assert await world.claim(session) == []


@pytest.mark.parametrize("handlers", [1, 4], ids=["one lane", "many lanes"])
async def test_claims_go_by_priority_then_due_time_then_age(world: World, handlers: int) -> None:
    session = await world.session()
    asked = [(0, 0), (5, 0), (0, -9), (-3, -9), (5, -1), (0, 0), (1000, 0), (-1000, -99), (5, 0), (0, -9)]
    specs = [
        RunSpec(handler=f"work-{n % handlers}", priority=priority, due_at=START + due)
        for n, (priority, due) in enumerate(asked)
    ]
    ids = [run.id for run in await world.store.run_writer.enqueue(specs)]
    wanted = [ids[n] for n in sorted(range(len(asked)), key=lambda n: (-asked[n][0], asked[n][1], ids[n]))]
    got: list[int] = []
    for portion in (3, 1, 4, 100):
        got += [run.id for run in await world.claim(session, portion)]
    assert got == wanted


async def test_a_claim_takes_no_more_than_it_wants(world: World) -> None:
    session = await world.session()
    for handler in ("a", "b", "c"):
        await world.enqueue(4, handler=handler)
    assert len(await world.claim(session, 5)) == 5
    assert len(await world.claim(session, 0)) == 0
    assert await world.tally() == {"running": 5, "pending": 7}


async def test_only_named_lanes_are_claimed(world: World) -> None:
    session = await world.session()
    for queue in ("mail", "video"):
        for handler in ("a", "b"):
            await world.enqueue(2, queue=queue, handler=handler)
    mail = await world.lane_ids(queue="mail")
    assert {run.lane_id for run in await world.claim(session, lanes=mail)} == set(mail)
    (one,) = await world.lane_ids(queue="video", handler="a")
    assert [run.lane_id for run in await world.claim(session, lanes=[one])] == [one, one]
    assert await world.claim(session, lanes=[]) == []
    assert await world.claim(session, lanes=[one, 999_999]) == []
    assert await world.tally() == {"running": 6, "pending": 2}


async def test_a_delayed_run_is_not_claimed(world: World) -> None:
    session = await world.session()
    await world.enqueue(delay=1)
    await world.clock.tick(60)
    assert await world.claim(session) == [], "a dispatcher promotes it first"


@pytest.mark.parametrize("lanes", [1, 5], ids=["one lane", "many lanes"])
async def test_two_sessions_never_claim_the_same_run(world: World, lanes: int) -> None:
    other = await world.another()
    for n in range(lanes):
        await world.enqueue(600 // lanes, handler=f"work-{n}")
    first, second = await world.session("a"), await world.session("b", store=other)

    async def drain(session: int, store: object) -> list[int]:
        taken: list[int] = []
        idle = 0
        while idle < 2:  # a skip of what the other holds locked may leave one trip empty-handed
            claimed = await world.claim(session, 37, store=store)  # type: ignore[arg-type]
            idle = idle + 1 if not claimed else 0
            assert all(run.attempt == 1 for run in claimed)
            taken += [run.id for run in claimed]
        return taken

    by_first, by_second, by_third = await asyncio.gather(
        drain(first, world.store), drain(second, other), drain(second, world.store)
    )
    rest = [run.id for run in await world.claim(first)]
    everything = by_first + by_second + by_third + rest
    assert len(everything) == len(set(everything)) == 600
    assert await world.tally() == {"running": 600}


@pytest.mark.parametrize("way", ["drain", "end", "lose", "never was"])
@pytest.mark.parametrize("lanes", [1, 2], ids=["one lane", "many lanes"])
async def test_a_session_that_is_not_alive_claims_nothing(world: World, way: str, lanes: int) -> None:
    session = await world.session()
    for n in range(lanes):
        await world.enqueue(handler=f"work-{n}")
    match way:
        case "drain":
            await world.store.sessions.drain_session(session)
        case "end":
            await world.store.sessions.end_session(session)
        case "lose":
            await world.clock.tick(31)
            assert len((await world.store.recovery.recover()).sessions) == 1
        case _:
            session += 1000
    assert await world.claim(session) == []
    assert await world.claim_limited(session) == []
    assert await world.tally() == {"pending": lanes}
    assert await world.rows(receipts) == []


async def test_one_exchange_hands_in_and_takes(world: World) -> None:
    session = await world.session()
    ids = await world.enqueue(5)
    first = await world.claim(session, 3)
    lanes = await world.lane_ids()
    exchanged = await world.store.claims.exchange(session, finished_of(first, '"ok"'), Order(10, lanes, 77))
    assert exchanged.refused == []
    assert [run.id for run in exchanged.claimed] == ids[3:]
    assert {run.receipt for run in exchanged.claimed} == {77}
    assert await world.tally() == {"succeeded": 3, "running": 2}
    assert {(await world.run(run_id)).result for run_id in ids[:3]} == {"ok"}


@pytest.mark.parametrize("want", [0, 5], ids=["finish alone", "finish and claim"])
async def test_receipts_are_kept_until_they_are_used_up(world: World, want: int) -> None:
    session = await world.session()
    await world.enqueue(3)
    lanes = await world.lane_ids()
    first = (await world.store.claims.exchange(session, Finished(), Order(2, lanes, 1))).claimed
    await world.store.claims.exchange(session, Finished(), Order(1, lanes, 2))
    ids = {row.number: {int(i) for i in row.run_ids.split(",")} for row in await world.rows(receipts)}
    assert ids[1] == {run.id for run in first}
    assert sorted(ids) == [1, 2]
    await world.store.claims.exchange(session, finished_of(first), Order(want, lanes, 3, used_up=[1]))
    assert [row.number for row in await world.rows(receipts)] == [2], "nothing claimed leaves no receipt"


async def test_an_empty_exchange_is_nothing(world: World) -> None:
    session = await world.session()
    exchanged = await world.store.claims.exchange(session, Finished(), Order())
    assert (exchanged.claimed, exchanged.refused) == ([], [])


async def test_results_come_back_as_they_were_given(world: World) -> None:
    session = await world.session()
    await world.enqueue(5)
    claimed = await world.claim(session)
    results = [None, '{"a":[1,2]}', '"\\u0000 \\ud83d\\ude00"', "null", '"' + "x" * 200_000 + '"']
    finished = Finished()
    for run, result in zip(claimed, results, strict=True):
        finished.add(run.id, run.attempt, result)
    assert (await world.store.claims.exchange(session, finished, Order())).refused == []
    got = [(await world.run(run.id)).result for run in claimed]
    assert got == [None, {"a": [1, 2]}, "\u0000 😀", None, "x" * 200_000]


async def test_what_a_session_owns_is_known(world: World) -> None:
    first, second = await world.session("a"), await world.session("b")
    await world.enqueue(5)
    mine = await world.claim(first, 3)
    (theirs,) = await world.claim(second, 1)
    await world.finish(first, mine[0])
    assert sorted(await world.store.runs.owned(first)) == [(run.id, 1) for run in mine[1:]]
    assert await world.store.runs.owned(second) == [(theirs.id, 1)]
    assert set(await world.store.runs.in_flight()) >= {mine[1].id, mine[2].id, theirs.id}


async def test_a_run_claimed_twice_by_one_session_is_owned_once(world: World) -> None:
    session = await world.session()
    await world.enqueue(2)
    first, second = await world.claim(session)
    await world.settle(session, first, end=End.RETURNED, effect=Effect.NONE)
    (again,) = await world.claim(session)
    assert sorted(await world.store.runs.owned(session)) == [(again.id, 2), (second.id, 1)]
    assert sorted(await world.store.runs.in_flight(session)) == [first.id, second.id]


WAYS = ["one lane", "many lanes", "a limited queue", "given by a strategy", "dispatched to a broker"]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_place_in_line_of_a_run_that_is_not_pending_claims_nothing(
    world: World, way: str, alone: bool
) -> None:
    """A cancel took the run out of line; its place is there again, as if the cancel had come in between the
    two steps of a claim."""
    session = await world.session()
    if way == "a limited queue":
        await world.store.queues.set_limits("default", QueueLimits(concurrency=10))
    if way == "many lanes":
        await world.enqueue(handler="other", priority=-1)
    canceled = await world.enqueue_one(priority=1)
    places = [row._asdict() for row in await world.rows(ready) if row.run_id == canceled]
    assert len(places) == 1
    await world.store.runs.cancel(canceled, "changed my mind")
    good = [] if alone and way != "many lanes" else await world.enqueue()
    if way == "given by a strategy":
        own = own_lane(session)
        places[0]["lane_id"] = own
        await world.sql("UPDATE fusee_ready SET lane_id = :own", own=own)
    before = await world.run(canceled)
    await world.store.database.write(lambda connection: connection.execute(insert(ready), places))
    match way:
        case "a limited queue":
            got = [run.id for run in await world.claim_limited(session)]
        case "given by a strategy":
            claimed = await world.store.assigned_claims.claim_assigned(
                session, ["default"], Order(1000, [], 77)
            )
            got = [run.id for run in claimed]
        case "dispatched to a broker":
            sent = await world.store.dispatches.dispatch(dict.fromkeys(await world.lane_ids(), 100))
            got = [run.id for run in sent]
        case _:
            got = [run.id for run in await world.claim(session)]
    assert canceled not in got and set(good) <= set(got)
    assert await world.run(canceled) == before
    assert canceled not in {run_id for run_id, _ in await world.store.runs.owned(session)}
    assert canceled not in {row.run_id for row in await world.rows(ready)}
