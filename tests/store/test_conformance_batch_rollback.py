"""Rolling back undoes what was applied or may have been, newest first, and never touches anything else."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.rows import decode
from fusee.errors import Conflict, LeaseLost, NotFound
from tests.store.batchwork import ONCE, Batchwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _payloads(work: Batchwork) -> dict[str, dict[str, Any]]:
    """What a worker would be given for each target that it has in hand."""
    return {name: decode(run.payload) for name, run in work.held.items()}


async def _mixed(world: World) -> Batchwork:
    """t0 applied, t1 failed half way, t2 as wanted before, t3 failed before it did anything, t4 stopped while
    it ran, t5 applied last, t6 never started."""
    work = await Batchwork.start(world, 7, concurrency=1)
    ends: list[tuple[End, Effect]] = [
        (End.SUCCEEDED, Effect.APPLIED),
        (End.FAILED, Effect.UNKNOWN),
        (End.SUCCEEDED, Effect.NONE),
        (End.FAILED, Effect.NONE),
        (End.CANCELED, Effect.UNKNOWN),
        (End.SUCCEEDED, Effect.APPLIED),
    ]
    for end, effect in ends:
        await world.clock.tick(1)
        (name,) = await work.claim()
        if name == "t5":
            await work.cancel()
        if effect is Effect.APPLIED:
            await work.finish(name)
        else:
            await work.end(name, end=end, effect=effect)
    assert await work.statuses() == {
        "t0": "success",
        "t1": "fail",
        "t2": "success",
        "t3": "fail",
        "t4": "cancel",
        "t5": "success",
        "t6": "cancel",
    }
    return work


async def test_exactly_what_was_touched_or_may_have_been_is_undone_newest_first(world: World) -> None:
    work = await _mixed(world)
    await work.roll_back()
    assert await work.work_through() == ["t5", "t4", "t1", "t0"]
    assert await work.statuses() == {
        "t0": "rollback_success",
        "t1": "rollback_success",
        "t2": "success",
        "t3": "fail",
        "t4": "rollback_success",
        "t5": "rollback_success",
        "t6": "cancel",
    }
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.ROLLBACK_SUCCESS)
    assert await work.recounted()


async def test_only_the_chosen_ones(world: World) -> None:
    work = await _mixed(world)
    await work.roll_back("t0", "t1", "t2", "t6")
    assert await work.work_through() == ["t1", "t0"]
    assert await work.counts() == {"rollback_success": 2, "success": 2, "fail": 1, "cancel": 2}
    await work.roll_back()
    assert await work.work_through() == ["t5", "t4"], "what was undone is not undone again"
    with pytest.raises(Conflict, match=r"no target of batch .* is left that was touched"):
        await work.store.batches.commands.roll_back_batch(work.id)


async def test_a_target_that_is_not_there_cannot_be_chosen(world: World) -> None:
    work = await _mixed(world)
    with pytest.raises(NotFound, match=f"batch {work.id} has no target 'nobody'"):
        await work.store.batches.commands.roll_back_batch(work.id, targets=["t0", "nobody"])
    assert (await work.look()).phase is BatchPhase.DONE


async def test_where_nothing_was_touched_there_is_nothing_to_undo(world: World) -> None:
    work = await Batchwork.plan(world, 3, concurrency=1)
    with pytest.raises(Conflict, match="has not started: there is nothing to undo"):
        await work.store.batches.commands.roll_back_batch(work.id)
    await work.store.batches.commands.apply_batch(work.id)
    (name,) = await work.claim()
    await work.cancel()
    await work.already(name)
    before = await work.look()
    with pytest.raises(Conflict, match="is left that was touched"):
        await work.store.batches.commands.roll_back_batch(work.id)
    assert await work.look() == before


async def test_those_that_started_together_are_undone_last_first(world: World) -> None:
    work = await Batchwork.start(world, 9, concurrency=3)
    for _ in range(3):
        await world.clock.tick(1)
        await work.finish(*await work.claim())
    await work.roll_back()
    assert await work.work_through() == [f"t{nr}" for nr in range(8, -1, -1)]


async def test_rolling_back_keeps_to_the_cap_and_keeps_it_full(world: World) -> None:
    work = await Batchwork.start(world, 12, concurrency=4)
    await work.work_through()
    await work.roll_back()
    assert (await work.look()).status is BatchStatus.ROLLBACK_PENDING, "nobody took one yet"
    for left in range(12, 0, -1):
        assert (await work.counts()).get("rollback_running", 0) == min(4, left)
        if not work.held:
            assert len(await work.claim()) == min(4, left)
        await work.finish(next(iter(work.held)))
    assert (await work.look()).phase is BatchPhase.DONE


async def test_an_undo_is_told_what_was_done_and_what_the_target_was(world: World) -> None:
    work = await Batchwork.start(world, 2, concurrency=2)
    await work.claim()
    run = work.held["t0"]
    await work.store.batches.images.keep_image(run.id, run.attempt, {"to": 42})
    await work.finish("t0")
    await work.end("t1")
    await work.roll_back(force=True)
    await work.claim()
    told = await _payloads(work)
    assert told["t0"] | {"position": 0} == told["t0"]
    assert (told["t0"]["rollback"], told["t0"]["force"]) == (True, True)
    assert (told["t0"]["effect"], told["t0"]["image"], told["t0"]["captured"]) == (
        "applied",
        {"to": 42},
        True,
    )
    assert (told["t1"]["effect"], told["t1"]["image"], told["t1"]["captured"]) == ("unknown", None, False)
    assert {t.target_id: t.image for t in await work.targets()} == {"t0": {"to": 42}, "t1": None}
    await work.finish("t0", "t1")


# --- rolled back while it runs


async def test_what_runs_ends_before_anything_is_undone(world: World) -> None:
    work = await Batchwork.start(world, 20, concurrency=4)
    await work.finish(*await work.claim())
    await work.claim(2)
    batch = await work.roll_back()
    assert batch.phase is BatchPhase.STOPPING
    assert await work.claim() == []
    await work.finish("t4")
    assert (await work.look()).counts[BatchStatus.ROLLBACK_RUNNING] == 0
    await work.end("t5")
    assert (await work.look()).phase is BatchPhase.ROLLING_BACK
    undone = await work.work_through()
    assert sorted(undone) == ["t0", "t1", "t2", "t3", "t4", "t5"]
    assert await work.counts() == {"rollback_success": 6, "cancel": 14}


async def test_chosen_targets_of_a_batch_that_runs_are_not_undone(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=2)
    await work.finish(*await work.claim())
    with pytest.raises(Conflict, match="is applying: cancel it, and wait until it is done"):
        await work.store.batches.commands.roll_back_batch(work.id, targets=["t0"])
    await work.cancel()
    await work.roll_back("t0")
    assert await work.work_through() == ["t0"]


async def test_a_batch_is_rolled_back_once_at_a_time(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=2)
    await work.work_through()
    await work.roll_back()
    with pytest.raises(Conflict, match="is being rolled back: wait for it"):
        await work.store.batches.commands.roll_back_batch(work.id)
    with pytest.raises(Conflict, match="is rolling_back: wait until it is done"):
        await work.store.batches.commands.retry_batch(work.id)
    await work.work_through()


async def test_a_cancel_calls_off_a_rollback_that_has_not_begun(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=2)
    await work.claim()
    await work.roll_back()
    await work.cancel()
    await work.finish("t0", "t1")
    assert await work.counts() == {"success": 2, "cancel": 2}
    assert (await work.look()).phase is BatchPhase.DONE


async def test_a_rollback_can_be_stopped_and_gone_on_with(world: World) -> None:
    work = await Batchwork.start(world, 10, concurrency=3)
    await work.work_through()
    await work.roll_back()
    first = await work.claim(2)
    batch = await work.cancel("wait")
    assert batch.phase is BatchPhase.STOPPING
    assert await work.claim() == [], "no undo starts after that"
    await work.finish(*first)
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.ROLLBACK_FAIL)
    assert await work.counts() == {"rollback_success": 2, "rollback_fail": 8}
    assert await work.recounted()
    await work.roll_back()
    assert len(await work.work_through()) == 8
    assert await work.counts() == {"rollback_success": 10}


async def test_a_rollback_asked_for_while_one_is_stopping_follows_it(world: World) -> None:
    work = await Batchwork.start(world, 6, concurrency=2)
    await work.work_through()
    await work.roll_back()
    first = await work.claim(1)
    await work.cancel("wait")
    await work.roll_back()
    assert (await work.look()).phase is BatchPhase.STOPPING
    await work.finish(*first)
    assert (await work.look()).phase is BatchPhase.ROLLING_BACK
    await work.work_through()
    assert await work.counts() == {"rollback_success": 6}


# --- on_error


async def test_too_many_errors_undo_what_was_done(world: World) -> None:
    work = await Batchwork.start(world, 30, concurrency=4, max_errors=1, on_error="rollback")
    await world.clock.tick(1)
    await work.finish(*await work.claim())
    await world.clock.tick(1)
    await work.claim()
    await work.end("t4", "t5")
    assert (await work.look()).phase is BatchPhase.STOPPING
    await work.already("t6")
    await work.finish("t7")
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.ROLLING_BACK, BatchStatus.ROLLBACK_PENDING)
    assert batch.reason == "max_errors 1: 2 of 30 failed"
    assert await work.work_through() == ["t7", "t5", "t4", "t3", "t2", "t1", "t0"]
    assert await work.counts() == {"rollback_success": 7, "success": 1, "cancel": 22}
    assert (await work.look()).status is BatchStatus.ROLLBACK_SUCCESS


async def test_too_many_errors_that_did_nothing_leave_nothing_to_undo(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=1, max_errors=0, on_error="rollback")
    await work.claim()
    await work.end("t0", effect=Effect.NONE)
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.FAIL)


# --- undoing that fails


async def test_what_could_not_be_undone_is_tried_again_and_nothing_else(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=5)
    await work.work_through()
    await work.roll_back()
    await work.work_through(failing=("t1", "t3"))
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.ROLLBACK_FAIL)
    assert await work.counts() == {"rollback_success": 3, "rollback_fail": 2}
    assert {t.target_id: t.info for t in await work.targets() if t.info} == {"t1": "broken", "t3": "broken"}
    await work.roll_back()
    assert sorted(await work.claim()) == ["t1", "t3"]
    told = await _payloads(work)
    assert told["t1"]["effect"] == "unknown", "what an earlier rollback began is not drift"
    await work.finish("t1", "t3")
    assert await work.counts() == {"rollback_success": 5}
    assert [t.info for t in await work.targets()] == [None] * 5


async def test_a_target_that_was_left_alone_for_drift_is_still_as_it_was_applied(world: World) -> None:
    work = await Batchwork.start(world, 2, concurrency=2)
    await work.work_through()
    await work.roll_back()
    await work.claim()
    await work.end("t0", end=End.ABANDONED, effect=Effect.NONE)
    await work.finish("t1")
    assert await work.counts() == {"rollback_success": 1, "rollback_fail": 1}
    await work.roll_back("t0", force=True)
    await work.claim()
    told = await _payloads(work)
    assert (told["t0"]["effect"], told["t0"]["force"]) == ("applied", True)
    await work.finish("t0")


async def test_a_worker_lost_while_it_undoes_costs_an_attempt(world: World) -> None:
    session = await world.session("mayfly", ttl=30)
    work = await Batchwork.start(world, 2, session=session, concurrency=2, retry=RetryPolicy(max_attempts=2))
    await work.work_through()
    await work.roll_back()
    await work.claim()
    await world.clock.tick(31)
    assert (await work.store.recovery.recover()).requeued == 2
    assert await work.statuses() == {"t0": "rollback_pending", "t1": "rollback_pending"}
    work.session = await world.session("another", ttl=3600)
    await work.work_through()
    assert await work.counts() == {"rollback_success": 2}


async def test_the_same_undoings_handed_in_twice_count_once(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=3)
    await work.work_through()
    await work.roll_back()
    claimed = work.take(await work.claim(2))
    for _ in range(3):
        assert await world.finish(work.session, *claimed) == []
        await work.react()
        assert await work.counts() == {"rollback_success": 2, "rollback_running": 3}
    await work.work_through()


# --- retry


async def test_only_the_failed_are_tried_again(world: World) -> None:
    work = await Batchwork.start(world, 6, concurrency=6)
    await work.work_through(failing=("t1", "t4"))
    assert await work.retry() == 2
    batch = await work.look()
    assert (batch.phase, batch.finished_at) == (BatchPhase.APPLYING, None)
    assert await work.claim() == ["t1", "t4"]
    assert await work.statuses() == {f"t{nr}": "running" if nr in (1, 4) else "success" for nr in range(6)}
    await work.finish("t1")
    await work.end("t4")
    assert await work.counts() == {"success": 5, "fail": 1}
    assert {t.target_id: t.retry_time for t in await work.targets() if t.retry_time} == {"t1": 1, "t4": 1}
    assert await work.retry() == 1
    await work.work_through()
    assert (await work.look()).status is BatchStatus.SUCCESS
    assert await work.retry() == 0
    assert (await work.look()).phase is BatchPhase.DONE


async def test_retries_keep_to_the_cap_and_wait_in_the_meantime(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=2)
    await work.work_through(failing=[f"t{nr}" for nr in range(5)])
    assert await work.retry() == 5
    assert await work.counts() == {"running": 2, "retry_pending": 3}
    assert set((await work.statuses()).values()) == {"retry_pending"}
    assert await work.claim() == ["t0", "t1"]
    await work.finish("t0", "t1")
    await work.work_through()


async def test_a_stop_before_their_turn_leaves_the_failed_what_they_were(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=2)
    await work.work_through(failing=[f"t{nr}" for nr in range(5)])
    await work.retry()
    await work.claim()
    await work.cancel()
    await work.finish("t0", "t1")
    assert await work.counts() == {"success": 2, "fail": 3}
    assert {t.target_id: t.info for t in await work.targets() if t.info} == dict.fromkeys(
        ("t2", "t3", "t4"), "broken"
    )
    assert await work.retry() == 3
    await work.work_through()
    assert await work.counts() == {"success": 5}


async def test_what_was_canceled_is_tried_again_when_asked_for(world: World) -> None:
    work = await Batchwork.start(world, 10, concurrency=4)
    await work.claim(2)
    await work.cancel()
    await work.finish("t0")
    await work.end("t1")
    assert await work.counts() == {"success": 1, "fail": 1, "cancel": 8}
    assert await work.retry(canceled=True) == 9
    assert await work.work_through() == ["t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"]
    assert (await work.look()).status is BatchStatus.SUCCESS


async def test_a_batch_canceled_before_it_started_can_be_gone_on_with(world: World) -> None:
    work = await Batchwork.plan(world, 4, concurrency=2)
    await work.cancel()
    assert await work.retry() == 0
    assert await work.retry(canceled=True) == 4
    assert (await work.look()).started_at is not None
    await work.work_through()
    assert await work.counts() == {"success": 4}


async def test_who_retries_after_too_many_errors_starts_with_a_clean_slate(world: World) -> None:
    work = await Batchwork.start(world, 10, concurrency=2, max_errors=1)
    await work.work_through(failing=("t0", "t1"))
    assert await work.counts() == {"fail": 2, "cancel": 8}
    assert await work.retry(canceled=True) == 10
    await work.work_through(failing=("t0",))
    assert await work.counts() == {"fail": 1, "success": 9}, "one failure is allowed"
    assert await work.retry() == 1
    await work.work_through()


async def test_a_retry_while_it_runs_takes_those_that_are_counted(world: World) -> None:
    work = await Batchwork.start(world, 6, concurrency=3)
    await work.claim()
    await work.end("t0")
    await world.settle(work.session, *work.take(["t1"]), end=End.FAILED, policy=ONCE, error="broken")
    assert await work.retry() == 1, "nobody has heard of the other yet"
    await work.react()
    assert await work.retry() == 1
    await work.finish("t2")
    begun = await work.work_through()
    assert sorted(begun) == ["t0", "t1", "t3", "t4", "t5"]
    assert await work.counts() == {"success": 6}


async def test_what_a_failed_try_may_have_done_is_not_forgotten_by_the_next(world: World) -> None:
    work = await Batchwork.start(world, 3, concurrency=3)
    await work.work_through(failing=("t0", "t1", "t2"))
    await work.retry()
    await work.claim()
    await work.already("t0")  # as wanted: by the hand of the failed try, perhaps
    await work.end("t1", effect=Effect.NONE)
    await work.finish("t2")
    assert await work.effects() == {"t0": "unknown", "t1": "unknown", "t2": "applied"}
    await work.roll_back()
    assert sorted(await work.work_through()) == ["t0", "t1", "t2"]


async def test_a_retry_knows_what_the_target_was_before_the_first_try(world: World) -> None:
    work = await Batchwork.start(world, 1)
    await work.claim()
    run = work.held["t0"]
    await work.store.batches.images.keep_image(run.id, run.attempt, {"to": 42})
    await work.end("t0")
    await work.retry()
    await work.claim()
    run = work.held["t0"]
    assert decode(run.payload)["image"] == {"to": 42}
    assert await work.store.batches.images.keep_image(run.id, run.attempt, {"to": 43}) == {"to": 42}, (
        "the first one stands"
    )
    await work.finish("t0")
    assert [t.image for t in await work.targets()] == [{"to": 42}]


async def test_what_was_undone_is_not_tried_again(world: World) -> None:
    work = await Batchwork.start(world, 3, concurrency=3)
    await work.work_through(failing=("t0",))
    await work.roll_back("t0")
    await work.work_through()
    assert await work.retry(canceled=True) == 0
    assert await work.counts() == {"success": 2, "rollback_success": 1}


# --- what a handler keeps


async def test_an_attempt_that_lost_its_run_keeps_no_image(world: World) -> None:
    session = await world.session("mayfly", ttl=30)
    work = await Batchwork.start(world, 1, session=session, retry=RetryPolicy(max_attempts=3))
    await work.claim()
    (late,) = work.take(["t0"])
    await world.clock.tick(31)
    await work.store.recovery.recover()
    with pytest.raises(LeaseLost, match=f"attempt 1 of run {late.id} is over: it must touch nothing"):
        await work.store.batches.images.keep_image(late.id, late.attempt, {"to": 42})
    work.session = await world.session("another", ttl=3600)
    await work.claim()
    with pytest.raises(LeaseLost):
        await work.store.batches.images.keep_image(late.id, late.attempt, {"to": 42})
    run = work.held["t0"]
    assert await work.store.batches.images.image_of(run.id) is None
    await work.store.batches.images.keep_image(run.id, run.attempt, {"to": 1})
    assert await work.store.batches.images.image_of(run.id) == {"to": 1}
    await work.finish("t0")
    with pytest.raises(LeaseLost):
        await work.store.batches.images.keep_image(run.id, run.attempt, {"to": 2})
