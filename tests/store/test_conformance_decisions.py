"""What the platform decides by itself is told: once, and when it is committed."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.store.totals import Total
from fusee.errors import NotFound
from fusee.events import BatchEnded, BatchRollingBack, BatchStopped, Event, TaskPaused
from fusee.stores import Store
from fusee.tasks.model.policy import FailureAction
from fusee.tasks.store.history import FireFilter
from fusee.tasks.store.tasks import TaskFilter
from tests.store.batchwork import Batchwork
from tests.store.clockwork import Clockwork, at
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def told(store: Store) -> list[Event]:
    heard: list[Event] = []
    store.context.decisions.tell = heard.append
    return heard


async def finish_all(work: Batchwork) -> None:
    """Until nothing of it is left to do."""
    for _ in range(20):
        claimed = await work.world.claim(work.session, 100)
        await work.world.finish(work.session, *claimed)
        await work.react()
        if not claimed:
            return


async def test_a_batch_that_stops_and_rolls_back_by_itself_says_so(world: World, told: list[Event]) -> None:
    work = await Batchwork.start(
        world, 6, concurrency=2, max_errors=0, on_error="rollback", batch_name="dials"
    )
    good, bad = await world.claim(work.session, 2)
    await world.finish(work.session, good)
    await world.settle(work.session, bad, end=End.FAILED, error="stuck", policy=None, final=True)
    assert told == []
    await work.react()
    named = {"namespace": "default", "batch_id": work.id, "name": "dials", "operation": "dial.turn"}
    stopped, undoing = told
    reason = "max_errors 0: 1 of 6 failed"
    assert stopped == BatchStopped(**named, reason=reason, rollback=True)
    assert isinstance(undoing, BatchRollingBack) and (undoing.targets, undoing.reason) == (2, reason)
    await world.clock.tick(7)
    await finish_all(work)
    (ended,) = told[2:]
    assert isinstance(ended, BatchEnded)
    status = (await work.store.batches.queries.batch(work.id)).status
    assert (ended.batch_id, ended.status, ended.targets, ended.seconds) == (work.id, str(status), 6, 7.0)
    assert ended.reason == reason
    assert [total for total in await world.store.totals.totals() if total.name.startswith("batches")] == [
        Total("batches_ended", f"{status} dial.turn", 1),
        Total("batches_stopped", "dial.turn", 1),
    ]


async def test_the_end_of_a_batch_is_told_also_when_a_command_brings_it(
    world: World, told: list[Event]
) -> None:
    work = await Batchwork.start(world, 3)
    await work.cancel("changed my mind")
    assert [(type(one), getattr(one, "status", None)) for one in told] == [(BatchEnded, "cancel")]
    await work.react()
    assert len(told) == 1, "once"


async def test_batches_under_way_are_counted_by_operation(world: World) -> None:
    one = await Batchwork.start(world, 4, concurrency=1)
    await Batchwork.plan(world, 2, session=one.session, target_type="knob")
    loads = {
        (load.operation, str(load.phase)): load for load in await world.store.batches.queries.batch_loads()
    }
    assert loads.keys() == {("dial.turn", "applying"), ("knob.turn", "planned")}
    applying = loads["dial.turn", "applying"]
    assert applying.batches == 1
    assert {str(status): count for status, count in applying.targets.items() if count} == {
        "pending": 3,
        "running": 1,
    }
    await one.cancel()
    assert len(await world.store.batches.queries.batch_loads()) == 1, "what is done is no load"


async def test_a_pause_by_policy_is_told(works: Clockwork, told: list[Event]) -> None:
    await works.make("t", failure=FailureAction.PAUSE)
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1)
    run = await works.run_of("t", 1)
    reason = f"failure_action PAUSE: run {run.id} ended failed"
    assert told == [TaskPaused(namespace="default", task="t", reason=reason)]
    await works.fire_at(3)
    assert len(told) == 1


@pytest.mark.parametrize("by", ["trigger", "fire_again", "restart_task"])
async def test_a_pause_that_a_fire_by_hand_brings_is_told(
    works: Clockwork, told: list[Event], by: str
) -> None:
    """The fire by hand is the first to hear of the failure, and pauses the task before it fires."""
    await works.make("t", failure=FailureAction.PAUSE)
    await works.fire_at(1)
    await works.claim()
    run = await works.run_of("t", 1)
    await works.world.settle(works.session, works.held.pop(run.id), end=End.FAILED, policy=run.retry)
    assert told == []
    await getattr(works.store.tasks.triggers, by)(run.id if by == "fire_again" else "t")
    reason = f"failure_action PAUSE: run {run.id} ended failed"
    pauses = [event for event in told if isinstance(event, TaskPaused)]  # beside the fire by hand itself
    assert pauses == [TaskPaused(namespace="default", task="t", reason=reason)]
    await works.react()
    assert [event for event in told if isinstance(event, TaskPaused)] == pauses, "once"


async def test_what_is_rolled_back_is_not_told(
    works: Clockwork, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    await works.make("t", failure=FailureAction.PAUSE)
    await works.fire_at(1)
    await works.claim()
    run = await works.run_of("t", 1)

    def die(*_: Any, **__: Any) -> None:
        raise ConnectionError("the database has gone away")

    await works.world.settle(works.session, works.held.pop(run.id), end=End.FAILED, policy=run.retry)
    with monkeypatch.context() as patch:
        patch.setattr(works.store.tasks.states, "save", die)
        with pytest.raises(Exception, match="did not answer"):
            await works.store.aggregation.aggregate()
    assert told == []
    await works.react()
    assert len(told) == 1


async def test_the_record_of_a_deleted_task_can_still_be_read(works: Clockwork) -> None:
    task = await works.make("t")
    await works.fire_at(1)
    await works.store.tasks.steering.steer_task("t", "delete")
    for ref in ("t", task.id):
        fires = await works.store.tasks.history.fires(ref, FireFilter())
        assert [fire.fire_time for fire in fires] == [at(1)]
        assert len(await works.store.tasks.history.fires_at(ref, at(1))) == 1
        assert (await works.store.tasks.definitions.task(ref, deleted=True)).status == "deleted"
        with pytest.raises(NotFound):
            await works.store.tasks.definitions.task(ref)
    again = await works.make("t")
    assert again.id != task.id
    assert await works.store.tasks.history.fires("t", FireFilter()) == [], "the name is the new one's"
    assert len(await works.store.tasks.history.fires(task.id, FireFilter())) == 1
    with pytest.raises(NotFound):
        await works.store.tasks.history.fires("never", FireFilter())
    assert [one.id for one in await works.store.tasks.definitions.tasks(TaskFilter())] == [again.id]
