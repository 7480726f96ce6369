"""Two batches never change one target at the same moment: the second waits for it, or is refused.

The invariant itself is checked after every step (`tests/store/tallies.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.util import await_only

from fusee.batches.model.batch import BatchPhase
from fusee.batches.store.exclusion import Rivals
from fusee.engine.model.outcome import Effect, End
from fusee.engine.store.rows import decode
from fusee.errors import Conflict
from tests.store.batchwork import Batchwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def two(world: World, count: int = 4, other: int | None = None, **fields: object) -> list[Batchwork]:
    """Two batches over the same targets, the first of which is under way."""
    first = await Batchwork.start(world, count)
    second = await Batchwork.plan(world, other or count, session=first.session, **fields)
    return [first, second]


async def mine(work: Batchwork) -> list[str]:
    """What the worker may start now, of this batch; nothing else must be there."""
    names = await work.claim()
    assert all(work.held[name].owner_id == work.id for name in names)
    return names


async def test_the_second_waits_until_the_first_is_done_with_the_target(world: World) -> None:
    first, second = await two(world)
    await second.store.batches.commands.apply_batch(second.id)
    await second.check()
    assert (await second.look()).waits_for == first.id
    assert await second.counts() == {"pending": 4}
    assert {task.info for task in await second.targets()} == {f"waits: batch {first.id} has this target"}
    assert await mine(first) == ["t0", "t1", "t2", "t3"]
    await first.finish("t1", "t2")
    assert await mine(second) == ["t1", "t2"], "one by one, as the first batch is done with them"
    await first.end("t0")
    await first.finish("t3")
    assert await mine(second) == ["t0", "t3"], "also those that failed in the first batch"
    await second.finish("t0", "t1", "t2", "t3")
    assert (await second.look()).phase is BatchPhase.DONE
    assert (await second.look()).waits_for is None
    assert {task.info for task in await second.targets()} == {None}


async def test_targets_that_nobody_else_has_are_not_held_up(world: World) -> None:
    first, second = await two(world, 2, 6)
    await second.store.batches.commands.apply_batch(second.id)
    await second.check()
    await first.claim(2)
    assert await mine(second) == ["t2", "t3", "t4", "t5"]
    await second.finish("t2", "t3", "t4", "t5")
    assert await second.counts() == {"success": 4, "pending": 2}
    await first.finish("t0", "t1")
    assert await second.work_through() == ["t0", "t1"]
    assert await second.recounted()


async def test_who_began_earlier_has_the_target_first_even_when_it_has_not_come_to_it(world: World) -> None:
    first = await Batchwork.start(world, 4, concurrency=1)
    second = await Batchwork.start(world, 4, session=first.session)
    begun = []
    while claimed := await world.claim(first.session):
        begun += [(run.owner_id, decode(run.payload)["target_id"]) for run in claimed]
        await world.finish(first.session, *claimed)
        await first.react()
    for name in ("t0", "t1", "t2", "t3"):
        assert begun.index((first.id, name)) < begun.index((second.id, name))


async def test_a_target_of_another_type_or_namespace_is_another_target(world: World) -> None:
    first = await Batchwork.start(world, 2)
    await Batchwork.start(world, 2, session=first.session, target_type="lamp")
    elsewhere = await world.another("elsewhere")
    await Batchwork.start(world, 2, store=elsewhere)
    assert len(await world.claim(first.session)) == 4
    session = await world.session(store=elsewhere)
    assert len(await world.claim(session, store=elsewhere)) == 2


async def test_another_operation_on_the_same_target_waits(world: World) -> None:
    first, second = await two(world, batch_type="polish")
    await second.store.batches.commands.apply_batch(second.id)
    assert (await second.look()).waits_for == first.id


async def test_a_cancel_of_the_first_lets_the_second_go_on(world: World) -> None:
    first, second = await two(world)
    await second.store.batches.commands.apply_batch(second.id)
    await first.claim(1)
    await first.cancel()
    assert await mine(second) == ["t1", "t2", "t3"], "t0 is still in the hands of the first"
    await first.finish("t0")
    assert await mine(second) == ["t0"]


async def test_the_loss_of_a_worker_frees_nothing_until_the_target_has_ended(world: World) -> None:
    first = await Batchwork.start(world, 1, session=await world.session(ttl=30))
    second = await Batchwork.start(world, 1)
    await first.claim()
    await world.clock.tick(31)
    first.session = second.session
    await first.store.recovery.recover()  # its last attempt is lost: the target has failed
    assert await second.store.batches.queries.batch(second.id)
    await first.react()
    assert await first.counts() == {"fail": 1}
    assert await mine(second) == ["t0"]


async def test_a_retry_waits_for_the_other_batch(world: World) -> None:
    first, second = await two(world)
    await first.claim()
    await first.end("t0", "t1")
    await first.finish("t2", "t3")
    await second.store.batches.commands.apply_batch(second.id)
    assert await mine(second) == ["t0", "t1", "t2", "t3"]
    assert await first.retry() == 2
    assert (await first.look()).waits_for == second.id
    await second.finish("t1")
    assert await mine(first) == ["t1"]
    await second.finish("t0", "t2", "t3")
    assert await mine(first) == ["t0"]
    await first.finish("t0", "t1")
    assert await first.counts() == {"success": 4}


async def test_a_rollback_waits_for_the_other_batch(world: World) -> None:
    first, second = await two(world)
    await first.work_through()
    await second.store.batches.commands.apply_batch(second.id)
    await second.claim()
    await first.roll_back()
    assert (await first.look()).waits_for == second.id
    assert await first.counts() == {"rollback_pending": 4}
    await second.finish("t2")
    assert await mine(first) == ["t2"]
    await second.finish("t0", "t1", "t3")
    assert sorted(await mine(first)) == ["t0", "t1", "t3"]
    await first.finish("t0", "t1", "t2", "t3")
    assert await first.counts() == {"rollback_success": 4}


async def test_a_batch_that_waits_can_be_canceled_and_resumed(world: World) -> None:
    first, second = await two(world)
    await second.store.batches.commands.apply_batch(second.id)
    await second.cancel()
    assert await second.counts() == {"cancel": 4}
    assert (await second.look()).phase is BatchPhase.DONE
    assert set((await second.statuses()).values()) == {"cancel"}
    assert await second.recounted()
    await first.work_through()
    assert await second.retry(canceled=True) == 4
    assert await second.work_through() == ["t0", "t1", "t2", "t3"]
    assert await second.counts() == {"success": 4}


@pytest.mark.parametrize("engine", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("wants", ["its next target", "a retry", "a rollback"])
async def test_a_target_that_becomes_free_while_it_is_looked_at_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, wants: str
) -> None:
    """Workers write the end of a run while another transaction looks at its target, on servers."""
    other = await world.another()
    if wants == "its next target":
        holder, waiting = await two(world, 1)
        await holder.claim()
    else:
        waiting, holder = await two(world, 1)
        await waiting.claim()
        await (waiting.end("t0") if wants == "a retry" else waiting.finish("t0"))
        await holder.store.batches.commands.apply_batch(holder.id)
        await holder.claim()
    (held,) = holder.take(["t0"])
    inner = Rivals.first_conflict

    def freed_before(self: Rivals, *which: Any) -> Any:
        monkeypatch.undo()
        assert not await_only(world.finish(holder.session, held, store=other))
        return inner(self, *which)

    monkeypatch.setattr(Rivals, "first_conflict", freed_before)
    if wants == "its next target":
        await waiting.store.batches.commands.apply_batch(waiting.id)
        await waiting.store.batches.commands.wake_batch(waiting.id)
        assert await waiting.store.aggregation.aggregate()
    elif wants == "a retry":
        await waiting.store.batches.commands.retry_batch(waiting.id)
    else:
        await waiting.store.batches.commands.roll_back_batch(waiting.id)
    assert Rivals.first_conflict is inner, "it was looked at"
    await waiting.react()
    assert await mine(waiting) == ["t0"]
    await waiting.finish("t0")
    assert (await waiting.look()).phase is BatchPhase.DONE


async def test_batches_that_an_older_version_started_do_not_wait_for_each_other(world: World) -> None:
    first = await Batchwork.start(world, 3, concurrency=1)
    second = await Batchwork.plan(world, 3, session=first.session, concurrency=1)
    # Its first target is one that the other batch does not have, so both are under way at once.
    await world.sql(
        f"UPDATE fusee_batch_tasks SET target_id = 't9' WHERE batch_id = {second.id} AND position = 0"
    )
    await second.store.batches.commands.apply_batch(second.id)
    assert await second.counts() == {"running": 1, "pending": 2}
    await world.sql("UPDATE fusee_batches SET entered_at = NULL")  # as an older version leaves it
    while claimed := await world.claim(first.session):
        assert not await world.finish(first.session, *claimed)
        await first.react()
    assert await first.counts() == {"success": 3}
    assert await second.counts() == {"success": 3}, "of two without a time, the lower number goes first"


async def test_a_canary_that_waits_is_still_the_canary(world: World) -> None:
    first, second = await two(world, 2, 6, canary=2)
    await second.store.batches.commands.apply_batch(second.id)
    await first.claim()
    assert await second.counts() == {"pending": 4, "running": 2}
    assert len(first.held) == 2 + 2, "passed over: the next two that are free go first"
    assert sorted(run.owner_id for run in first.held.values()) == [first.id] * 2 + [second.id] * 2


async def test_more_than_can_be_passed_over_wait_in_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusee.batches.store.starts.MOST_PARKED", 3)
    monkeypatch.setattr("fusee.batches.store.starts.LOOK_AHEAD", 2)
    first, second = await two(world, 8, 10)
    await second.store.batches.commands.apply_batch(second.id)
    await second.check()
    await first.claim()
    assert len(first.held) == 8, "the ninth is free, and further than the second looks"
    await first.finish("t0", "t5")
    assert await mine(second) == ["t0"]
    await first.finish("t1", "t2", "t3", "t4", "t6", "t7")
    await second.finish("t0")
    assert sorted(await second.work_through()) == [f"t{nr}" for nr in range(1, 10)]


async def test_a_batch_that_does_not_want_to_wait_is_refused_and_nothing_is_changed(world: World) -> None:
    first, second = await two(world, on_conflict="refuse")
    with pytest.raises(Conflict, match=f"batch {first.id} has target 't.' too, and is not done with it"):
        await second.store.batches.commands.apply_batch(second.id)
    assert (await second.look()).phase is BatchPhase.PLANNED
    await first.claim()
    await first.finish("t0", "t1", "t2")
    with pytest.raises(Conflict, match="target 't3'"):
        await second.store.batches.commands.apply_batch(second.id)
    await first.finish("t3")
    await second.store.batches.commands.apply_batch(second.id)
    assert await second.work_through() == ["t0", "t1", "t2", "t3"]


async def test_its_retry_and_its_rollback_are_refused_as_well(world: World) -> None:
    first, second = await two(world, on_conflict="refuse")
    await first.work_through()
    await second.store.batches.commands.apply_batch(second.id)
    await second.claim()
    await second.end("t0")
    await second.finish("t1", "t2", "t3")
    third = await Batchwork.start(world, 1, session=first.session)
    with pytest.raises(Conflict, match=f"batch {third.id} has target 't0'"):
        await second.retry()
    with pytest.raises(Conflict, match=f"batch {third.id} has target 't0'"):
        await second.roll_back()
    await second.roll_back("t1")
    claimed = await world.claim(first.session)
    assert sorted(run.owner_id for run in claimed) == [second.id, third.id]
    await world.finish(first.session, *claimed)
    await third.react()
    assert await second.retry() == 1


async def test_a_dispatcher_with_a_region_moves_on_its_own_batches_and_those_of_none(world: World) -> None:
    names = {"": "anywhere", "eu": "eu", "us": "us"}
    works = {
        name: await Batchwork.start(world, 2, region=region, target_type=name, concurrency=1)
        for region, name in names.items()
    }
    claimed = await world.claim(works["us"].session)
    assert len(claimed) == 3
    await world.finish(works["us"].session, *claimed)
    while await world.store.aggregation.aggregate(region="eu"):
        pass
    assert {name: await work.counts() for name, work in works.items()} == {
        "anywhere": {"success": 1, "running": 1},
        "eu": {"success": 1, "running": 1},
        "us": {"running": 1, "pending": 1},
    }
    claimed = await world.claim(works["us"].session)
    assert len(claimed) == 2, "what is of another region has not started its next target"
    while await world.store.aggregation.aggregate(region="us"):
        pass
    assert await works["us"].counts() == {"success": 1, "running": 1}


async def test_ends_that_are_told_one_by_one_are_isolated_too(world: World) -> None:
    work = await Batchwork.start(world, 2, region="us", concurrency=1)
    (claimed,) = await world.claim(work.session)
    await world.store.runs.cancel(claimed.id, "no")
    await world.store.aggregation.aggregate(region="eu")
    await world.settle(work.session, claimed, end=End.CANCELED, effect=Effect.NONE)
    assert not await world.store.aggregation.aggregate(region="eu")
    assert await work.counts() == {"running": 1, "pending": 1}
    assert await world.store.aggregation.aggregate(region="us")
    assert await work.counts() == {"cancel": 1, "running": 1}


async def test_ends_of_other_regions_do_not_stand_in_the_way(world: World) -> None:
    us = await Batchwork.start(world, 5, region="us", target_type="a")
    eu = await Batchwork.start(world, 1, region="eu", target_type="b")
    claimed = await world.claim(us.session)
    for run in claimed:  # a notice each, those of the other region first
        await world.finish(us.session, run)
    assert await world.store.aggregation.aggregate(2, region="eu")
    assert await eu.counts() == {"success": 1}
    assert await us.counts() == {"running": 5}
