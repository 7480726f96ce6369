"""Placing reads what waits and what was given, by index; neither history nor shared work is looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fusee.engine.model.run import RunSpec
from fusee.engine.store.contract import Order
from fusee.engine.store.own_lanes import own_lane
from fusee.stores import Store, open_store
from tests.store.harness import World
from tests.store.plans import plans_of
from tests.store.test_plans import ANALYZE, _add_history, engine_of, text

WATCHED = ("fusee_runs", "fusee_ready")


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    store = open_store(database_url)
    await store.open()
    await store.upgrade()
    yield store
    await store.close()


async def _place(store: Store) -> None:
    """Everything about runs that are given to workers."""
    world = World("", None, store)  # type: ignore[arg-type]
    one = await world.session("one", ttl=1e6, handlers=("placed",), capacity=50)
    two = await world.session("two", ttl=1e6, handlers=("placed",), capacity=50)
    assert (await store.assignments.assign()).placed == 200
    claimed = await world.claim(one, 20, lanes=[own_lane(one)])
    assert len(claimed) == 20
    await world.finish(one, *claimed)
    waits = [run.id for run in await world.claim(two, 5, lanes=[own_lane(two)])]
    await store.runs.cancel(waits[0], "enough")
    assert len(await store.assigned_claims.claim_assigned(two, ["default"], Order(5, [], 77))) == 5
    assert (await store.assignments.assign()).placed > 0
    await store.sessions.drain_session(two)
    await store.recovery.recover()
    await store.queues.counts()


async def test_no_statement_of_placing_scans_a_table_that_grows(store: Store) -> None:
    await store.run_writer.enqueue([RunSpec(handler="shared")] * 2000)
    await store.run_writer.enqueue([RunSpec(handler="placed", strategy="round_robin", cpu=None)] * 600)
    await _add_history(store, 20_000)
    await store.database.write(lambda connection: connection.execute(text(ANALYZE[engine_of(store)])).close())
    plans = await plans_of(store, _place, WATCHED)
    # What counts a whole line, for people, reads it.
    placing = [(statement, found) for statement, found in plans if "count(" not in statement.lower()]
    wrong = [
        f"{complaint}: {statement[:300]}" for statement, complaints in placing for complaint in complaints
    ]
    assert not wrong, "\n".join(wrong)
