"""The head of the line is swept while it is drained: a claim never walks past all that was claimed before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fusee.engine.model.run import RunSpec
from fusee.engine.store import postgres_connections
from fusee.engine.store.postgres_connections import Sweeper
from fusee.stores import Store
from tests.chaos.inside import until
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIRST_IN_LINE = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT ctid FROM fusee_ready WHERE lane_id = {lane} ORDER BY lane_id, rank, due_at, run_id LIMIT 1"""


async def pages_to_the_first(store: Store, lane: int) -> int:
    """Pages that PostgreSQL reads to find who stands first in line: counted work, not time."""
    async with store.database.hot_pool.pool.acquire() as connection:  # type: ignore[attr-defined]
        ((found,),) = await connection.fetch(FIRST_IN_LINE.format(lane=lane))
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("engine", ["postgres"])
async def test_what_was_claimed_does_not_stand_in_the_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "LEAST", 2_000)
    monkeypatch.setattr(postgres_connections, "BALANCE", 0)
    store = await world.another()
    await store.run_writer.enqueue_each(RunSpec(handler="work"), [None] * 20_000)
    (lane,) = await world.lane_ids()
    session = await world.session(ttl=3600)
    for _ in range(36):
        assert len(await world.claim(session, 500, store=store)) == 500

    async def near() -> bool:
        return await pages_to_the_first(store, lane) < 25  # 75 pages of the index have been emptied

    await until(near, what="a short way to the first in line")


class Connections:
    """Connections whose statements end as the test says."""

    def __init__(self, execute: Any, standing: float = 0.0) -> None:
        self.swept = 0
        self._execute = execute
        self._standing = standing

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connections]:
        yield self

    async def execute(self, statement: str) -> None:
        self.swept += 1
        await self._execute()

    async def fetchval(self, statement: str) -> float:
        return self._standing


async def at_once() -> None:
    pass


async def test_a_long_line_is_swept_less_often() -> None:
    connections = Connections(at_once, standing=1_000_000.0)
    sweeper = Sweeper(connections.acquire)
    for many, swept in ((19_999, 0), (1, 1), (49_999, 1), (1, 2)):
        sweeper.claimed(many)
        await until(lambda: sweeper._sweeping is None)
        assert connections.swept == swept


async def test_a_line_that_was_never_analysed_is_taken_for_a_short_one() -> None:
    connections = Connections(at_once, standing=-1.0)
    sweeper = Sweeper(connections.acquire)
    for swept in (1, 2):
        sweeper.claimed(20_000)
        await until(lambda: sweeper._sweeping is None)
        assert connections.swept == swept


async def test_a_sweep_that_fails_harms_nobody_and_is_tried_less_often() -> None:
    async def fail() -> None:
        raise TimeoutError("it took too long")

    connections = Connections(fail)
    sweeper = Sweeper(connections.acquire)
    for many, swept in ((20_000, 1), (39_999, 1), (1, 2)):
        sweeper.claimed(many)
        await until(lambda: sweeper._sweeping is None)
        assert connections.swept == swept


async def test_one_sweep_at_a_time_and_none_after_closing() -> None:
    began = asyncio.Event()

    async def never_end() -> None:
        began.set()
        await asyncio.Event().wait()

    connections = Connections(never_end)
    sweeper = Sweeper(connections.acquire)
    sweeper.claimed(20_000)
    await began.wait()
    sweeper.claimed(20_000)
    await sweeper.close()
    assert (connections.swept, sweeper._sweeping) == (1, None)
