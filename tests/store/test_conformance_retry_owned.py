"""Retrying a run that belongs to a task, a batch, a workflow or a bulk job goes through its owner."""

from __future__ import annotations

import pytest

from fusee.engine.owners import Retried
from fusee.engine.store.runs import RunFilter
from fusee.errors import Conflict
from fusee.events import Bus
from fusee.runs.service.runs import RunOperations
from fusee.tasks.model.policy import FailureAction, Overlap
from tests.store.batchwork import Batchwork
from tests.store.bulks import Bulks
from tests.store.clockwork import Clockwork, at
from tests.store.flows import DIAMOND, Flow
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def retry(world: World, run_id: int) -> Retried:
    return await RunOperations(world.store, Bus()).retry(run_id)


async def refusal(world: World, run_id: int) -> str:
    """Why it is refused; also that nothing was left behind."""
    before = len(await world.store.runs.runs(RunFilter(limit=1000)))
    with pytest.raises(Conflict) as refused:
        await retry(world, run_id)
    assert len(await world.store.runs.runs(RunFilter(limit=1000))) == before
    return str(refused.value)


# --- tasks ---------------------------------------------------------------------------------------------


async def test_a_run_of_a_task_is_retried_as_a_fire_of_its_own(works: Clockwork, world: World) -> None:
    await works.make("t", payload={"a": 1}, shards=2)
    await works.fire_at(1)
    await works.claim()
    await works.succeed("t", 1, 0)
    await works.fail("t", 1, 1)
    failed = await works.run_of("t", 1, 1)
    await works.go_to(1.5)
    again = await retry(world, failed.id)
    run = await works.store.runs.run(again.id)
    assert (run.kind, run.task, run.origin_id, run.payload) == ("task", "t", failed.id, {"a": 1})
    assert (run.fire_time, run.shard_index, run.shard_total) == (at(1), 1, 2), "what it was to work for"
    (fire,) = await works.shards_of("t", 1.5)
    assert (fire.run_id, fire.cause, again.rule) == (run.id, "manual", fire.rule)
    assert fire.rule == f"run {failed.id} done again by hand, and nothing in its way"
    await works.claim()
    await works.world.finish(works.session, works.held.pop(run.id))
    await works.react()
    assert (await works.task()).last_status == "succeeded"


async def test_a_retry_stands_in_line_behind_the_cap(works: Clockwork, world: World) -> None:
    await works.make("t", max_concurrency=1)
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1)
    first = await works.run_of("t", 1)
    await works.fire_at(2)
    assert await works.claim() == ["t 2"]
    again = await retry(world, first.id)
    assert again.status == "blocked" and "queued at place 1" in str(again.rule)
    assert await works.claim() == []
    await works.succeed("t", 2)
    assert await works.claim() == ["t 1"], "its logical time is that of the run that it does again"


@pytest.mark.parametrize("state", ["skipped", "canceled"])
async def test_a_skipped_or_canceled_run_is_not_retried_beside_the_active_one(
    works: Clockwork, world: World, state: str
) -> None:
    await works.make("t", overlap=Overlap.SKIP)
    if state == "canceled":
        await works.fire_at(0.5)
        await works.fire_at(1)
        await works.cancel("t", 1)
        await works.fire_at(2)
    else:
        await works.fire_at(1)
        await works.fire_at(2)
    ended = next(run for run in await world.store.runs.runs(RunFilter(limit=9)) if run.status == state)
    active = next(run for run in await world.store.runs.runs(RunFilter(limit=9)) if run.status == "pending")
    said = await refusal(world, ended.id)
    assert f"overlap_action SKIP: run {active.id} has not ended" in said
    assert len(await works.claim()) == 1


async def test_a_retry_answers_a_failure_so_the_failure_policy_lets_it_pass(
    works: Clockwork, world: World
) -> None:
    await works.make("t", failure=FailureAction.SKIP)
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1)
    await works.go_to(1.5)
    again = await retry(world, (await works.run_of("t", 1)).id)
    assert again.status == "pending"
    assert await works.claim() == ["t 1"]


async def test_a_run_of_a_disabled_or_deleted_task_is_not_retried(works: Clockwork, world: World) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1)
    run = await works.run_of("t", 1)
    await works.store.tasks.steering.steer_task("t", "disable")
    assert "`fusee task enable t`" in await refusal(world, run.id)
    await works.store.tasks.steering.steer_task("t", "delete")
    assert "is deleted" in await refusal(world, run.id)


