"""Two versions on one database: what processes that know nothing of the newest revision do.

Their statements are written out here as they were before revision 0007.
"""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Connection, text

from fusee.engine.model.states import SessionState
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.tables import lanes, ready
from fusee.tasks.store.tables import tasks
from tests.store.clockwork import Clockwork, spec
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")

OLD_SESSION = """
INSERT INTO fusee_sessions (namespace, worker, host, pid, version, state, capacity, abilities, started_at,
                            seen_at, expires_at)
VALUES ('default', 'old', 'here', 1, '0.1.0', 'alive', 10, :abilities, :now, :now, :expires)"""
OLD_TASK = """
INSERT INTO fusee_tasks (namespace, name, live_name, status, version, definition, next_fire_at, anchor,
                         failure_skipped, created_at, updated_at)
VALUES ('default', 'old', 'old', 'enabled', 1, :definition, :next, :now, :no, :now, :now)"""
ABILITIES = {
    "executors": ["python"],
    "handlers": ["work"],
    "queues": ["*"],
    "region": "",
    "labels": {},
    "policies": {},
}


async def old_worker(world: World) -> int:
    values = {"abilities": json.dumps(ABILITIES), "now": START, "expires": START + 10**9}

    def work(connection: Connection) -> int:
        connection.execute(text(OLD_SESSION), values)
        newest = text("SELECT max(id) FROM fusee_sessions")
        return int(connection.execute(newest).scalar_one())

    return await world.store.database.write(work)


async def old_lanes(world: World) -> list[int]:
    """The lanes that a worker of that version serves: by the whole text of the region."""
    return [row.id for row in await world.rows(lanes) if row.region == "" and row.handler == "work"]


async def test_an_old_worker_is_registered_and_works(world: World) -> None:
    session = await old_worker(world)
    (seen,) = await world.store.sessions.sessions()
    assert (seen.info.version, seen.info.address, seen.info.cpu, seen.drain_asked_at) == (
        "0.1.0",
        "",
        None,
        None,
    )
    await world.enqueue(3)
    claimed = await world.claim(session, lanes=await old_lanes(world))
    assert await world.finish(session, *claimed) == []
    assert await world.tally() == {"succeeded": 3}


async def test_an_old_worker_leaves_to_new_ones_what_asks_for_a_strategy(world: World) -> None:
    old = await old_worker(world)
    plain = await world.enqueue(2)
    placed = await world.enqueue(4, strategy="round_robin")
    assert [run.id for run in await world.claim(old, lanes=await old_lanes(world))] == plain
    new = await world.session("new")
    await world.store.assignments.assign()
    assert {row.run_id: row.lane_id for row in await world.rows(ready)} == dict.fromkeys(
        placed, own_lane(new)
    )


@pytest.mark.parametrize("strategy", ["least_loaded", "consistent_hash", "broadcast"])
async def test_nothing_is_given_to_an_old_worker(world: World, strategy: str) -> None:
    """It does not look into a lane of its own: what is for a worker waits for one that does."""
    await old_worker(world)
    await world.enqueue(3, strategy=strategy)
    assert not await world.store.assignments.assign()
    new = await world.session("new", ttl=1000)
    while await world.store.assignments.assign():
        pass
    assert len(await world.claim(new, lanes=[own_lane(new)])) == 3


async def test_an_old_worker_that_is_drained_claims_nothing_more(world: World) -> None:
    session = await old_worker(world)
    await world.enqueue(3)
    (held, *_) = await world.claim(session, 1, lanes=await old_lanes(world))
    await world.store.sessions.ask_to_drain("old")
    assert await world.claim(session, lanes=await old_lanes(world)) == []
    await world.store.sessions.renew(session, 30, running=1)
    assert await world.finish(session, held) == []
    (seen,) = await world.store.sessions.sessions()
    assert seen.state is SessionState.DRAINING


async def test_a_task_that_an_old_server_made_is_fired_by_new_dispatchers(works: Clockwork) -> None:
    made = spec("old", region="eu")
    await works.sql(
        OLD_TASK, definition=json.dumps(made.to_dict()), next=START + 60_000_000, now=START, no=False
    )
    await works.go_to(1)
    assert not await works.store.tasks.firing.fire_due(region="us")
    assert (await works.store.tasks.firing.fire_due(region="eu")).tasks == 1
    (row,) = await works.world.rows(tasks)
    assert row.region == "eu"


async def test_an_old_program_reads_a_new_task(works: Clockwork) -> None:
    """It takes what it knows of the definition: strategy and resources are not among that."""
    await works.make("t", strategy="round_robin", cpu=1.0)
    (row,) = await works.world.rows(tasks)
    assert {"strategy", "cpu"} <= json.loads(row.definition).keys()
    known = {"name", "cron", "handler", "retry", "policy"}
    assert known - {"policy"} <= json.loads(row.definition).keys()
