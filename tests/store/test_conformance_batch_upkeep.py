"""Old batches are forgotten whole; what is needed to undo a batch is kept for as long as it can be undone."""

from __future__ import annotations

import pytest

from fusee.batches.model.batch import BatchPhase
from fusee.batches.store.retention import Sweep
from fusee.batches.store.tables import batch_tasks, batches
from fusee.config.sections.processes import DispatcherConfig
from fusee.engine.dispatcher import Prune
from fusee.engine.model.outcome import Effect
from fusee.engine.store.request_keys import KeyedRequest
from fusee.engine.store.tables import attempts, request_keys, runs
from fusee.errors import NotFound
from fusee.events import Bus
from tests.store.batchwork import Batchwork, batch_spec, targets
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

DAY = 86400.0


async def _prune(world: World, older_than: float = DAY) -> None:
    """All that a dispatcher does, until there is nothing to do."""
    cursor = 0
    await world.store.batches.retention.forget_batches(older_than)
    while True:
        pruned = await world.store.retention.prune(older_than, cursor, 100)
        cursor = pruned.cursor
        if await world.store.batches.retention.sweep_batches():
            continue
        if not pruned:
            return


async def _counts(world: World) -> tuple[int, int, int]:
    return tuple([len(await world.rows(table)) for table in (batches, batch_tasks, runs)])  # type: ignore[return-value]


async def test_a_batch_is_forgotten_with_its_targets_and_runs(world: World) -> None:
    work = await Batchwork.start(world, 30, concurrency=10)
    await work.work_through(failing=("t3", "t4"))
    await work.retry()
    await work.work_through()
    await work.roll_back("t3", "t7")
    await work.work_through()
    assert await _counts(world) == (1, 30, 34)
    await world.clock.tick(DAY - 1)
    await _prune(world)
    assert await _counts(world) == (1, 30, 34)
    await world.clock.tick(2)
    await _prune(world)
    assert await _counts(world) == (0, 0, 0)
    assert await world.rows(attempts) == []
    with pytest.raises(NotFound):
        await work.look()


async def test_a_batch_that_is_not_done_is_kept_however_old(world: World) -> None:
    planned = await Batchwork.plan(world, 3, session=1)
    work = await Batchwork.start(world, 6, concurrency=2)
    await work.finish(*await work.claim())
    await work.claim()
    await world.clock.tick(10 * DAY)
    await _prune(world)
    assert (await planned.look()).phase is BatchPhase.PLANNED
    assert await work.counts() == {"success": 2, "running": 2, "pending": 2}
    assert set((await work.statuses()).values()) == {"success", "running", "pending"}
    await work.finish("t2", "t3")
    await work.work_through()


async def test_the_runs_of_a_batch_are_kept_for_as_long_as_it_can_be_rolled_back(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=1)
    await work.claim()
    await work.already("t0")
    await work.claim()
    await work.finish("t1")
    await world.clock.tick(30 * DAY)  # the last two take their time
    await work.claim()
    await work.finish("t2")
    await work.claim()
    await work.end("t3", effect=Effect.UNKNOWN)
    await _prune(world)
    assert await work.recounted()
    await work.roll_back()
    assert await work.work_through() == ["t3", "t2", "t1"], "t1 was applied a month ago"


async def test_other_runs_go_when_they_are_old(world: World) -> None:
    session = await world.session(ttl=10 * DAY)
    plain = await world.enqueue_and_claim(session)
    await world.finish(session, plain)
    work = await Batchwork.start(world, 3, session=session)
    await work.work_through()
    await world.clock.tick(2 * DAY)
    await work.roll_back()  # its end is new, its runs are old
    await work.work_through()
    await _prune(world)
    with pytest.raises(NotFound):
        await world.run(plain.id)
    assert await _counts(world) == (1, 3, 6)


async def test_a_large_batch_is_forgotten_bit_by_bit_and_at_once_for_those_who_look(world: World) -> None:
    work = await Batchwork.plan(world, 11_000)
    await work.store.batches.commands.cancel_batch(work.id, "not needed")
    await world.clock.tick(2 * DAY)
    assert await world.store.batches.retention.forget_batches(DAY) == 1
    with pytest.raises(NotFound):
        await work.look()
    left = []
    while await world.store.batches.retention.sweep_batches():
        left.append(len(await world.rows(batch_tasks)))
    assert left == [6000, 1000, 0]


