"""A stop reaches what has left the line and not started: given to a worker, or handed to the broker."""

from __future__ import annotations

import pytest

from fusee.batches.model.batch import BatchPhase
from fusee.engine.model.states import RunStatus
from fusee.engine.store.own_lanes import own_lane
from tests.store.batchwork import Batchwork
from tests.store.bulks import Bulks
from tests.store.harness import World
from tests.store.test_conformance_dispatch import tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stopped_batch_starts_no_target_that_the_broker_has(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=3)
    sent = await world.store.dispatches.dispatch(dict.fromkeys(await world.lane_ids(), 2))
    assert len(sent) == 2, "two are on their way, the third stands in line"
    await work.cancel()
    assert await world.store.starts.start(work.session, 1, tokens(sent)) == []
    assert await work.claim() == []
    assert await work.counts() == {"cancel": 4}
    assert (await work.look()).phase is BatchPhase.DONE


async def test_a_batch_that_stops_by_itself_starts_no_target_that_the_broker_has(world: World) -> None:
    work = await Batchwork.start(world, 4, concurrency=3, max_errors=0)
    (first,) = await work.claim(1)
    sent = await world.store.dispatches.dispatch(dict.fromkeys(await world.lane_ids(), 10))
    await work.end(first)
    assert await world.store.starts.start(work.session, 1, tokens(sent)) == []
    assert await work.counts() == {"fail": 1, "cancel": 3}


async def test_a_stopped_batch_starts_no_target_that_a_strategy_gave_to_a_worker(world: World) -> None:
    await world.store.queues.set_strategy("default", "round_robin")
    work = await Batchwork.plan(world, 4, session=await world.session(handlers=("batch.dial.turn",)))
    await work.store.batches.commands.apply_batch(work.id)
    assert (await world.store.assignments.assign()).placed == 4
    await work.cancel()
    assert await world.claim(work.session, lanes=[own_lane(work.session)]) == []
    assert await work.counts() == {"cancel": 4}
    assert (await work.look()).phase is BatchPhase.DONE


async def test_a_stop_reaches_what_a_worker_was_given_and_what_was_published_for_it(world: World) -> None:
    await world.store.queues.set_strategy("default", "round_robin")
    work = await Batchwork.plan(world, 3, session=await world.session(handlers=("batch.dial.turn",)))
    await work.store.batches.commands.apply_batch(work.id)
    assert (await world.store.assignments.assign()).placed == 3
    sent = await world.store.dispatches.dispatch({own_lane(work.session): 2})
    assert len(sent) == 2
    await work.cancel()
    assert await world.store.starts.start(work.session, 1, tokens(sent)) == []
    assert await world.claim(work.session, lanes=[own_lane(work.session)]) == []
    assert await work.counts() == {"cancel": 3}


async def test_a_stop_of_one_batch_leaves_the_runs_of_others_on_their_way(world: World) -> None:
    work = await Batchwork.start(world, 2)
    other = await Batchwork.start(world, 2, session=work.session, target_type="lamp")
    sent = await world.store.dispatches.dispatch(dict.fromkeys(await world.lane_ids(), 10))
    await work.cancel()
    started = await world.store.starts.start(work.session, 1, tokens(sent))
    assert len(started) == 2
    assert {(await world.run(run)).status for run, _, _ in started} == {RunStatus.RUNNING}
    assert await other.counts() == {"running": 2}


async def test_a_stopped_bulk_job_starts_no_segment_that_the_broker_has(world: World) -> None:
    bulks = await Bulks.begin(world)
    job = await bulks.launched(100, segments=2, concurrency=2)
    sent = await world.store.dispatches.dispatch(dict.fromkeys(await world.lane_ids(), 10))
    assert len(sent) == 2
    await world.store.bulk.jobs.stop_bulk_job(job.id)
    assert await world.store.starts.start(bulks.session, 99, tokens(sent)) == []
    while await world.store.aggregation.aggregate():
        pass
    assert str((await world.store.bulk.queries.bulk_job(job.id)).status) == "stopped"
