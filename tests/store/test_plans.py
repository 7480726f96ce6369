"""What waits is found by an index, and history costs nothing: read from the databases' own plans.

Counted work, never time: the same on a slow machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, text

from fusee.engine.model.outcome import End, Ended
from fusee.engine.model.run import Claimed, RunSpec
from fusee.engine.store.contract import Order
from fusee.engine.store.tables import lanes
from fusee.stores import Store, open_store
from tests.store.harness import World, finished_of
from tests.store.plans import NUMBERS, engine_of, plans_of, postgres_complaints

WATCHED = ("fusee_runs", "fusee_ready", "fusee_delayed", "fusee_callbacks")
"""Tables that grow with work; those of lanes, sessions and receipts stay small."""

HISTORY = """
INSERT INTO fusee_runs (namespace, lane_id, status, priority, attempt, session_id, created_at, due_at,
                        started_at, finished_at, effect)
SELECT 'default', 1, 'succeeded', 0, 1, 1, 1, 1, 1, 1, 'applied' FROM {numbers}"""

ANSWERED = """
INSERT INTO fusee_callbacks (run_id, attempt, namespace, digest, signed, timeout, used_at)
SELECT id, 1, 'default', '0', false, 1, 1 FROM fusee_runs WHERE status = 'succeeded'"""
"""Each run of that history waited for a callback, which came."""

ANALYZE = {
    "sqlite": "ANALYZE",
    "postgres": "ANALYZE",
    "mysql": "ANALYZE TABLE fusee_runs, fusee_ready, fusee_delayed, fusee_callbacks",
}


async def _add_history(store: Store, many: int) -> None:
    engine = engine_of(store)
    statement = HISTORY.format(numbers=NUMBERS[engine].format(many=many))
    await store.database.write(lambda connection: connection.execute(text(statement)).close())
    await store.database.write(lambda connection: connection.execute(text(ANALYZE[engine])).close())


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    store = open_store(database_url)
    await store.open()
    await store.upgrade()
    yield store
    await store.close()


# --- every statement of a run's life, explained --------------------------------------------------------


async def _live(store: Store) -> None:
    """Every statement that a worker's and a dispatcher's loops send."""
    world = World("", None, store)  # type: ignore[arg-type]
    session, doomed = await world.session(ttl=1e6), await world.session("doomed", ttl=-1)
    first = await world.claim(session, 20, lanes=[1])
    second = await world.claim(session, 20, lanes=[1, 2, 3])
    assert len(first) == len(second) == 20
    await world.finish(session, *first[:10])
    await world.finish(session, *first[10:], result='"r"')
    await world.settle(session, *second[:5], end=End.FAILED, after=0)
    await world.settle(session, *second[5:10], end=End.RETURNED)
    assert (await store.ready_queue.promote(10)).count == 10
    assert await store.runs.cancel_requests(session, [run.id for run in second]) == []
    await store.runs.cancel(second[15].id, "enough")
    for run in second[16:]:
        await store.callbacks.open_callback(
            session, run.id, run.attempt, str(run.id), timeout=1e-6, signed=False
        )
    await world.settle(session, *second[16:], end=End.ACCEPTED)
    known = await store.callbacks.known_callback(second[16].id, str(second[16].id))
    assert known is not None
    await store.callbacks.answer(known, Ended(End.SUCCEEDED))
    assert len(await store.callbacks.expire()) == 3
    assert len(await world.claim(doomed, 5, lanes=[2])) == 5
    assert (await store.recovery.recover()).requeued == 5


async def _load(store: Store) -> None:
    for handler in ("a", "b", "c"):
        await store.run_writer.enqueue([RunSpec(handler=handler)] * 400)
        await store.run_writer.enqueue(
            [RunSpec(handler=handler, delay=0.000001 if handler == "a" else 3600)] * 300
        )

    def number_lanes(connection: Connection) -> None:
        assert sorted(connection.execute(lanes.select()).scalars()) == [1, 2, 3]

    await store.database.read(number_lanes)
    await _add_history(store, 20_000)
    await store.database.write(lambda connection: connection.execute(text(ANSWERED)).close())
    await store.database.write(lambda connection: connection.execute(text(ANALYZE[engine_of(store)])).close())


async def test_no_statement_of_a_runs_life_scans_or_sorts_a_table_that_grows(store: Store) -> None:
    await _load(store)
    plans = await plans_of(store, _live, WATCHED)
    spoken_of = {table for table in WATCHED for statement, _ in plans if table in statement}
    assert spoken_of == set(WATCHED)
    wrong = [f"{complaint}: {statement[:300]}" for statement, complaints in plans for complaint in complaints]
    assert not wrong, "\n".join(wrong)


# --- PostgreSQL: history costs nothing -----------------------------------------------------------------


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[Store]:
    store = open_store(postgres_url)
    await store.open()
    await store.upgrade()
    yield store
    await store.close()


async def _explained(
    world: World, session: int, many: int, *, lanes: list[int], done: Sequence[Claimed] = ()
) -> dict[str, Any]:
    """What the statement that claims `many` runs and finishes those does, as it was prepared."""
    database: Any = world.store.database
    # The newest such statement of the pool's one connection in use: it hands out the last one given back.
    async with database.hot_pool.pool.acquire() as connection:
        rows = await connection.fetch(
            "SELECT name, parameter_types::text[] FROM pg_prepared_statements"
            " WHERE statement LIKE '%FROM fusee_ready%FOR UPDATE SKIP LOCKED%'"
            " AND statement NOT LIKE '%pg_prepared_statements%'"
            f" AND statement {'NOT' * (len(lanes) == 1)} LIKE '%LATERAL%'"
        )
        ((name, _),) = rows
        lane = str(lanes[0]) if len(lanes) == 1 else "'{" + ",".join(map(str, lanes)) + "}'"
        ids, attempts = [",".join(str(getattr(run, which)) for run in done) for which in ("id", "attempt")]
        plan: dict[str, Any] = json.loads(
            await connection.fetchval(
                f'EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE "{name}"'
                f" ({session}, '{{{ids}}}', '{{{attempts}}}', NULL, {many}, {lane}, {10**6}, '{{}}')"
            )
        )[0]["Plan"]
    await world.sql("DELETE FROM fusee_receipts WHERE number = 1000000")
    assert not postgres_complaints([{"Plan": plan}], WATCHED)
    assert plan["Actual Rows"] == many + 1, "and one row that counts what was finished"
    return plan


async def _pages_of_a_claim(world: World, session: int, many: int, *, lanes: list[int]) -> int:
    """Pages that the prepared claim of `many` runs reads, in memory or not."""
    await world.enqueue(2 * many + 10)
    await world.claim(session, 5, lanes=lanes)  # prepares the statement
    plan = await _explained(world, session, many, lanes=lanes)
    pages: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return pages


def _rows_of(plan: dict[str, Any]) -> float:
    """All rows that the nodes of a plan looked at."""
    looked = plan["Actual Rows"] + plan.get("Rows Removed by Join Filter", 0)
    looked += plan.get("Rows Removed by Filter", 0)
    return float(plan["Actual Loops"] * looked + sum(map(_rows_of, plan.get("Plans", ()))))


@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_plan_from_when_there_was_nothing_does_for_thousands(
    postgres_store: Store, lanes: int
) -> None:
    """A worker keeps the plans that it made first. To tables that were just found to be empty, reading all of
    them looks as cheap as one lookup."""
    world = World("", None, postgres_store)  # type: ignore[arg-type]
    session = await world.session(ttl=1e6)
    for handler in ("work", "else")[:lanes]:
        await world.enqueue(1, handler=handler)
    mine = await world.lane_ids()
    await world.claim(session, 5)
    await world.sql("DELETE FROM fusee_runs")
    await world.sql("DELETE FROM fusee_ready")
    await world.sql("ANALYZE")
    await world.claim(session, 5, lanes=mine)
    await world.enqueue(4000)
    held = await world.claim(session, 100, lanes=mine)
    plan = await _explained(world, session, 100, lanes=mine, done=held)
    assert _rows_of(plan) < 40 * 100


async def test_a_claim_costs_the_same_with_a_million_finished_runs(postgres_store: Store) -> None:
    world = World("", None, postgres_store)  # type: ignore[arg-type]
    session = await world.session(ttl=1e6)
    await world.enqueue(1)
    await world.enqueue(1, handler="else")
    one, many = await world.lane_ids(handler="work"), await world.lane_ids()
    before = [await _pages_of_a_claim(world, session, 100, lanes=lanes) for lanes in (one, many)]
    await _add_history(postgres_store, 1_000_000)
    after = [await _pages_of_a_claim(world, session, 100, lanes=lanes) for lanes in (one, many)]
    for now, then in zip(after, before, strict=True):
        # A tree of a million entries is two levels higher than one of a few: at most so many pages a run.
        assert now <= then + 4 * 100, f"pages of a claim of 100 without and with history: {before}, {after}"


@pytest.mark.parametrize("payload", [None, {"some": "text", "number": 12345}], ids=["bare", "with payload"])
async def test_a_claim_and_a_success_update_the_row_in_place(postgres_store: Store, payload: Any) -> None:
    world = World("", None, postgres_store)  # type: ignore[arg-type]
    session = await world.session(ttl=1e6)
    await world.enqueue(2000, payload=payload)
    lanes_ids = await world.lane_ids()
    receipt, claimed = itertools.count(1), []
    while True:
        order = Order(100, lanes_ids, next(receipt))
        exchanged = await postgres_store.claims.exchange(
            session, finished_of(claimed, payload and '"ok"'), order
        )
        claimed = exchanged.claimed
        if not claimed:
            break
    pool = postgres_store.database.hot_pool.pool  # type: ignore[attr-defined]
    async with pool.acquire() as connection:  # the one that did it all: the last given back
        await connection.execute("SELECT pg_stat_force_next_flush()")
        updated, in_place = await connection.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'fusee_runs'"
        )
    assert updated == 4000
    assert in_place >= 0.98 * updated
