"""A tick costs what is due: neither sleeping tasks nor history are read, by the databases' own plans."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from fusee.stores import Store, open_store
from fusee.tasks.model.policy import Overlap
from tests.store.clockwork import Clockwork, spec
from tests.store.harness import World
from tests.store.plans import NUMBERS, engine_of, plans_of

WATCHED = ("fusee_tasks", "fusee_fires", "fusee_runs", "fusee_gates", "fusee_waits", "fusee_task_edges")
MANY = 20_000
RUNS = """
INSERT INTO fusee_runs (namespace, lane_id, status, priority, attempt, session_id, created_at, due_at,
                        started_at, finished_at, effect, kind)
SELECT 'default', 1, 'succeeded', 0, 1, 1, 1, 1, 1, 1, 'applied', 'task' FROM {numbers}"""
FIRES = """
INSERT INTO fusee_fires (task_id, fire_time, shard, namespace, cause, decision, code, rule, run_id,
                         decided_at, superseded)
SELECT (SELECT min(id) FROM fusee_tasks) + id % 6, id, 0, 'default', 'schedule', 'run', 'on_time', 'due', id,
       1, {no}
FROM fusee_runs WHERE finished_at = 1"""
SLEEPING = """
INSERT INTO fusee_tasks (namespace, name, live_name, status, version, definition, next_fire_at, anchor,
                         failure_skipped, created_at, updated_at)
SELECT 'default', id, id, 'enabled', 1, '{{"name": "sleeping", "handler": "work"}}', {far}, 1, {no}, 1, 1
FROM fusee_runs WHERE finished_at = 1"""
WAITING = (
    "INSERT INTO fusee_gates SELECT id, 'all_success', 1, 0, 0 FROM fusee_runs WHERE finished_at = 1",
    "INSERT INTO fusee_waits SELECT id + 1000000, id, id FROM fusee_runs WHERE finished_at = 1",
    "INSERT INTO fusee_task_edges SELECT id + 1000000, id + 1000001, 'default' FROM fusee_runs"
    " WHERE finished_at = 1",
)
DUE = "UPDATE fusee_tasks SET next_fire_at = created_at - created_at % 60000000 WHERE name = 'waits'"
SORTS = ("TEMP B-TREE", "Sort over", "filesort")
ANALYZE = {"sqlite": "ANALYZE", "postgres": "ANALYZE", "mysql": f"ANALYZE TABLE {', '.join(WATCHED)}"}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    store = open_store(database_url)
    await store.open()
    await store.upgrade()
    yield store
    await store.close()


async def _make(store: Store) -> None:
    """Six tasks that take part."""
    await store.tasks.definitions.create_task(spec("up", manual=True))
    await store.tasks.definitions.create_task(spec("down", after=("up",)))
    await store.tasks.definitions.create_task(spec("line", manual=True))
    await store.tasks.definitions.create_task(spec("shards", manual=True, shards=3))
    await store.tasks.definitions.create_task(spec("replaces", manual=True, overlap=Overlap.CANCEL_PREV))
    await store.tasks.definitions.create_task(spec("waits", cron="* * * * *", after=("up",)))


async def _load(store: Store) -> None:
    """Many tasks that sleep, and a long history."""
    engine = engine_of(store)
    numbers, no = NUMBERS[engine].format(many=MANY), "false" if engine == "postgres" else "0"
    statements = [
        RUNS.format(numbers=numbers),
        FIRES.format(no=no),
        *WAITING,
        SLEEPING.format(far=10**16, no=no),
        DUE,
        ANALYZE[engine],
    ]
    for statement in statements:
        await store.database.write(lambda c, statement=statement: c.execute(text(statement)).close())  # type: ignore[misc]


async def _live(store: Store) -> None:
    """Every statement that tasks send: fires, ends, lines, gates, replacements."""
    works = await Clockwork.wind(World("", None, store))  # type: ignore[arg-type]
    assert await store.tasks.firing.fire_due()
    names = ("up", "line", "line", "line", "shards", "replaces", "replaces")
    up, *_ = [(await store.tasks.triggers.trigger(name)).run_ids[0] for name in names]
    assert len(await works.claim()) == 6
    await store.tasks.triggers.trigger("replaces")
    await works.world.finish(works.session, works.held.pop(up))
    await works.react()
    assert await works.claim()
    for run_id in sorted(works.held):
        await works.world.finish(works.session, works.held.pop(run_id))
        await works.react()
    await store.tasks.firing.fire_due()


async def test_no_statement_about_tasks_reads_all_of_a_table_that_grows(store: Store) -> None:
    await _make(store)
    await _load(store)
    plans = await plans_of(store, _live, WATCHED)
    spoken_of = {table for table in WATCHED for statement, _ in plans if table in statement}
    assert spoken_of == set(WATCHED)
    wrong = [
        f"{complaint}: {statement[:500]}"
        for statement, complaints in plans
        for complaint in complaints
        # What is under way is sorted: it is little. What is due is read in order.
        if not any(sign in complaint for sign in SORTS) or "next_fire_at <=" in statement
    ]
    assert not wrong, "\n".join(wrong)
    assert any("next_fire_at <=" in statement for statement, _ in plans)


async def _pages_of_a_tick(store: Store) -> int:
    """Pages that the reading statements of a scan with one due task read, in memory or not."""
    engine: Any = store.database.engine  # type: ignore[attr-defined]
    heard: dict[str, Any] = {}

    def hear(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if statement.startswith("SELECT") and "fusee_" in statement:
            heard[statement] = parameters

    event.listen(engine.sync_engine, "before_cursor_execute", hear)
    assert (await store.tasks.firing.fire_due()).tasks == 1
    event.remove(engine.sync_engine, "before_cursor_execute", hear)

    def explain(connection: Connection) -> int:
        pages = 0
        for statement, parameters in heard.items():
            query = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}"
            plan = connection.exec_driver_sql(query, parameters).scalar_one()
            top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
            pages += top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        return pages

    return await store.database.write(explain)


async def test_a_tick_reads_as_much_whatever_sleeps_and_whatever_was(postgres_url: str) -> None:
    store = open_store(postgres_url)
    await store.open()
    try:
        await store.upgrade()
        await _make(store)
        await store.database.write(lambda connection: connection.execute(text(DUE)).close())
        before = await _pages_of_a_tick(store)
        for table in ("fires", "gates", "waits"):  # it has not happened
            await store.database.write(lambda c, t=table: c.execute(text(f"DELETE FROM fusee_{t}")).close())  # type: ignore[misc]
        await store.database.write(
            lambda c: c.execute(text("UPDATE fusee_tasks SET last_fire_at = NULL")).close()
        )
        await _load(store)
        after = await _pages_of_a_tick(store)
    finally:
        await store.close()
    assert after <= 2 * before, f"pages of a tick without and with history: {before}, {after}"
