"""A row that this version cannot read is set aside, reported once, and stops nobody else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.batches.store.tables import batches
from fusee.bulk.business import HttpBusiness
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.store.queries import BulkFilter
from fusee.engine.dispatcher import Aggregate, Expire, Recover
from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.runs import RunFilter
from fusee.engine.store.set_aside import TRY_AGAIN_AFTER, UnreadableRow
from fusee.engine.store.tables import receipts, runs
from fusee.errors import Unreadable
from fusee.events import Bus
from fusee.placement.assign import Assign
from fusee.stores import Store
from fusee.tasks.scan import Scan
from fusee.tasks.store.history import FireFilter
from fusee.tasks.store.tables import tasks
from fusee.tasks.store.tasks import TaskFilter
from tests.store.batchwork import Batchwork
from tests.store.clockwork import Clockwork, spec
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

DAMAGED = {
    "no JSON": "{ what",
    "no object": "[1, 2]",
    "a schedule that nobody knows": json.dumps({"name": "bad", "handler": "work", "cron": "at full moon"}),
    "a trigger of a newer version": json.dumps({"name": "bad", "handler": "work", "tide": "high"}),
    "an executor of a newer version": json.dumps({"name": "bad", "executor": "wasm", "cron": "* * * * *"}),
}


class Told:
    """What was reported of rows, and a clock for those that are tried again."""

    def __init__(self, store: Store) -> None:
        self.heard: list[tuple[str, int | str, bool]] = []
        self.seconds = 1000.0
        self.aside = store.context.set_aside
        self.aside.now = lambda: self.seconds
        self.aside.tell = self._hear

    def _hear(self, row: UnreadableRow, readable: bool) -> None:
        self.heard.append((row.kind, row.id, readable))


@pytest.fixture
def told(store: Store) -> Told:
    return Told(store)


async def define(works: Clockwork, name: str, text: str) -> None:
    await works.sql("UPDATE fusee_tasks SET definition = :text WHERE name = :name", text=text, name=name)


async def redefine(world: World, batch_id: int, text: str) -> None:
    await world.sql("UPDATE fusee_batches SET definition = :text WHERE id = :id", text=text, id=batch_id)


async def row_of(world: World, table: Any, row_id: int) -> Any:
    return next(row for row in await world.rows(table) if row.id == row_id)


async def set_run(world: World, run_id: int, **values: Any) -> None:
    change = runs.update().where(runs.c.id == run_id).values(**values)
    await world.store.database.write(lambda connection: connection.execute(change).close())


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_task_that_cannot_be_read_stops_no_other_schedule(
    works: Clockwork, told: Told, damage: str
) -> None:
    bad = await works.make("bad", catch_up_window=0)
    await works.make("good", max_concurrency=0)
    was = (await works.world.rows(tasks))[0].definition
    await define(works, "bad", DAMAGED[damage])
    scan = Scan(works.store.tasks, Bus())
    for minute in (1, 2, 3):
        await works.go_to(minute)
        fired = await scan.run_once()
        assert fired.counts == {"on_time": 1}
        assert not await scan.run_once(), "and the loop rests, although the bad one is still due"
        assert scan.pause is not None and scan.pause > 1
    assert await works.record("good") == ["1 run pending", "2 run pending", "3 run pending"]
    assert told.heard == [("task", bad.id, False)], "told once"
    assert [row[:2] for row in told.aside.rows()] == [("task", bad.id)]
    await define(works, "bad", was)
    assert not await scan.run_once(), "not before it is tried again"
    told.seconds += TRY_AGAIN_AFTER
    assert (await scan.run_once()).counts, "and what was due meanwhile is decided by its catch-up"
    assert [line.split()[0] for line in await works.record("bad")] == ["1", "2", "3"]
    assert told.heard == [("task", bad.id, False), ("task", bad.id, True)]
    assert told.aside.rows() == []


async def test_an_option_with_an_unknown_value_counts_as_not_given(works: Clockwork, told: Told) -> None:
    """As docs/upgrading.md says of options that an older version does not know."""
    task = spec("t", overlap="SKIP", retry=RetryPolicy(max_attempts=7)).to_dict()
    task["policy"] |= {"failure": "ASK_SOMEONE", "catch_up": "SMART", "moonlight": 3}
    task["retry"] |= {"backoff": "fibonacci", "on": ["failed", "bored"], "budget": 9}
    task |= {"strategy": "by_colour", "trigger_rule": "most_success", "mood": "good"}
    await works.make("t")
    await define(works, "t", json.dumps(task))
    assert (await works.fire_at(1)).counts == {"on_time": 1}
    assert told.heard == [], "nothing is set aside"
    shown = (await works.task("t")).spec
    assert shown.policy == spec(overlap="SKIP").policy, "what is known holds"
    assert shown.retry == RetryPolicy(max_attempts=7, on=("failed",))
    # A change by this version keeps what it does not know.
    await works.change("t", overlap="SKIP", queue_depth=5, retry=RetryPolicy(max_attempts=8))
    (row,) = await works.world.rows(tasks)
    kept = json.loads(row.definition)
    assert kept["mood"] == "good" and kept["strategy"] == "by_colour"
    assert kept["trigger_rule"] == "most_success"
    assert kept["policy"] == {
        "overlap": "SKIP",
        "queue_depth": 5,
        "failure": "ASK_SOMEONE",
        "catch_up": "SMART",
        "moonlight": 3,
    }
    assert kept["retry"] == {"max_attempts": 8, "backoff": "fibonacci", "budget": 9}
    await works.change("t", overlap="SKIP", failure="PAUSE")
    (row,) = await works.world.rows(tasks)
    assert json.loads(row.definition)["policy"]["failure"] == "PAUSE", "what someone chose here is chosen"


async def test_a_task_that_cannot_be_read_does_not_stop_the_aggregator(works: Clockwork, told: Told) -> None:
    bad = await works.make("bad", queue_depth=5)
    await works.make("good")
    await works.make("follows", after=("good",))
    await works.fire_at(1)
    await works.fire_at(2)
    assert sorted(await works.claim()) == ["bad 1", "good 1"]
    was = (await works.world.rows(tasks))[0].definition
    held = {name: (await works.run_of(name, 1)).id for name in ("bad", "good")}
    await define(works, "bad", DAMAGED["no JSON"])
    await works.world.finish(works.session, works.held.pop(held["bad"]), works.held.pop(held["good"]))
    loop = Aggregate(works.store, Bus())
    while await loop.run_once():
        pass
    assert await works.record("good") == ["1 run succeeded", "2 queue pending"]
    assert await works.record("follows") == ["1 run pending"]
    assert told.heard == [("task", bad.id, False)]
    assert await works.notices() == ["task"], "its end waits until someone can read the task"
    await define(works, "bad", was)
    told.seconds += TRY_AGAIN_AFTER
    while await loop.run_once():
        pass
    assert await works.record("bad") == ["1 run succeeded", "2 queue pending"]
    assert told.aside.rows() == [] and await works.notices() == []


async def test_a_batch_that_cannot_be_read_does_not_stop_the_others(world: World, told: Told) -> None:
    bad = await Batchwork.start(world, 4, concurrency=2)
    good = await Batchwork.start(world, 4, concurrency=2, session=bad.session, target_type="knob")
    was = (await row_of(world, batches, bad.id)).definition
    await redefine(world, bad.id, "[]")
    for _ in range(2):
        claimed = await world.claim(bad.session, 10)
        await world.finish(bad.session, *claimed)
        while await world.store.aggregation.aggregate():
            pass
    assert (await world.store.batches.queries.batch(good.id)).status == "success"
    assert told.heard == [("batch", bad.id, False)]
    assert [batch.id for batch in await world.store.batches.queries.batches(BatchFilter())] == [good.id]
    with pytest.raises(Unreadable, match=f"batch {bad.id} cannot be read by this version"):
        await world.store.batches.queries.batch(bad.id)
    await redefine(world, bad.id, was)
    told.seconds += TRY_AGAIN_AFTER
    while await world.store.aggregation.aggregate():
        pass
    await world.finish(bad.session, *await world.claim(bad.session, 10))
    while await world.store.aggregation.aggregate():
        pass
    assert (await world.store.batches.queries.batch(bad.id)).status == "success"
    await world.store.batches.queries.batches(BatchFilter())
    assert told.aside.rows() == []


async def test_a_batch_with_an_unknown_reaction_to_errors_stops_as_by_default(world: World) -> None:
    batch = await Batchwork.start(world, 3, concurrency=1, max_errors=0, on_error="rollback")
    newer = (await row_of(world, batches, batch.id)).definition.replace('"rollback"', '"call_the_boss"')
    await redefine(world, batch.id, newer)
    assert (await world.store.batches.queries.batch(batch.id)).spec.on_error == "stop"


@pytest.mark.parametrize("options", ["{ what", "[3]", '{"retry": {"max_attempts": "many"}}'])
async def test_runs_whose_options_cannot_be_read_are_recovered_with_the_others(
    world: World, told: Told, options: str
) -> None:
    ids = await world.enqueue(3)
    session = await world.session(ttl=5.0)
    assert len(await world.claim(session, 10)) == 3
    await set_run(world, ids[1], options=options)
    await world.clock.tick(10)
    recovered = await Recover(world.store, Bus()).run_once()
    assert (recovered.requeued, recovered.failed) == (3, 0)
    assert told.heard == [("run", ids[1], False)]
    await set_run(world, ids[1], options=None)


async def test_a_receipt_that_cannot_be_read_does_not_stop_recovery(world: World, told: Told) -> None:
    await world.enqueue(2)
    first, second = await world.session("first", ttl=5.0), await world.session("second", ttl=5.0)
    await world.claim(first, 1)
    await world.claim(second, 1)
    (was,) = [row.run_ids for row in await world.rows(receipts) if row.session_id == first]
    await world.sql(f"UPDATE fusee_receipts SET run_ids = 'x' WHERE session_id = {first}")
    await world.clock.tick(10)
    loop = Recover(world.store, Bus())
    assert (await loop.run_once()).requeued == 1
    assert not await loop.run_once()
    assert told.heard == [("receipt of session", first, False)]
    await world.sql(f"UPDATE fusee_receipts SET run_ids = '{was}' WHERE session_id = {first}")
    told.seconds += TRY_AGAIN_AFTER
    assert (await loop.run_once()).requeued == 1
    assert told.aside.rows() == []


async def test_callbacks_expire_beside_a_run_whose_options_cannot_be_read(world: World, told: Told) -> None:
    ids = await world.enqueue(2)
    session = await world.session(ttl=3600.0)
    for run in await world.claim(session, 10):
        await world.store.callbacks.open_callback(
            session, run.id, run.attempt, f"digest-{run.id}", timeout=5.0, signed=False
        )
        await world.settle(session, run, end=End.ACCEPTED)
    await set_run(world, ids[0], options="{ what")
    await world.clock.tick(10)
    expired = await Expire(world.store, Bus()).run_once()
    assert sorted(one.run_id for one in expired) == ids
    assert told.heard == [("run", ids[0], False)]
    await set_run(world, ids[0], options=None)


async def test_assignment_goes_on_beside_a_run_and_a_worker_that_cannot_be_read(
    world: World, told: Told
) -> None:
    ids = await world.enqueue(3, strategy="round_robin")
    await world.session("fine", takes_assigned=True)
    damaged = await world.session("damaged", takes_assigned=True)
    await set_run(world, ids[0], options="[]]")
    await world.sql(f"UPDATE fusee_sessions SET abilities = '{{}}' WHERE id = {damaged}")
    assert (await Assign(world.store.assignments, Bus()).run_once()).placed == 2
    assert sorted(told.heard) == [("run", ids[0], False), ("worker session", damaged, False)]
    assert [one.info.name for one in await world.store.sessions.sessions()] == ["fine"]
    await set_run(world, ids[0], options=None)


async def test_lists_leave_out_what_cannot_be_read_and_fill_their_pages(works: Clockwork, told: Told) -> None:
    world, store = works.world, works.store
    for name in "abc":
        await works.make(name)
    await define(works, "a", "{ what")
    assert [task.name for task in await store.tasks.definitions.tasks(TaskFilter(limit=2))] == ["b", "c"], (
        "a full page"
    )
    with pytest.raises(Unreadable, match="upgrade this process if a newer version wrote it"):
        await store.tasks.definitions.task("a")
    assert (await store.tasks.steering.steer_task("a", "delete")).status == "deleted", "there is a way out"
    ids = await world.enqueue(3)
    await set_run(world, ids[2], options="{ what")
    await set_run(world, ids[1], effect="wow")
    assert [run.id for run in await store.runs.runs(RunFilter(limit=1))] == ids[:1]
    with pytest.raises(Unreadable, match=f"run {ids[2]} "):
        await store.runs.run(ids[2])
    await set_run(world, ids[2], options=None)
    await set_run(world, ids[1], effect=None)
    jobs = [
        (
            await store.bulk.creation.create_bulk_job(
                BulkSpec(name=n, business="b", source={"kind": "range", "stop": 5})
            )
        )[0]
        for n in "xyz"
    ]
    await world.sql(f"UPDATE fusee_bulk_jobs SET definition = '7' WHERE id = {jobs[2].id}")
    assert [job.spec.name for job in await store.bulk.queries.bulk_jobs(BulkFilter(limit=2))] == ["y", "x"]
    await works.fire_at(1)
    await works.fire_at(2)
    await works.sql(
        "UPDATE fusee_fires SET decision = 'postpone' WHERE fire_time = (SELECT t FROM"
        " (SELECT max(fire_time) AS t FROM fusee_fires) AS newest)"
    )
    assert len(await store.tasks.history.fires("b", FireFilter(limit=1))) == 1
    batch = await Batchwork.plan(world, 3, session=works.session)
    await world.sql(
        f"UPDATE fusee_batch_tasks SET payload = '8' WHERE batch_id = {batch.id} AND position = 0"
    )
    shown = await store.batches.queries.batch_tasks(batch.id, TargetFilter(limit=2))
    assert [target.position for target in shown] == [1, 2]
    for name in ("broken", "whole"):
        await store.bulk.businesses.register_business(
            HttpBusiness(name=name, item="http://crm.example/items")
        )
    await world.sql("UPDATE fusee_businesses SET definition = '[]' WHERE name = 'broken'")
    assert [one.spec.name for one in await store.bulk.businesses.registered_businesses(limit=1)] == ["whole"]
    assert ("business", "broken", False) in told.heard
    assert {kind for kind, _, _ in told.heard} == {"task", "run", "bulk job", "fire", "batch", "business"}
    await works.sql("UPDATE fusee_fires SET decision = 'run' WHERE decision = 'postpone'")


async def test_an_error_of_the_database_sets_nothing_aside(
    works: Clockwork, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the loop's to fail and to try again: every row would seem to be at fault."""
    await works.make("t")
    await works.go_to(1)

    def gone(*_: object, **__: object) -> None:
        raise ConnectionError("the database has gone away")

    with monkeypatch.context() as patch:
        patch.setattr(type(works.store.tasks.writer), "write", gone)
        with pytest.raises(Exception, match="did not answer"):
            await works.store.tasks.firing.fire_due()
    assert told.aside.rows() == [] and told.heard == []
    assert (await works.store.tasks.firing.fire_due()).counts == {"on_time": 1}
