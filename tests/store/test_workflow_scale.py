"""A wide workflow costs as much a node as a narrow one: no step looks at all nodes for each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, event

from fusee.clock import ManualClock
from fusee.engine.model.outcome import End
from fusee.engine.store.parents import ParentRun
from fusee.stores import Store, open_store
from fusee.workflows.model.workflow import NodeSpec
from tests.store.flows import NOTHING, ONCE, Flow, leftovers, node
from tests.store.harness import ProcessClock, World

pytestmark = pytest.mark.asyncio(loop_scope="session")

SMALL, MEDIUM, LARGE = 1_000, 3_000, 10_000


def fan(size: int) -> list[NodeSpec]:
    """One, then all the others side by side, then one."""
    middle = [f"n{n}" for n in range(size - 2)]
    return [node("first"), *(node(name, "first") for name in middle), node("last", *middle)]


@contextmanager
def counting(store: Store) -> Iterator[list[int]]:
    """How many statements are executed, and with how many rows of parameters."""
    database: Any = store.database
    engines = [e for e in (getattr(database, n, None) for n in ("_write_engine", "_read_engine")) if e]
    engines = engines or [database.engine.sync_engine]
    seen = [0, 0]

    def note(connection: Any, cursor: Any, statement: Any, parameters: Any, context: Any, many: bool) -> None:
        seen[0] += 1
        seen[1] += len(parameters) if many else 1

    for engine in set(engines):
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        for engine in set(engines):
            event.remove(engine, "before_cursor_execute", note)


async def through(world: World, flow: Flow) -> None:
    """Execute every node as workers do, 500 at a time, with an aggregator beside them."""
    while claimed := await world.claim(flow.session, 500):
        await world.finish(flow.session, *claimed)
        while await world.store.aggregation.aggregate():
            pass


async def cost(world: World, size: int, name: str) -> tuple[int, int]:
    with counting(world.store) as seen:
        flow = await Flow.start(world, *fan(size), name=name)
        await through(world, flow)
    run = await flow.look()
    assert (run.status, run.total, run.succeeded) == ("succeeded", size, size)
    return seen[0], seen[1]


@pytest.mark.heavy
async def test_the_cost_of_a_fan_grows_with_its_edges(world: World) -> None:
    began = time.monotonic()
    small = await cost(world, SMALL, "small")
    large = await cost(world, LARGE, "large")
    grown = LARGE / SMALL
    assert large[0] <= small[0] * grown and large[1] <= small[1] * grown * 1.1
    assert large[0] < LARGE / 5, "statements are for hundreds of nodes, not for one"
    assert await leftovers(world) == NOTHING
    assert time.monotonic() - began < 120  # measured: a few seconds; the machine may be busy


async def test_a_failure_at_the_root_of_a_fan_skips_all_of_it_at_once(world: World) -> None:
    with counting(world.store) as seen:
        flow = await Flow.start(world, *fan(MEDIUM), name="large")
        started = seen[0]
        await flow.claim()
        (claimed,) = flow.held.values()
        await world.settle(flow.session, claimed, end=End.FAILED, policy=ONCE)
        await flow.drain()
    run = await flow.look()
    assert (run.status, run.failed, run.skipped) == ("failed", 1, MEDIUM - 1)
    assert seen[0] - started < MEDIUM / 10 and await leftovers(world) == NOTHING


@pytest.mark.parametrize("begun", [False, True], ids=["blocked", "let go"])
async def test_canceling_a_fan_is_a_matter_of_hundreds_of_statements(world: World, begun: bool) -> None:
    flow = await Flow.start(world, *fan(MEDIUM), name="large")
    if begun:
        await flow.claim()
        await flow.finish("first")
    with counting(world.store) as seen:
        await world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough")
        await flow.drain()
    run = await flow.look()
    assert (run.status, run.canceled) == ("canceled", MEDIUM - begun)
    assert seen[0] < MEDIUM / 10 and await leftovers(world) == NOTHING


GROWING = ("runs", "line", "ended", "edges", "gates", "workflow_nodes", "workflow_runs")


async def test_no_statement_of_a_workflows_life_scans_a_table_that_grows(tmp_path: Path) -> None:
    """As SQLite explains each of them; the other databases have the same indexes."""
    store = open_store(f"sqlite:///{tmp_path}/fusee.db", clock=ManualClock())
    await store.open()
    await store.upgrade()
    said: dict[str, Any] = {}
    engine = cast(Any, store.database)._write_engine

    def note(connection: Any, cursor: Any, statement: str, given: Any, context: Any, many: bool) -> None:
        if statement.split()[0] in ("SELECT", "UPDATE", "DELETE"):
            said.setdefault(statement, given[0] if many else given)

    event.listen(engine, "before_cursor_execute", note)
    world = World("", ProcessClock(), store)
    flow = await Flow.start(world, *fan(20), name="small")
    await through(world, flow)
    again = Flow(world, flow.session, (await store.workflows.starts.start_workflow("small")).id)
    await again.claim()
    await again.end("first")
    rerun = await store.workflows.starts.rerun(again.id)
    await store.workflows.cancels.cancel_workflow_run(rerun.id, "enough")
    await again.drain()
    (asking,) = await world.enqueue()
    (claimed,) = await world.claim(flow.session)
    started = await store.workflows.starts.start_workflow("small", parent=ParentRun(asking, claimed.attempt))
    await world.settle(flow.session, claimed, end=End.ACCEPTED)
    await again.drain()
    await store.runs.cancel(asking, "enough")
    await again.drain()
    assert (await store.workflows.queries.workflow_run(started.id)).status == "canceled"
    event.remove(engine, "before_cursor_execute", note)

    def explain(connection: Connection) -> list[str]:
        wrong = []
        for statement, given in said.items():
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given).all()
            wrong += [
                f"{row[3]}: {statement}" for row in plan for t in GROWING if f"SCAN fusee_{t}" in row[3]
            ]
        return wrong

    assert await store.database.read(explain) == []
    assert len(said) > 30
    await store.close()