# --- batches -------------------------------------------------------------------------------------------


async def test_a_target_of_a_batch_is_not_applied_behind_its_back(world: World) -> None:
    work = await Batchwork.start(world, 4)
    await work.claim()
    await work.finish("t0", "t1")
    await work.end("t2")
    await work.cancel()
    await work.end("t3")

    async def said(nr: int) -> str:
        run_id = (await work.targets())[nr].run_id
        assert run_id is not None
        return await refusal(world, run_id)

    assert f"target t0 of batch {work.id}, which is applied" in await said(0)
    assert f"`fusee batch retry {work.id}`" in await said(2)
    await work.roll_back("t0", "t1")
    await work.claim()
    await work.finish("t0")
    await work.end("t1")
    assert "which was rolled back: make a new batch" in await said(0)
    assert f"`fusee batch rollback {work.id} --target t1`" in await said(1)
    undoing = (await work.targets())[1].rollback_run_id
    assert undoing is not None
    assert f"`fusee batch rollback {work.id} --target t1`" in await refusal(world, undoing)
    assert await work.statuses() == {
        "t0": "rollback_success",
        "t1": "rollback_fail",
        "t2": "fail",
        "t3": "fail",
    }


# --- workflows -----------------------------------------------------------------------------------------


async def test_a_step_of_a_workflow_is_retried_with_its_workflow_run(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    await flow.claim()
    await flow.finish("extract")
    await flow.claim()
    await flow.end("clean")
    ids = await flow.run_ids()
    assert "has not ended" in await refusal(world, ids["clean"])
    await flow.finish("check")
    assert (await flow.look()).over
    assert f"`fusee workflow rerun {flow.id}`" in await refusal(world, ids["clean"])
    assert "`fusee workflow start nightly`" in await refusal(world, ids["extract"])


# --- bulk jobs -----------------------------------------------------------------------------------------


async def test_a_segment_is_resumed_with_its_bulk_job(world: World) -> None:
    bulks = await Bulks.begin(world)
    job = await bulks.launched(10, concurrency=1)
    (run,) = [run for run in await world.store.runs.runs(RunFilter(limit=9)) if run.status == "pending"]
    await world.store.runs.cancel(run.id, "no more of this")
    said = await refusal(world, run.id)
    assert f"`fusee bulk start {job.id}`" in said


# --- a task, restarted as one --------------------------------------------------------------------------


async def test_a_task_is_restarted_by_doing_its_last_fire_again(works: Clockwork, world: World) -> None:
    await works.make("t", payload={"a": 1}, shards=2)
    with pytest.raises(Conflict, match="has no fire that could be done again"):
        await works.store.tasks.triggers.restart_task("t")
    await works.fire_at(1)
    await works.claim()
    await works.succeed("t", 1, 0)
    await works.fail("t", 1, 1)
    await works.go_to(1.5)
    again = await works.store.tasks.triggers.restart_task("t", idempotency_key="k")
    old = [(await works.run_of("t", 1, shard)).id for shard in (0, 1)]
    new = [await works.store.runs.run(run_id) for run_id in again.run_ids]
    assert [(run.origin_id, run.payload, run.shard_index) for run in new] == [
        (old[0], {"a": 1}, 0),
        (old[1], {"a": 1}, 1),
    ]
    assert {run.fire_time for run in new} == {at(1)}, "what it was to work for"
    assert again.rule == "its last fire done again by hand, and nothing in its way"
    same = await works.store.tasks.triggers.restart_task("t", idempotency_key="k")
    assert (same.created, list(same.run_ids)) == (False, list(again.run_ids))
    with pytest.raises(Conflict, match="used for another"):
        await works.store.tasks.triggers.trigger("t", idempotency_key="k")


async def test_a_restart_keeps_the_policies_of_its_task(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.SKIP)
    await works.fire_at(1)
    await works.go_to(1.5)
    with pytest.raises(Conflict, match="is not done again now: overlap_action SKIP"):
        await works.store.tasks.triggers.restart_task("t")
    await works.store.tasks.steering.steer_task("t", "disable", None, None)
    with pytest.raises(Conflict, match="is disabled"):
        await works.store.tasks.triggers.restart_task("t")
