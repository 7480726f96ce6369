"""What becomes of fires that wait when their task is paused, disabled, deleted, or its queue is cleared."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.util import await_only

from fusee.engine.store.tables import gates
from fusee.errors import NotFound
from fusee.tasks.model.policy import FailureAction, Overlap
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.tables import fires, tasks, waits
from tests.store.clockwork import Clockwork

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def line_of_three(works: Clockwork, **fields: object) -> None:
    """The fire of minute 1 runs; those of 2, 3 and 4 wait for it."""
    await works.make("t", **fields)
    for minute in (1, 2, 3, 4):
        await works.fire_at(minute)
        await works.claim()
    in_line = [fire.split()[0] for fire in await works.record() if fire.endswith("(queue)")]
    assert in_line == ["2", "3", "4"]


# --- pause ---------------------------------------------------------------------------------------------


async def test_a_pause_by_policy_holds_the_queue(works: Clockwork) -> None:
    await line_of_three(works, failure=FailureAction.PAUSE)
    await works.fail("t", 1)
    task = await works.task()
    assert task.status == TaskStatus.PAUSED and "failure_action PAUSE" in str(task.reason)
    assert await works.claim() == [], "nothing leaves the queue of a paused task"
    await works.fire_at(9)
    assert await works.statuses("t", 1, 2, 3, 4) == ["failed", "blocked", "blocked", "blocked"]
    await works.store.tasks.steering.steer_task("t", "resume")
    await works.react()
    assert await works.claim() == ["t 2"], "resumed, the queue goes on where it was"
    await works.fail("t", 2)
    assert (await works.task()).status == TaskStatus.PAUSED, "and stops again at the next failure"
    assert await works.claim() == []


async def test_a_pause_by_hand_holds_the_queue_until_it_is_resumed(works: Clockwork) -> None:
    await line_of_three(works)
    await works.store.tasks.steering.steer_task("t", "pause", "the warehouse is down")
    await works.succeed("t", 1)
    assert await works.claim() == []
    await works.store.tasks.steering.steer_task("t", "resume")
    await works.react()
    assert await works.claim() == ["t 2"]


async def test_what_is_triggered_while_paused_passes_the_held_queue(works: Clockwork) -> None:
    await line_of_three(works)
    await works.store.tasks.steering.steer_task("t", "pause")
    held = await works.store.tasks.triggers.trigger("t")
    assert held.decision == "queue"
    assert held.rule.endswith("queued at place 4; the task is paused, its queue is held until it is resumed")
    await works.succeed("t", 1)
    assert await works.claim() == []
    await works.go_to(5.5)
    by_hand = await works.store.tasks.triggers.trigger("t")
    assert by_hand.decision == "run"
    assert await works.claim() == ["t 5.5"]


async def test_a_fire_whose_upstream_ends_while_it_is_paused_is_held(works: Clockwork) -> None:
    await works.make("up")
    await works.make("t", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    assert await works.claim() == ["up 1"]
    await works.store.tasks.steering.steer_task("t", "pause")
    await works.succeed("up", 1)
    assert await works.claim() == []
    assert await works.record("t") == ["1 run blocked (queue)"]
    await works.store.tasks.steering.steer_task("t", "resume")
    await works.react()
    assert await works.claim() == ["t 1"]
    assert await works.count(gates) == await works.count(waits) == 0


@pytest.mark.parametrize("engine", ["postgres", "mysql"], indirect=True)
async def test_a_resume_while_the_upstream_ends_leaves_no_fire_behind(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end finds the task paused; the resume commits before it, and does not see the fire in the line."""
    other = await works.world.another()
    await works.make("up")
    await works.make("t", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    assert await works.claim() == ["up 1"]
    run = await works.run_of("t", 1)
    await works.store.tasks.steering.steer_task("t", "pause")
    await works.world.finish(works.session, works.held.pop((await works.run_of("up", 1)).id))
    inner = works.store.tasks.upstreams._hold_paused

    def resumed_meanwhile(connection: Any, run_ids: Any) -> Any:
        monkeypatch.undo()
        may_start = inner(connection, run_ids)
        assert list(run_ids) == [run.id] and not may_start, "it is held"
        await_only(other.tasks.steering.steer_task("t", "resume"))
        return may_start

    monkeypatch.setattr(works.store.tasks.upstreams, "_hold_paused", resumed_meanwhile)
    await works.react()
    assert (await works.task()).status == TaskStatus.ENABLED, "it was resumed meanwhile"
    assert await works.claim() == ["t 1"]
    assert await works.count(gates) == await works.count(waits) == 0


# --- failure_action SKIP -------------------------------------------------------------------------------


async def test_after_a_failure_the_next_fire_is_the_head_of_the_queue(works: Clockwork) -> None:
    await line_of_three(works, failure=FailureAction.SKIP)
    await works.fail("t", 1)
    assert await works.claim() == ["t 3"]
    rule = "failure_action SKIP: the last fire that ran failed; only this fire is left out"
    assert await works.rule("t", 2) == rule
    run = await works.run_of("t", 2)
    assert (run.status, run.reason) == ("skipped", rule)
    assert (await works.record())[1] == "2 skip skipped"
    await works.fire_at(5)
    await works.succeed("t", 3)
    assert await works.claim() == ["t 4"], "one fire only"


async def test_a_fire_with_shards_is_left_out_as_one(works: Clockwork) -> None:
    await line_of_three(works, failure=FailureAction.SKIP, shards=2)
    await works.fail("t", 1, 0)
    assert await works.claim() == []
    await works.fail("t", 1, 1)
    assert await works.claim() == ["t 3", "t 3"]
    assert (await works.record())[1] == "2 skip skipped skipped"


# --- disable, delete, clear ----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["disable", "delete"])
async def test_disabled_or_deleted_nothing_of_it_waits_any_more(works: Clockwork, verb: str) -> None:
    await line_of_three(works)
    await works.store.tasks.backfills.start("t", *(await _before(works)), concurrency=1)
    assert await works.claim() == ["t -3"]
    waiting = {row.run_id: row.held for row in await works.world.rows(fires) if row.held is not None}
    assert sorted(set(waiting.values())) == ["backfill", "queue"]
    await works.store.tasks.steering.steer_task("t", verb, "no longer needed")
    await works.react()
    for run_id in waiting:
        run = await works.store.runs.run(run_id)
        said = f"{verb}d: the task was {verb}d before this fire started"
        assert (run.status, run.reason, run.effect) == ("skipped", said, "none")
    rows = {row.run_id: row for row in await works.world.rows(fires)}
    for run_id in waiting:
        row = rows[run_id]
        assert (row.decision, row.code, row.held, row.open_task) == ("skip", f"{verb}d", None, None)
    # What runs goes on, and nothing follows it.
    assert not await works.world.finish(works.session, *works.held.values())
    await works.react()
    assert await works.claim() == []
    if verb == "disable":
        assert (await works.task()).failures == 0, "left out is no failure"
        await works.store.tasks.steering.steer_task("t", "enable")
        await works.react()
        assert await works.claim() == []


async def _before(works: Clockwork) -> tuple[int, int]:
    task = await works.task()
    return task.created_at - 3 * 60_000_000, task.created_at


async def test_deleted_a_task_waits_for_no_upstream_any_more(works: Clockwork) -> None:
    await works.make("up")
    await works.make("t", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    await works.store.tasks.steering.steer_task("t", "delete")
    await works.react()
    assert await works.count(gates) == await works.count(waits) == 0
    await works.claim()
    await works.succeed("up", 1)
    assert await works.claim() == []


async def test_a_queue_is_cleared_and_the_task_goes_on(works: Clockwork) -> None:
    await line_of_three(works, shards=2)
    cleared = await works.store.tasks.steering.clear_queue("t", "stale by now")
    assert cleared == 3
    await works.react()
    assert await works.rule("t", 3) == "queue cleared: stale by now"
    assert (await works.record())[1:] == [f"{n} skip skipped skipped" for n in (2, 3, 4)]
    assert [fire.code for fire in await works.shards_of("t", 3)] == ["cleared", "cleared"]
    await works.succeed("t", 1, 0)
    await works.succeed("t", 1, 1)
    assert await works.claim() == []
    await works.fire_at(5)
    assert await works.claim() == ["t 5", "t 5"]
    assert await works.store.tasks.steering.clear_queue("t", "again") == 0
    with pytest.raises(NotFound):
        await works.store.tasks.steering.clear_queue("nobody", "x")


async def test_clearing_leaves_out_what_waits_for_a_canceled_one(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    assert (await works.record())[1] == "2 run blocked (previous)"
    assert await works.store.tasks.steering.clear_queue("t", "enough") == 1
    await works.react()
    assert (await works.record())[1] == "2 skip skipped"


async def test_who_waits_for_a_cleared_fire_hears_that_it_will_never_be(works: Clockwork) -> None:
    await works.make("t")
    await works.make("down", cron="* * * * *", after=("t",), max_concurrency=0)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.store.tasks.steering.clear_queue("t", "enough")
    await works.react()
    assert (await works.run_of("down", 2)).status == "skipped"


async def test_a_queue_that_an_older_version_left_behind_is_emptied(works: Clockwork) -> None:
    """It disables a task without a look at what waits; the next end of a run of the task shows that."""
    await line_of_three(works)
    await works.sql("UPDATE fusee_tasks SET status = 'disabled', next_fire_at = NULL")
    await works.succeed("t", 1)
    assert await works.claim() == []
    assert (await works.record())[1:] == [f"{n} skip skipped" for n in (2, 3, 4)]
    assert {row.status for row in await works.world.rows(tasks)} == {"disabled"}