async def test_the_sweep_is_a_loop_of_the_dispatcher(world: World) -> None:
    sweep = Sweep(world.store.batches.retention, Bus())
    assert not await sweep.run_once()
    batch_id, _ = await world.store.batches.intake.open_batch(batch_spec())
    await world.store.batches.intake.add_targets(batch_id, 0, targets(3))
    await world.clock.tick(3601)
    assert await sweep.run_once()
    assert not await sweep.run_once()
    assert await _counts(world) == (0, 0, 0)


class Pruning:
    """A dispatcher's loop with the default settings, until there is nothing to do."""

    def __init__(self, world: World, **settings: float) -> None:
        defaults = DispatcherConfig()
        kept = settings.get("batch_retention", defaults.batch_retention)
        self.loop = Prune(
            world.store,
            Bus(),
            batch=100,
            retention=settings.get("retention", defaults.retention),
            forget_others=lambda: world.store.batches.retention.forget_batches(kept),
        )
        self.store = world.store

    async def run(self) -> None:
        while await self.loop.run_once() or await self.store.batches.retention.sweep_batches():
            pass


async def test_a_batch_can_be_rolled_back_long_after_other_runs_are_pruned(world: World) -> None:
    session = await world.session(ttl=400 * DAY)
    plain = await world.enqueue_and_claim(session)
    await world.finish(session, plain)
    work = await Batchwork.start(world, 3, session=session)
    await work.work_through()
    ended = (await work.look()).finished_at
    assert ended is not None
    pruning = Pruning(world)
    await pruning.run()
    assert (await work.look()).kept_until == ended + round(90 * DAY * 1_000_000)
    await world.clock.tick(89 * DAY)
    await pruning.run()
    with pytest.raises(NotFound):
        await world.run(plain.id)
    assert (await work.look()).total == 3
    await work.roll_back()
    assert (await work.look()).kept_until is None, "it is under way again"
    assert await work.work_through() == ["t2", "t1", "t0"]
    await world.clock.tick(89 * DAY)
    await pruning.run()
    assert (await work.look()).total == 3, "counted from its new end"
    await world.clock.tick(2 * DAY)
    await pruning.run()
    with pytest.raises(NotFound):
        await work.look()
    assert await _counts(world) == (0, 0, 0)


@pytest.mark.parametrize("retention", [0, 7 * DAY])
async def test_keys_of_requests_are_deleted_also_where_runs_are_kept_forever(
    world: World, retention: float
) -> None:
    work = await Batchwork.start(world, 1, session=await world.session(ttl=400 * DAY))
    await work.claim()
    await work.end("t0")

    async def retry() -> int:
        request = KeyedRequest.of("k", "batch retry", {"batch": work.id})
        return (await work.store.batches.commands.retry_batch(work.id, request=request))[1]

    assert await retry() == 1
    pruning = Pruning(world, retention=retention)
    await world.clock.tick(6 * DAY)
    await pruning.run()
    assert len(await world.rows(request_keys)) == 1
    assert await retry() == 1, "the answer of then: nothing is tried again"
    assert await work.counts() == {"running": 1}
    await world.clock.tick(2 * DAY)
    await pruning.run()
    assert await world.rows(request_keys) == []
    assert (await work.look()).total == 1


@pytest.mark.parametrize("retention", [0, 7 * DAY])
async def test_batches_are_kept_forever_where_that_is_asked_for(world: World, retention: float) -> None:
    work = await Batchwork.start(world, 1)
    await work.work_through()
    await Pruning(world, retention=retention).run()
    assert (await work.look()).kept_until is not None
    await world.clock.tick(1000 * DAY)
    await Pruning(world, retention=retention, batch_retention=0).run()
    assert (await work.look()).kept_until is None
    await Pruning(world, retention=0).run()
    with pytest.raises(NotFound):
        await work.look()
