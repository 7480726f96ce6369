"""What a batch and its targets say about themselves is true at every moment."""

from __future__ import annotations

import pytest

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.batches.store.queries import BatchFilter
from fusee.engine.model.retry import RetryPolicy
from tests.store.batchwork import Batchwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

THRICE = RetryPolicy(max_attempts=3, base=60.0, jitter=0.0, backoff="fixed")


async def test_a_target_counts_as_running_only_while_a_worker_has_it(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=3)
    batch = await work.look()
    assert await work.shown() == {"pending": 5}
    assert (batch.phase, batch.status) == (BatchPhase.APPLYING, BatchStatus.PENDING)
    await work.claim(2)
    assert await work.shown() == {"running": 2, "pending": 3}
    assert (await work.look()).status is BatchStatus.RUNNING
    assert await work.recounted()
    await work.finish("t0", "t1")
    await work.work_through()
    assert await work.shown() == {"success": 5}


async def test_a_target_that_waits_for_its_next_attempt_says_so_and_why(world: World) -> None:
    work = await Batchwork.start(world, 2, concurrency=2)
    await work.claim()
    await work.end("t0", policy=THRICE)
    assert await work.shown() == {"running": 1, "retry_pending": 1}
    first, second = await work.targets()
    assert (first.status, first.retry_time) == (BatchStatus.RETRY_PENDING, 1)
    assert first.info == "waits to be tried again; attempt 1 failed: broken"
    assert (second.status, second.retry_time, second.info) == (BatchStatus.RUNNING, 0, None)
    await work.finish("t1")
    assert (await work.look()).status is BatchStatus.RETRY_PENDING
    await world.clock.tick(61)
    await work.claim()
    (first, _) = await work.targets()
    assert (first.status, first.retry_time, first.info) == (BatchStatus.RUNNING, 1, None)
    await work.finish("t0")
    assert [target.retry_time for target in await work.targets()] == [1, 0]


async def test_retries_of_both_kinds_are_counted_together(world: World) -> None:
    work = await Batchwork.start(world, 1)
    for _ in range(3):
        await work.claim()
        await work.end("t0", policy=THRICE)
        await world.clock.tick(61)
    (target,) = await work.targets()
    assert (target.status, target.retry_time) == (BatchStatus.FAIL, 2)
    assert await work.retry() == 1
    (target,) = await work.targets()
    assert (target.status, target.retry_time) == (BatchStatus.RETRY_PENDING, 3)
    assert target.info is not None and "failed: broken" in target.info
    assert await work.shown() == {"retry_pending": 1}
    await work.claim()
    await work.end("t0", policy=THRICE)
    assert [t.retry_time for t in await work.targets()] == [4]
    await world.clock.tick(61)
    await work.work_through()
    assert [(t.status, t.retry_time) for t in await work.targets()] == [(BatchStatus.SUCCESS, 4)]


async def test_a_rollback_that_waits_for_its_next_attempt_says_so(world: World) -> None:
    work = await Batchwork.start(world, 1)
    await work.work_through()
    await work.roll_back()
    assert await work.shown() == {"rollback_pending": 1}
    await work.claim()
    assert await work.shown() == {"rollback_running": 1}
    await work.end("t0", policy=THRICE)
    (target,) = await work.targets()
    assert target.status is BatchStatus.ROLLBACK_PENDING
    assert target.info == "waits to be tried again; attempt 1 failed: broken"
    assert await work.shown() == {"rollback_pending": 1}
    assert (await work.look()).status is BatchStatus.ROLLBACK_PENDING
    await world.clock.tick(61)
    await work.work_through()


async def test_a_region_without_a_worker_is_shown_as_waiting_with_the_reason(world: World) -> None:
    work = await Batchwork.start(world, 2, region="sg")  # its session serves no region
    batch = await work.look()
    assert batch.status is BatchStatus.PENDING
    assert batch.waiting is not None
    assert "no live worker in region 'sg' serves operation dial/turn from queue 'default'" in batch.waiting
    (listed,) = await world.store.batches.queries.batches(BatchFilter(status=[BatchStatus.PENDING]))
    assert (listed.id, listed.waiting) == (work.id, batch.waiting)
    assert await world.store.batches.queries.batches(BatchFilter(status=[BatchStatus.RUNNING])) == []
    handler = "batch.dial.turn"
    await world.session(region="sg", handlers=(handler,), ttl=30.0)
    assert (await work.look()).waiting is None
    await world.clock.tick(31)  # its lease expired
    assert (await work.look()).waiting == batch.waiting
    await work.cancel()


async def test_undoing_some_targets_is_a_partial_rollback(world: World) -> None:
    work = await Batchwork.start(world, 20)
    await work.work_through()
    await work.roll_back("t3", "t4")
    await work.work_through()
    batch = await work.look()
    assert await work.shown() == {"success": 18, "rollback_success": 2}
    assert (batch.status, batch.left_applied) == (BatchStatus.PARTIAL_ROLLBACK, 18)
    (listed,) = await world.store.batches.queries.batches(BatchFilter(status=[BatchStatus.PARTIAL_ROLLBACK]))
    assert listed.id == work.id
    await work.roll_back()
    await work.work_through()
    batch = await work.look()
    assert (batch.status, batch.left_applied) == (BatchStatus.ROLLBACK_SUCCESS, 0)


async def test_what_is_applied_after_a_rollback_makes_it_partial(world: World) -> None:
    work = await Batchwork.start(world, 20, concurrency=10)
    await work.claim()
    await work.cancel()
    await work.finish(*work.held)
    assert (await work.look()).status is BatchStatus.PARTIAL_CANCEL
    await work.roll_back()
    await work.work_through()
    assert (await work.look()).status is BatchStatus.ROLLBACK_SUCCESS
    assert await work.retry(canceled=True) == 10
    await work.work_through()
    batch = await work.look()
    assert await work.shown() == {"rollback_success": 10, "success": 10}
    assert (batch.status, batch.left_applied) == (BatchStatus.PARTIAL_ROLLBACK, 10)


async def test_targets_that_had_nothing_to_undo_do_not_make_a_rollback_partial(world: World) -> None:
    work = await Batchwork.start(world, 3)
    await work.claim()
    await work.already("t0")
    await work.finish("t1", "t2")
    await work.roll_back()
    await work.work_through()
    batch = await work.look()
    assert await work.shown() == {"success": 1, "rollback_success": 2}
    assert (batch.status, batch.left_applied) == (BatchStatus.ROLLBACK_SUCCESS, 0)


async def test_a_failure_that_may_have_done_something_keeps_a_rollback_partial(world: World) -> None:
    work = await Batchwork.start(world, 2)
    await work.claim()
    await work.end("t0")  # its effect is unknown
    await work.finish("t1")
    await work.roll_back("t1")
    await work.work_through()
    batch = await work.look()
    assert await work.shown() == {"fail": 1, "rollback_success": 1}
    assert (batch.status, batch.left_applied) == (BatchStatus.PARTIAL_ROLLBACK, 1)
