"""Runs that start a batch and wait for its end: neither outlives the other unnoticed."""

from __future__ import annotations

import pytest

from fusee.batches.model.batch import BatchPhase
from fusee.batches.store.tables import batch_tasks, batches
from fusee.engine.model.outcome import End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.store.parents import ParentRun
from fusee.engine.store.tables import outbox, tickets
from fusee.errors import LeaseLost
from tests.store.batchwork import ONCE, Batchwork, batch_spec, targets
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

TWICE = RetryPolicy(max_attempts=2)


class Asking:
    """A run whose attempt has started a batch of three targets."""

    def __init__(self, claimed: Claimed, work: Batchwork) -> None:
        self.claimed = claimed
        self.work = work
        self.world = work.world

    @property
    def parent(self) -> ParentRun:
        return ParentRun(self.claimed.id, self.claimed.attempt)

    @classmethod
    async def begin(cls, world: World, *, session: int | None = None) -> Asking:
        session = session or await world.session(ttl=36_000)
        claimed = await world.enqueue_and_claim(session, handler="fusee.batch", retry=TWICE)
        batch_id, new = await world.store.batches.intake.open_batch(
            batch_spec(), parent=ParentRun(claimed.id, claimed.attempt)
        )
        assert new
        return cls(claimed, Batchwork(world, session, world.store, batch_id))

    async def upload(self) -> None:
        await self.world.store.batches.intake.add_targets(self.work.id, 0, targets(3))
        await self.world.store.batches.intake.seal_batch(self.work.id, 3)

    @classmethod
    async def apply(cls, world: World, *, session: int | None = None) -> Asking:
        asking = await cls.begin(world, session=session)
        await asking.upload()
        await world.store.batches.commands.apply_batch(asking.work.id, parent=asking.parent)
        return asking

    async def wait(self) -> None:
        await self.world.settle(self.work.session, self.claimed, end=End.ACCEPTED)
        await self.work.react()

    async def status(self) -> str:
        return str((await self.world.run(self.claimed.id)).status)


async def _notices(world: World) -> list[tuple[str, int]]:
    return [(row.kind, row.run_id) for row in await world.rows(outbox)]


async def test_a_run_waits_for_the_batch_it_started_and_ends_with_it(world: World) -> None:
    asking = await Asking.apply(world)
    await asking.wait()
    run = await world.run(asking.claimed.id)
    assert (run.status, run.reason) == ("waiting", f"waits for batch {asking.work.id}")
    await asking.work.work_through()
    run = await world.run(asking.claimed.id)
    assert (run.status, run.effect) == ("succeeded", "applied")
    assert run.result == {"batch_id": asking.work.id, "status": "success"}
    assert await _notices(world) == []


async def test_a_batch_that_failed_fails_the_run_for_good(world: World) -> None:
    asking = await Asking.apply(world)
    await asking.wait()
    await asking.work.work_through(failing=("t1",))
    run = await world.run(asking.claimed.id)
    assert (run.status, run.reason) == ("failed", f"batch {asking.work.id} ended partial_fail")
    assert run.error == f"batch {asking.work.id} ended partial_fail"
    assert run.result == {"batch_id": asking.work.id, "status": "partial_fail"}


async def test_a_batch_that_is_canceled_cancels_the_run(world: World) -> None:
    asking = await Asking.apply(world)
    await asking.wait()
    await asking.work.cancel("wrong zone")
    await asking.work.react()
    run = await world.run(asking.claimed.id)
    assert (run.status, run.error) == ("canceled", f"batch {asking.work.id} was canceled: wrong zone")


async def test_a_batch_that_ends_first_is_noticed_when_the_run_waits(world: World) -> None:
    asking = await Asking.apply(world)
    await asking.work.work_through()
    assert await asking.status() == "running"
    assert ("parent", asking.claimed.id) in await _notices(world)  # looked at again, and not in a circle
    await asking.wait()
    assert await asking.status() == "succeeded"
    assert await _notices(world) == []


async def test_canceling_the_run_cancels_the_batch(world: World) -> None:
    asking = await Asking.apply(world)
    await asking.wait()
    await asking.work.claim(1)
    await world.store.runs.cancel(asking.claimed.id, "not today")
    await asking.work.react()
    batch = await asking.work.look()
    assert batch.phase is BatchPhase.STOPPING
    assert batch.reason == f"run {asking.claimed.id}, which started it, ended canceled"
    assert await asking.work.claim() == []
    await asking.work.finish("t0")
    assert await asking.work.counts() == {"success": 1, "cancel": 2}
    assert await asking.status() == "canceled"


