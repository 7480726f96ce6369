"""Applying a batch: so many at once, first the canary, then more and more; it ends by itself."""

from __future__ import annotations

import pytest

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.batches.store import moving
from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store import run_writer
from fusee.engine.store.contract import Order
from fusee.engine.store.tables import outbox
from fusee.errors import Conflict, NotFound
from tests.store.batchwork import Batchwork
from tests.store.harness import World, finished_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_batch_is_applied_from_its_first_target_to_its_last(world: World) -> None:
    work = await Batchwork.start(world, 20, concurrency=3)
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.APPLYING, BatchStatus.PENDING), "nobody took one yet"
    assert batch.started_at == await world.clock.now()
    await world.clock.tick(7)
    assert await work.work_through() == [f"t{nr}" for nr in range(20)]
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.SUCCESS)
    assert await work.counts() == {"success": 20}
    assert batch.finished_at == await world.clock.now()
    assert await work.recounted()
    assert set((await work.effects()).values()) == {"applied"}
    assert await world.rows(outbox) == []


async def test_also_when_others_draw_numbers_at_the_same_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where runs are numbered by a sequence, those of a portion may not be in a row."""
    monkeypatch.setattr(run_writer, "_DRAW", "SELECT 1, 1 + :count")
    work = await Batchwork.start(world, 20, concurrency=3)
    assert await work.work_through() == [f"t{nr}" for nr in range(20)]
    assert await work.recounted()


async def test_never_more_at_once_than_allowed_and_never_fewer(world: World) -> None:
    work = await Batchwork.start(world, 12, concurrency=4)
    assert await work.claim() == ["t0", "t1", "t2", "t3"]
    assert await work.claim() == []
    for nr in range(9):
        await work.finish(f"t{nr}")
        under_way = min(4, 11 - nr)
        assert (await work.counts()).get("running", 0) == under_way
        await work.claim()
        assert len(work.held) == under_way
    await work.finish("t9", "t10", "t11")
    assert (await work.look()).phase is BatchPhase.DONE


async def test_a_target_stands_where_its_run_does(world: World) -> None:
    twice = RetryPolicy(max_attempts=2, base=10, jitter=0)
    work = await Batchwork.start(world, 3, concurrency=2, retry=twice)
    assert await work.statuses() == {"t0": "pending", "t1": "pending", "t2": "pending"}
    await work.claim(1)
    assert await work.statuses() == {"t0": "running", "t1": "pending", "t2": "pending"}
    await work.end("t0", end=End.TIMED_OUT, policy=twice)
    assert await work.statuses() == {"t0": "retry_pending", "t1": "pending", "t2": "pending"}
    assert await work.counts() == {"running": 2, "pending": 1}, "its place is taken until it has ended"
    await world.clock.tick(10)
    assert sorted(await work.claim()) == ["t0", "t1"]
    await work.finish("t0", "t1")
    assert await work.statuses() == {"t0": "success", "t1": "success", "t2": "pending"}
    await work.work_through()


async def test_targets_are_listed_by_where_they_stand(world: World) -> None:
    work = await Batchwork.start(world, 1200, concurrency=700)
    await work.claim(600)
    await work.finish(*(f"t{nr}" for nr in range(0, 600, 2)))

    async def listed(**wanted: object) -> list[str]:
        return [
            t.target_id for t in await work.store.batches.queries.batch_tasks(work.id, TargetFilter(**wanted))
        ]  # type: ignore[arg-type]

    assert await listed(status=[BatchStatus.SUCCESS], limit=3) == ["t0", "t2", "t4"]
    assert await listed(status=[BatchStatus.RUNNING], after=596, limit=5) == ["t597", "t599"]
    assert len(await listed(status=[BatchStatus.PENDING], limit=1000)) == 600
    assert await listed(after=1197) == ["t1198", "t1199"]
    await work.cancel()
    assert await listed(status=[BatchStatus.CANCEL], limit=2) == ["t600", "t601"]
    await work.finish(*work.held)


async def test_started_twice_nothing_changes(world: World) -> None:
    work = await Batchwork.start(world, 6, concurrency=2)
    first = await work.look()
    assert await work.store.batches.commands.apply_batch(work.id) == first
    assert await work.claim() == ["t0", "t1"]
    await work.finish("t0", "t1")
    await work.work_through()
    with pytest.raises(Conflict, match="is done: retry its failed targets, or roll it back"):
        await work.store.batches.commands.apply_batch(work.id)


async def test_whoever_saw_an_older_version_is_told(world: World) -> None:
    work = await Batchwork.plan(world, 3)
    with pytest.raises(Conflict, match="is at version 1, not 7: look at it again"):
        await work.store.batches.commands.apply_batch(work.id, 7)
    applied = await work.store.batches.commands.apply_batch(work.id, 1)
    assert applied.version == 2
    for ask in (
        work.store.batches.commands.cancel_batch(work.id, "?", 1),
        work.store.batches.commands.retry_batch(work.id, version=1),
        work.store.batches.commands.roll_back_batch(work.id, version=1),
    ):
        with pytest.raises(Conflict, match="is at version 2, not 1"):
            await ask
    await work.claim()
    await work.finish("t0")
    assert (await work.look()).version == 2, "what happens by itself is no edit"
    await work.store.batches.commands.cancel_batch(work.id, "enough", 2)
    await work.finish("t1", "t2")


async def test_what_is_done_needs_no_work(world: World) -> None:
    work = await Batchwork.start(world, 3)
    await work.claim()
    await work.already("t0", "t1")
    await work.finish("t2")
    assert await work.counts() == {"success": 3}
    assert await work.effects() == {"t0": "none", "t1": "none", "t2": "applied"}


async def test_a_failure_is_told_with_its_reason(world: World) -> None:
    work = await Batchwork.start(world, 3)
    await work.claim()
    await work.end("t1")
    await work.finish("t0", "t2")
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.PARTIAL_FAIL)
    assert [(t.target_id, t.info) for t in await work.targets() if t.info] == [("t1", "broken")]
    assert (await work.effects())["t1"] == "unknown"


async def test_a_batch_all_of_whose_targets_fail(world: World) -> None:
    work = await Batchwork.start(world, 3)
    await work.work_through(failing=("t0", "t1", "t2"))
    assert (await work.look()).status is BatchStatus.FAIL


# --- canary and ramp


async def test_the_canary_goes_first_and_the_others_wait_for_its_end(world: World) -> None:
    work = await Batchwork.start(world, 30, concurrency=10, canary=3, ramp=1)
    assert await work.claim() == ["t0", "t1", "t2"]
    await work.finish("t0", "t2")
    assert await work.claim() == []
    await work.finish("t1")
    assert len(await work.claim()) == 10
    await work.finish(*work.held)
    await work.work_through()


async def test_the_ramp_doubles_with_each_round_that_ended_well(world: World) -> None:
    work = await Batchwork.start(world, 100, concurrency=20, canary=2, ramp=2)
    rounds = []
    while names := await work.claim():
        rounds.append(len(names))
        await work.finish(*names)
    assert rounds == [2, 4, 8, 16, 20, 20, 20, 10]
    assert (await work.look()).window == 20


async def test_a_round_that_did_not_end_well_widens_nothing(world: World) -> None:
    work = await Batchwork.start(world, 60, concurrency=50, canary=2, ramp=3)
    await work.claim()
    await work.finish("t0", "t1")
    assert len(await work.claim()) == 6
    await work.end(*work.held)
    assert len(await work.claim()) == 6
    await work.finish(*work.held)
    assert len(await work.claim()) == 18
    await work.finish(*work.held)
    await work.work_through()


async def test_a_ramp_without_a_cap_goes_on_by_itself(world: World) -> None:
    work = await Batchwork.start(world, 200, concurrency=0, canary=3, ramp=2)
    rounds = []
    while names := await work.claim():
        rounds.append(len(names))
        await work.finish(*names)
    assert rounds == [3, 6, 12, 24, 48, 96, 11]


async def test_a_canary_larger_than_the_cap_keeps_to_the_cap(world: World) -> None:
    work = await Batchwork.start(world, 30, concurrency=4, canary=10)
    assert await work.claim() == ["t0", "t1", "t2", "t3"]
    begun = ["t0", "t1", "t2", "t3"]
    await work.finish("t0", "t1", "t2", "t3")
    while names := await work.claim():
        assert len(names) <= 4
        begun += names
        await work.finish(*names)
    assert begun == [f"t{nr}" for nr in range(30)]


async def test_a_canary_larger_than_the_batch_is_the_batch(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=0, canary=100)
    assert len(await work.claim()) == 5
    await work.finish(*work.held)
    assert (await work.look()).phase is BatchPhase.DONE


async def test_without_a_cap_many_start_at_once_and_a_few_ends_start_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PORTION", 50)
    monkeypatch.setattr(moving, "WITHOUT_CAP", 200)
    work = await Batchwork.start(world, 210, concurrency=0)
    assert (await work.counts())["running"] == 50
    for _ in range(3):
        await work.store.batches.commands.wake_batch(work.id)
        await work.store.aggregation.aggregate()
    assert (await work.counts())["running"] == 200
    await work.claim(20)
    finished = finished_of(work.take(list(work.held)[:9]))
    await work.store.claims.exchange(work.session, finished, Order())
    await work.store.aggregation.aggregate()
    assert await work.counts() == {"pending": 10, "running": 191, "success": 9}
    await work.finish(next(iter(work.held)))
    assert "pending" not in await work.counts()
    await work.cancel()
    await work.finish(*work.held)


# --- too many errors


async def test_more_errors_than_allowed_stop_it(world: World) -> None:
    work = await Batchwork.start(world, 50, concurrency=5, max_errors=2)
    await work.claim()
    await work.end("t0", "t1")
    assert (await work.look()).phase is BatchPhase.APPLYING
    await work.claim()
    await work.end("t2")
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.STOPPING, BatchStatus.RUNNING)
    assert batch.reason == "max_errors 2: 3 of 50 failed"
    assert await work.claim() == [], "no further target starts"
    await work.finish("t3", "t4", "t5")
    await work.end("t6")
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.PARTIAL_FAIL)
    assert await work.counts() == {"success": 3, "fail": 4, "cancel": 43}
    assert await work.recounted()


async def test_what_waits_for_a_worker_when_it_is_stopped_does_not_start(world: World) -> None:
    work = await Batchwork.start(world, 50, concurrency=10, max_errors=0)
    assert await work.claim(2) == ["t0", "t1"]
    await work.end("t0")
    assert await work.claim() == []
    assert await work.counts() == {"running": 1, "fail": 1, "cancel": 48}
    await work.finish("t1")
    statuses = await work.statuses()
    assert [statuses[name] for name in ("t0", "t1", "t2", "t30")] == ["fail", "success", "cancel", "cancel"]


@pytest.mark.parametrize(("share", "total", "stops_at"), [(0.1, 20, 3), (0.02, 10, 1), (0.5, 4, 3)])
async def test_errors_as_a_share_of_all_targets(
    world: World, share: float, total: int, stops_at: int
) -> None:
    work = await Batchwork.start(world, total, concurrency=1, max_errors=share)
    for failures in range(1, stops_at + 1):
        assert (await work.look()).phase is BatchPhase.APPLYING
        (name,) = await work.claim()
        await work.end(name)
        assert (await work.look()).counts[BatchStatus.FAIL] == failures
    batch = await work.look()
    assert batch.phase is BatchPhase.DONE
    assert batch.counts[BatchStatus.CANCEL] == total - stops_at


async def test_cancels_are_no_errors(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=2, max_errors=0)
    await work.claim()
    await work.end("t0", end=End.CANCELED, effect=Effect.NONE)
    assert (await work.look()).phase is BatchPhase.APPLYING
    await work.finish("t1")
    await work.work_through()
    assert await work.counts() == {"success": 3, "cancel": 1}


async def test_no_further_attempt_in_a_batch_that_was_stopped(world: World) -> None:
    often = RetryPolicy(max_attempts=9, base=1, jitter=0)
    work = await Batchwork.start(world, 9, concurrency=3, max_errors=0, retry=often)
    await work.claim()
    await work.end("t0", end=End.ABANDONED)
    assert (await work.look()).phase is BatchPhase.STOPPING
    await work.end("t1", end=End.TIMED_OUT, policy=often)
    await work.end("t2", end=End.RETURNED, effect=Effect.NONE, policy=often)
    await world.clock.tick(60)
    assert await work.claim() == []
    assert (await work.look()).phase is BatchPhase.DONE
    effects = await work.effects()
    assert (effects["t1"], effects["t2"]) == ("unknown", "none")
    told = {t.target_id: t.info or "" for t in await work.targets()}
    assert "not tried again, its batch was stopped: max_errors 0" in (await _reason(work, "t1"))
    assert told["t1"] == "broken"


async def _reason(work: Batchwork, name: str) -> str:
    (target,) = [target for target in await work.targets() if target.target_id == name]
    assert target.run_id is not None
    return str((await work.world.run(target.run_id)).reason)


# --- cancel


async def test_a_canceled_batch_starts_nothing_and_what_runs_keeps_its_outcome(world: World) -> None:
    work = await Batchwork.start(world, 20, concurrency=6)
    await work.claim(4)
    batch = await work.cancel("wrong zone")
    assert (batch.phase, batch.reason) == (BatchPhase.STOPPING, "wrong zone")
    assert await work.claim() == []
    await work.finish("t0", "t1")
    await work.end("t2")
    assert (await work.look()).phase is BatchPhase.STOPPING
    await work.already("t3")
    batch = await work.look()
    assert (batch.phase, batch.status) == (BatchPhase.DONE, BatchStatus.PARTIAL_FAIL)
    assert await work.counts() == {"success": 3, "fail": 1, "cancel": 16}


async def test_a_batch_canceled_before_it_started(world: World) -> None:
    work = await Batchwork.plan(world, 5)
    await work.cancel()
    batch = await work.look()
    assert (batch.phase, batch.status, batch.started_at) == (BatchPhase.DONE, BatchStatus.CANCEL, None)
    with pytest.raises(Conflict, match="there is nothing to cancel"):
        await work.store.batches.commands.cancel_batch(work.id, "again")
    with pytest.raises(Conflict, match="is done"):
        await work.store.batches.commands.apply_batch(work.id)


async def test_canceled_twice_is_canceled(world: World) -> None:
    work = await Batchwork.start(world, 5, concurrency=2)
    await work.claim(1)
    await work.cancel("first")
    batch = await work.cancel("second")
    assert (batch.phase, batch.reason) == (BatchPhase.STOPPING, "first")
    await work.finish("t0")
    assert await work.counts() == {"success": 1, "cancel": 4}


async def test_one_target_canceled_by_its_run_makes_room_for_the_next(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=2)
    runs = {target.target_id: target.run_id for target in await work.targets()}
    assert runs["t0"] is not None
    await work.store.runs.cancel(runs["t0"], "not this one")
    await work.react()
    assert await work.claim() == ["t1", "t2"]
    await work.finish("t1", "t2")
    await work.work_through()
    assert await work.counts() == {"success": 3, "cancel": 1}
    assert {t.target_id: t.info for t in await work.targets()}["t0"] == "not this one"


# --- isolation


async def test_a_tenant_sees_its_own_batches_only(world: World) -> None:
    work = await Batchwork.plan(world, 2)
    other = work.store.for_namespace("other")
    for ask in (
        other.batches.queries.batch(work.id),
        other.batches.commands.apply_batch(work.id),
        other.batches.commands.cancel_batch(work.id, "?"),
        other.batches.commands.retry_batch(work.id),
        other.batches.commands.roll_back_batch(work.id),
        other.batches.queries.batch_tasks(work.id, TargetFilter()),
        other.batches.queries.recount_batch(work.id),
    ):
        with pytest.raises(NotFound, match="in namespace 'other'"):
            await ask
    assert await other.batches.queries.batches(BatchFilter()) == []


async def test_two_batches_of_one_operation_do_not_touch_each_other(world: World) -> None:
    one = await Batchwork.start(world, 8, concurrency=3)
    two = await Batchwork.start(world, 8, concurrency=3)
    await one.cancel("this one")
    assert await two.counts() == {"running": 3, "pending": 5}
    assert await one.counts() == {"cancel": 8}
    assert await two.claim() == ["t0", "t1", "t2"]
    await two.finish("t0", "t1", "t2")
    await two.work_through()
    assert await two.counts() == {"success": 8}


async def test_a_batch_runs_in_its_region_and_queue(world: World) -> None:
    work = await Batchwork.start(world, 2, region="sg", queue="ops", priority=7)
    (lane,) = await world.lane_ids(region="sg", queue="ops", handler="batch.dial.turn")
    assert await world.lane_ids(region="") == []
    claimed = await world.claim(work.session, lanes=[lane])
    assert [run.owner_id for run in claimed] == [work.id, work.id]
    assert {(await world.run(run.id)).priority for run in claimed} == {7}
    await world.finish(work.session, *claimed)
    await work.react()
    assert (await work.look()).status is BatchStatus.SUCCESS


# --- outcomes that come twice, or late


@pytest.mark.parametrize("result", [None, '{"seen":1}'])
async def test_the_same_successes_handed_in_twice_count_once(world: World, result: str | None) -> None:
    work = await Batchwork.start(world, 10, concurrency=4)
    await work.claim()
    claimed = work.take(["t0", "t1", "t2"])
    for _ in range(2):  # the answer to the first was lost on its way
        assert await world.finish(work.session, *claimed, result=result) == []
    await work.react()
    assert await work.counts() == {"success": 3, "running": 4, "pending": 3}
    assert await world.finish(work.session, *claimed, result=result) == []
    await work.react()
    assert await work.counts() == {"success": 3, "running": 4, "pending": 3}
    await work.finish("t3")
    await work.work_through()
    assert await work.recounted()


async def test_the_same_failures_told_twice_count_once(world: World) -> None:
    work = await Batchwork.start(world, 10, concurrency=4)
    await work.claim()
    claimed = work.take(["t0", "t1"])
    for _ in range(2):
        await world.settle(work.session, *claimed, end=End.FAILED, policy=RetryPolicy(max_attempts=1))
        await work.react()
        assert await work.counts() == {"fail": 2, "running": 4, "pending": 4}
    await work.finish("t2", "t3")
    await work.work_through()


async def test_successes_and_failures_in_one_trip_are_counted_each(world: World) -> None:
    work = await Batchwork.start(world, 6, concurrency=6)
    await work.claim()
    good, bad = work.take(["t0", "t1", "t2"]), work.take(["t3", "t4"])
    await world.settle(work.session, *bad, end=End.FAILED, policy=RetryPolicy(max_attempts=1))
    await world.finish(work.session, *good)
    await work.check()
    await work.react()
    assert await work.counts() == {"success": 3, "fail": 2, "running": 1}
    await work.finish("t5")


async def test_a_success_that_comes_after_its_run_was_lost_counts_for_nothing(world: World) -> None:
    once = RetryPolicy(max_attempts=1)
    session = await world.session("mayfly", ttl=30)
    work = await Batchwork.start(world, 2, session=session, retry=once)
    await work.claim()
    late = work.take(["t0", "t1"])
    await world.clock.tick(31)
    assert (await work.store.recovery.recover()).failed == 2
    assert sorted(await world.finish(session, *late)) == sorted((run.id, run.attempt) for run in late)
    await work.react()
    assert await work.counts() == {"fail": 2}
    assert set((await work.effects()).values()) == {"unknown"}


async def test_a_lost_worker_costs_an_attempt_and_no_target(world: World) -> None:
    twice = RetryPolicy(max_attempts=2)
    session = await world.session("mayfly", ttl=30)
    work = await Batchwork.start(world, 3, session=session, concurrency=3, retry=twice)
    await work.claim(2)
    late = work.take(["t0", "t1"])
    await world.clock.tick(31)
    assert (await work.store.recovery.recover()).requeued == 2
    await work.check()
    assert await work.statuses() == {"t0": "retry_pending", "t1": "retry_pending", "t2": "pending"}
    assert await work.counts() == {"running": 3}
    work.session = await world.session("another", ttl=3600)
    assert sorted(await work.claim()) == ["t0", "t1", "t2"]
    assert len(await world.finish(session, *late)) == 2, "the fence refuses what the lost worker says"
    await work.already("t0")
    await work.finish("t1", "t2")
    assert await work.counts() == {"success": 3}
    assert await work.effects() == {"t0": "unknown", "t1": "applied", "t2": "applied"}, (
        "the lost attempt may have touched t0, though the next one found it as wanted"
    )


async def test_a_lost_worker_in_a_stopped_batch_is_not_replaced(world: World) -> None:
    session = await world.session("mayfly", ttl=30)
    work = await Batchwork.start(world, 3, session=session, concurrency=3, retry=RetryPolicy(max_attempts=5))
    await work.claim(1)
    await work.cancel()
    await world.clock.tick(31)
    await work.store.recovery.recover()
    await work.react()
    assert (await work.look()).phase is BatchPhase.DONE
    assert await work.counts() == {"cancel": 3}
    assert (await work.effects())["t0"] == "unknown"


async def test_a_wake_up_for_a_batch_with_nothing_to_do_changes_nothing(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=2)
    before = await work.look()
    await world.clock.tick(1)
    await work.store.batches.commands.wake_batch(work.id)
    await work.react()
    after = await work.look()
    assert (after.counts, after.phase, after.version) == (before.counts, before.phase, before.version)
    await work.work_through()
    done = await work.look()
    await world.clock.tick(1)
    await work.store.batches.commands.wake_batch(work.id)
    await work.react()
    assert (await work.look()).finished_at == done.finished_at