async def test_a_run_canceled_while_its_attempt_still_uploads_leaves_nothing(world: World) -> None:
    asking = await Asking.begin(world)
    await world.store.batches.intake.add_targets(asking.work.id, 0, targets(2))
    await world.store.runs.cancel(asking.claimed.id, "not today")
    with pytest.raises(LeaseLost, match="is over, or was told to stop: it starts nothing"):
        await world.store.batches.intake.open_batch(batch_spec(), parent=asking.parent)
    await world.settle(asking.work.session, asking.claimed, end=End.CANCELED)
    await asking.work.react()
    assert await world.rows(batches) == []
    assert await world.rows(batch_tasks) == []


async def test_a_run_that_ended_before_it_applied_its_batch_cancels_it(world: World) -> None:
    asking = await Asking.begin(world)
    await asking.upload()
    await world.settle(asking.work.session, asking.claimed, end=End.ABANDONED, policy=ONCE)
    await asking.work.react()
    assert await asking.work.counts() == {"cancel": 3}
    with pytest.raises(LeaseLost, match="it starts nothing"):
        await world.store.batches.commands.apply_batch(asking.work.id, parent=asking.parent)


async def test_the_next_attempt_goes_on_with_the_same_batch(world: World) -> None:
    session = await world.session("mayfly", ttl=30)
    asking = await Asking.apply(world, session=session)
    await world.clock.tick(31)
    await world.store.recovery.recover()
    await asking.work.react()
    assert (await asking.work.look()).phase is BatchPhase.APPLYING, "its run is tried again"
    asking.work.session = await world.session("another", ttl=36_000)
    claimed = await world.claim(asking.work.session)
    (again,) = [run for run in claimed if run.id == asking.claimed.id]
    asking.work.held |= {f"t{nr}": run for nr, run in enumerate(r for r in claimed if r.kind == "batch")}
    assert await world.store.batches.intake.open_batch(
        batch_spec(), parent=ParentRun(again.id, again.attempt)
    ) == (
        asking.work.id,
        False,
    )
    with pytest.raises(LeaseLost):
        await world.store.batches.intake.open_batch(batch_spec(), parent=asking.parent)
    asking.claimed = again
    await asking.wait()
    await asking.work.finish(*asking.work.held)
    assert await asking.status() == "succeeded"


async def test_the_next_attempt_gives_up_what_the_lost_one_had_not_uploaded(world: World) -> None:
    session = await world.session("mayfly", ttl=30)
    asking = await Asking.begin(world, session=session)
    await world.store.batches.intake.add_targets(asking.work.id, 0, targets(2))
    await world.clock.tick(31)
    await world.store.recovery.recover()
    session = await world.session("another", ttl=36_000)
    again = await world.claim_one(session)
    batch_id, new = await world.store.batches.intake.open_batch(
        batch_spec(), parent=ParentRun(again.id, again.attempt)
    )
    assert new
    assert [row.id for row in await world.rows(batches)] == [batch_id]
    await world.settle(session, again, end=End.ABANDONED)
    await asking.work.react()


async def test_a_waiting_run_leaves_its_place_in_a_queue_with_limits(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    session = await world.session(ttl=36_000)
    await world.enqueue(handler="fusee.batch")
    (claimed,) = await world.claim_limited(session)
    parent = ParentRun(claimed.id, claimed.attempt)
    batch_id, _ = await world.store.batches.intake.open_batch(batch_spec(), parent=parent)
    work = Batchwork(world, session, world.store, batch_id)
    await world.store.batches.intake.add_targets(batch_id, 0, targets(1))
    await world.store.batches.intake.seal_batch(batch_id, 1)
    await world.store.batches.commands.apply_batch(batch_id, parent=parent)
    assert await world.claim_limited(session) == [], "the place is taken"
    await Asking(claimed, work).wait()
    assert await world.rows(tickets) == []
    (target,) = await world.claim_limited(session)
    await world.settle(session, target, end=End.SUCCEEDED)
    await work.react()
    assert await world.statuses([claimed.id]) == ["succeeded"]


async def test_a_retry_by_hand_afterwards_is_no_longer_the_runs_business(world: World) -> None:
    asking = await Asking.apply(world)
    await asking.wait()
    await asking.work.work_through(failing=("t1",))
    assert await asking.status() == "failed"
    await asking.work.retry()
    await asking.work.work_through()
    assert await asking.work.counts() == {"success": 3}
    assert await asking.status() == "failed"
