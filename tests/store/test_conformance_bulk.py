"""Bulk jobs in the store: fenced checkpoints, exact sums, durable stops, slots of a rate, splits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from fusee.bulk.model.done_map import encode_runs
from fusee.bulk.model.job import UNKNOWN, BulkJob, BulkStatus, HeldBy
from fusee.bulk.model.pacing import HOLD, MICROSECONDS, UNLIMITED
from fusee.bulk.model.segment import BulkAnswer, Found, SegmentProgress, SegmentState
from fusee.bulk.model.spec import BulkAlerts, BulkSpec
from fusee.bulk.model.window import Checkpoint
from fusee.bulk.store.queries import BulkFilter
from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Settlement
from fusee.engine.store.runs import RunFilter
from fusee.errors import Conflict, LeaseLost, NotFound
from tests.store.bulks import HANDLER, Bulks, Held, bad
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def bulks(world: World) -> Bulks:
    return await Bulks.begin(world)


# --- from created to finished -----------------------------------------------------------------------


async def test_a_job_is_launched_worked_on_and_finished(bulks: Bulks) -> None:
    job = await bulks.create(10)
    assert (job.status, job.total, job.ended) == (BulkStatus.CREATED, None, 0)
    job = await bulks.store.bulk.jobs.start_bulk_job(job.id)
    assert job.status is BulkStatus.RUNNING
    await bulks.launch(job, 10)
    (held,) = await bulks.take()
    assert (held.taken.segment.first, held.taken.segment.stop) == (0, 10)
    answer = await held.write(10)
    assert not answer.stop
    assert (await bulks.look(job)).ended == 10
    await bulks.end(held)
    job = await bulks.look(job)
    assert (job.status, job.ended, job.total) == (BulkStatus.FINISHED, 10, 10)
    assert job.finished_at is not None
    (segment,) = await bulks.segments(job)
    assert segment.state is SegmentState.DONE


async def test_a_business_with_a_finish_callback_is_called(bulks: Bulks, world: World) -> None:
    await bulks.launched(10)
    (held,) = await bulks.take()
    await held.write(10)
    await bulks.end(held)
    (claimed,) = await world.claim(bulks.session)
    assert claimed.payload is not None and '"callback":"finish"' in claimed.payload


async def test_a_job_without_items_is_finished_at_once(bulks: Bulks) -> None:
    job = await bulks.launched(0)
    assert (job.status, job.total) == (BulkStatus.FINISHED, 0)


async def test_it_is_cut_into_as_many_segments_as_workers_serve_it(bulks: Bulks, world: World) -> None:
    await world.session("worker-2", handlers=(HANDLER, "work"))
    await world.session("worker-3", handlers=("bulk.mailbox", "bulkXmail"))
    job = await bulks.launched(1001)
    assert [(s.first, s.stop) for s in await bulks.segments(job)] == [(0, 501), (501, 1001)]
    many = await bulks.launched(1001, segments=3)
    assert [(s.first, s.stop) for s in await bulks.segments(many)] == [(0, 334), (334, 668), (668, 1001)]
    few = await bulks.launched(1001, segments=3, concurrency=2)
    assert len(await bulks.segments(few)) == 2


async def test_a_key_makes_a_repeated_creation_harmless(bulks: Bulks) -> None:
    spec = BulkSpec(name="a", business="mail", source={"kind": "range", "stop": 5})
    first, new = await bulks.store.bulk.creation.create_bulk_job(spec, idempotency_key="k")
    again, renewed = await bulks.store.bulk.creation.create_bulk_job(spec, idempotency_key="k")
    assert (new, renewed, again.id) == (True, False, first.id)
    other = BulkSpec(name="a", business="mail", source={"kind": "range", "stop": 6})
    with pytest.raises(Conflict, match="another request"):
        await bulks.store.bulk.creation.create_bulk_job(other, idempotency_key="k")
    made = await asyncio.gather(
        *(bulks.store.bulk.creation.create_bulk_job(spec, idempotency_key="j") for _ in range(4))
    )
    assert len({job.id for job, _ in made}) == 1
    assert sum(new for _, new in made) == 1


# --- checkpoints ------------------------------------------------------------------------------------


async def test_a_checkpoint_is_found_by_who_comes_next(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(40, beyond=(1, 2, 5), retried=4, reached=50)
    await world.clock.tick(31)
    assert (await bulks.store.recovery.recover()).requeued == 1
    session = await world.session("worker-2", handlers=(HANDLER,))
    (again,) = await bulks.take(session)
    segment = again.taken.segment
    assert again.taken.checkpoint.watermark == 40
    assert (segment.watermark, segment.reached, segment.ended, segment.retried) == (40, 50, 43, 4)
    assert (await bulks.look(job)).retried == 4


async def test_losses_are_counted_against_the_items_that_were_under_way(bulks: Bulks, world: World) -> None:
    await bulks.launched(1000, item_attempts=3)
    (held,) = await bulks.take()
    assert held.taken.caution is None
    await held.write(40, beyond=(1,), reached=50)
    names, sessions = itertools.count(2), list[int]()

    async def lost() -> Held:
        await world.clock.tick(61)
        assert (await bulks.store.recovery.recover()).requeued == 1
        sessions.append(await world.session(f"worker-{next(names)}", handlers=(HANDLER,)))
        (again,) = await bulks.take(sessions[-1])
        return again

    held = await lost()
    wide = held.taken.caution
    assert wide is not None and (wide.width, wide.losses, wide.reach, wide.blamed) == (0, 1, 40, False)
    assert wide.upto > 50
    same = await bulks.resume(held.claimed)
    assert same.taken.caution == wide, "to ask twice is not to be lost twice"
    await held.write(42, reached=50, caution=replace(wide, reach=45))
    held = await lost()
    alone = held.taken.caution
    assert alone is not None and (alone.upto, alone.width, alone.losses) == (45, 1, 2)
    await held.write(43, reached=50, caution=replace(alone, reach=44))
    held = await lost()
    blamed = held.taken.caution
    assert blamed is not None and blamed.blamed and (blamed.upto, blamed.losses) == (44, 3)
    await held.write(44, reached=50, quarantined=1, new=(bad(43),), caution=None)
    await world.settle(sessions[-1], held.claimed, end=End.RETURNED, effect=Effect.NONE)
    (held,) = await bulks.take(sessions[-1])
    assert held.taken.caution is None, "what was handed back was not lost"


async def test_a_worker_that_lost_its_segment_writes_nothing(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(40)
    await world.clock.tick(31)
    await bulks.store.recovery.recover()
    before = await bulks.segments(job)
    with pytest.raises(LeaseLost, match="is over"):
        await held.write(50, new=[bad(45)], quarantined=1)
    session = await world.session("worker-2", handlers=(HANDLER,))
    (again,) = await bulks.take(session)
    with pytest.raises(LeaseLost, match="is over"):
        await held.write(900)
    assert [s.watermark for s in await bulks.segments(job)] == [s.watermark for s in before] == [40]
    assert (await bulks.look(job)).ended == 40
    assert await bulks.store.bulk.queries.bulk_quarantine(job.id) == []
    await again.write(60)
    assert (await bulks.look(job)).ended == 60


async def test_a_watermark_never_moves_back(bulks: Bulks) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(40)
    with pytest.raises(Conflict, match="never moves back"):
        await held.write(39, ended=40, reached=40)
    with pytest.raises(Conflict, match="never moves back"):
        await held.write(40, ended=39)
    assert [s.watermark for s in await bulks.segments(job)] == [40]


async def test_the_same_checkpoint_twice_changes_nothing(bulks: Bulks) -> None:
    """Its answer may be lost: whoever does not know whether it was written writes it again."""
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    for _ in range(3):
        await held.write(40, beyond=(3,), quarantined=1, retried=2, replayed=5, new=[bad(7)])
    seen = await bulks.look(job)
    assert (seen.ended, seen.done, seen.quarantined, seen.retried, seen.replayed) == (41, 40, 1, 2, 5)
    assert [item.index for item in await bulks.store.bulk.queries.bulk_quarantine(job.id)] == [7]


async def test_a_jobs_sums_are_those_of_its_segments(bulks: Bulks) -> None:
    job = await bulks.launched(1000, segments=3)
    one, two, three = await bulks.take(want=3)
    await asyncio.gather(
        one.write(100, retried=1), two.write(434, quarantined=2, new=[bad(340), bad(341)]), three.write(700)
    )
    await one.write(150, beyond=(4, 5), retried=3)
    seen = await bulks.look(job)
    assert seen.ended == 152 + 100 + 33 == sum(s.ended for s in await bulks.segments(job))
    assert (seen.quarantined, seen.retried) == (2, 3)


async def test_speed_and_eta(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(10_000)
    (held,) = await bulks.take()
    for second in range(1, 41):
        await world.clock.tick(1)
        await bulks.store.sessions.renew(bulks.session, 30.0, 1)
        await held.write(100 * second)
    seen = await bulks.look(job)
    assert seen.speed == pytest.approx(100, rel=0.1)
    assert seen.eta == pytest.approx(60, rel=0.1)


async def test_a_job_that_nobody_works_on_has_no_speed(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, segments=1)
    (held,) = await bulks.take()
    for second in range(1, 6):
        await world.clock.tick(1)
        await held.write(second * 100)
    assert (await bulks.look(job)).speed > 50
    await world.clock.tick(4)
    assert (await bulks.look(job)).speed > 50, "a checkpoint may be late"
    await world.clock.tick(2)  # its worker is dead, and nobody has noticed yet
    seen = await bulks.look(job)
    assert (str(seen.status), seen.speed, seen.eta) == ("running", 0.0, None)
    assert [one.speed for one in await world.store.bulk.queries.bulk_jobs(BulkFilter())] == [0.0]
    assert [load.speed for load in await world.store.bulk.queries.bulk_loads()] == [0.0]
    await held.write(600)
    assert (await bulks.look(job)).speed > 0


# --- quarantine and the error budget ----------------------------------------------------------------


async def test_quarantined_items_are_listed_by_index_in_pages(bulks: Bulks) -> None:
    job = await bulks.launched(5000)
    (held,) = await bulks.take()
    await held.write(2000, quarantined=1200, new=[bad(i, "x" * 9000) for i in range(1200)])
    page = await bulks.store.bulk.queries.bulk_quarantine(job.id, limit=3)
    assert [(item.index, item.attempts, item.item) for item in page] == [
        (0, 3, "0"),
        (1, 3, "1"),
        (2, 3, "2"),
    ]
    assert len(page[0].error) == 2000
    rest = await bulks.store.bulk.queries.bulk_quarantine(job.id, after=1197)
    assert [item.index for item in rest] == [1198, 1199]
    assert await bulks.store.bulk.queries.quarantined_count(job.id) == 1200
    assert await bulks.store.bulk.queries.quarantined_indexes(job.id, 1190, 5) == [
        1190,
        1191,
        1192,
        1193,
        1194,
    ]


async def test_too_many_errors_fail_the_job(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, segments=2, error_budget=0.002)
    (held,) = await bulks.take()
    answer = await held.write(100, quarantined=2, new=[bad(1), bad(2)])
    assert (answer.stop, answer.errors_left) == (False, 0)
    answer = await held.write(200, quarantined=3, new=[bad(150)])
    assert answer.stop
    assert (await bulks.look(job)).status is BulkStatus.STOPPING
    assert await world.claim(bulks.session) == [], "the other segment was taken out of line"
    await bulks.end(held)
    seen = await bulks.look(job)
    assert seen.status is BulkStatus.FAILED
    assert seen.reason is not None and "error budget: 3 items" in seen.reason


# --- stop and resume --------------------------------------------------------------------------------


async def test_a_stop_is_seen_at_the_next_checkpoint(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, segments=2)
    (held,) = await bulks.take()
    stopping = await bulks.store.bulk.jobs.stop_bulk_job(job.id, reason="lunch", who="ada")
    assert (stopping.status, stopping.reason) == (BulkStatus.STOPPING, "lunch")
    assert await world.claim(bulks.session) == [], "what had not started does not start"
    assert (await held.write(20)).stop
    assert (await bulks.look(job)).status is BulkStatus.STOPPING, "something is under way"
    await bulks.end(held)
    assert (await bulks.look(job)).status is BulkStatus.STOPPED
    assert {s.state for s in await bulks.segments(job)} == {SegmentState.IDLE}

    await bulks.store.bulk.jobs.start_bulk_job(job.id, who="ada")
    await bulks.launch(job)
    one, two = await bulks.take(want=2)
    assert (one.taken.checkpoint.watermark, two.taken.checkpoint.watermark) == (20, 500)
    await one.write(500)
    await two.write(1000)
    await bulks.end(one, two)
    assert (await bulks.look(job)).status is BulkStatus.FINISHED
    told = [log.text for log in await bulks.store.bulk.queries.bulk_logs(job.id, kind="operator")]
    assert told == ["created", "started", "stopped: lunch", "resumed"]


async def test_a_job_that_was_done_when_it_was_stopped_is_finished(bulks: Bulks) -> None:
    job = await bulks.launched(10)
    (held,) = await bulks.take()
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    await held.write(10)
    await bulks.end(held)
    assert (await bulks.look(job)).status is BulkStatus.FINISHED


async def test_a_job_that_is_stopped_before_it_was_launched(bulks: Bulks, world: World) -> None:
    job = await bulks.create()
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    await bulks.aggregate()
    assert (await bulks.look(job)).status is BulkStatus.STOPPED
    assert await world.claim(bulks.session) == []


async def test_a_stop_while_its_business_prepares_it(bulks: Bulks, world: World) -> None:
    job = await bulks.create()
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    (claimed,) = await world.claim(bulks.session)
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    assert not await bulks.store.bulk.launches.launch_bulk_job(
        claimed.id, claimed.attempt, job.id, Found(0, 10), ()
    )
    await world.settle(bulks.session, claimed, end=End.CANCELED)
    await bulks.aggregate()
    assert (await bulks.look(job)).status is BulkStatus.STOPPED


async def test_a_launch_that_fails_stops_the_job_and_says_why(bulks: Bulks, world: World) -> None:
    job = await bulks.create()
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    (claimed,) = await world.claim(bulks.session)
    await world.settle(bulks.session, claimed, end=End.ABANDONED, error="the file is not there")
    await bulks.aggregate()
    seen = await bulks.look(job)
    assert seen.status is BulkStatus.STOPPED
    assert seen.reason is not None and "the file is not there" in seen.reason


async def test_a_segment_that_cannot_go_on_fails_the_job_and_is_resumed_where_it_was(bulks: Bulks) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(300)
    await bulks.fail(held, "the disk is gone")
    seen = await bulks.look(job)
    assert seen.status is BulkStatus.FAILED
    assert seen.reason is not None and "the disk is gone" in seen.reason
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job)
    (again,) = await bulks.take()
    assert again.taken.checkpoint.watermark == 300


async def test_a_job_that_is_launched_again_keeps_its_bounds_and_its_fingerprint(bulks: Bulks) -> None:
    job = await bulks.launched(1000, fingerprint={"size": 1})
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    await bulks.aggregate()
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job, 1200, {"size": 2})
    (held,) = await bulks.take()
    assert (held.taken.segment.first, held.taken.segment.stop) == (0, 1000)
    assert (held.taken.job.total, held.taken.job.fingerprint) == (1000, {"size": 1})


async def test_a_job_at_rest_is_extended_by_segments_of_their_own(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, fingerprint={"size": 1}, error_budget=0.01)
    with pytest.raises(Conflict, match="is running: it cannot extend now"):
        await bulks.store.bulk.jobs.extend_bulk_job(job.id, Found(0, 1500))
    (held,) = await bulks.take()
    await held.write(1000)
    await bulks.end(held)
    assert (await bulks.look(job)).status is BulkStatus.FINISHED
    await world.finish(bulks.session, *await world.claim(bulks.session))  # its callback
    with pytest.raises(Conflict, match="no items beyond those of bulk job"):
        await bulks.store.bulk.jobs.extend_bulk_job(job.id, Found(0, 1000))
    job = await bulks.store.bulk.jobs.extend_bulk_job(job.id, Found(0, 1500, {"size": 3}), who="eve")
    assert (job.status, job.total, job.ended, job.finished_at) == (BulkStatus.STOPPED, 1500, 1000, None)
    assert (job.errors_left, job.fingerprint) == (15, {"size": 3})
    first, second = await bulks.segments(job)
    assert (first.state, second.state) == (SegmentState.DONE, SegmentState.IDLE)
    assert (second.number, second.first, second.stop) == (1, 1000, 1500)
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job, 1500)
    (held,) = await bulks.take()
    await held.write(1500)
    await bulks.end(held)
    assert (await bulks.look(job)).status is BulkStatus.FINISHED
    assert (await bulks.look(job)).ended == 1500


async def test_a_job_without_items_is_extended_by_its_first_ones(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(0)
    await world.finish(bulks.session, *await world.claim(bulks.session))  # its callback
    await bulks.store.bulk.jobs.extend_bulk_job(job.id, Found(0, 7))
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job, 7)
    (held,) = await bulks.take()
    assert (held.taken.segment.first, held.taken.segment.stop) == (0, 7)


async def test_places_without_an_item_are_not_counted_as_items(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, rows=300, error_budget=0.1)
    assert (job.total, job.first, job.stop, job.errors_left) == (300, 0, 1000, 30)
    (held,) = await bulks.take()
    await world.clock.tick(1)
    await held.write(600, ended=200, absent=400)
    job = await bulks.look(job)
    assert (job.ended, job.done, job.absent, job.total, job.progress) == (200, 200, 400, 300, 2 / 3)
    assert job.speed < 200
    (load,) = [
        load for load in await bulks.store.bulk.queries.bulk_loads() if load.status is BulkStatus.RUNNING
    ]
    assert load.left == 100
    (segment,) = await bulks.segments(job)
    assert (segment.watermark, segment.ended, segment.absent) == (600, 200, 400)
    await held.write(900, ended=310, absent=590)  # rows came meanwhile
    assert (await bulks.look(job)).total == 310
    await held.write(1000, ended=320, absent=680)
    await bulks.end(held)
    job = await bulks.look(job)
    assert (job.status, job.total, job.ended, job.progress) == (BulkStatus.FINISHED, 320, 320, 1.0)
    job = await bulks.store.bulk.jobs.extend_bulk_job(job.id, Found(0, 1500, rows=50))
    assert (job.total, job.stop, job.ended, job.errors_left) == (370, 1500, 320, 37)


async def test_a_job_whose_rows_nobody_could_count_has_a_total_when_it_is_over(bulks: Bulks) -> None:
    job = await bulks.launched(1000, rows=UNKNOWN)
    assert (job.total, job.progress, job.stop) == (None, None, 1000)
    (held,) = await bulks.take()
    await held.write(999, ended=10, absent=989)
    assert (await bulks.look(job)).total is None
    await held.write(1000, ended=10, absent=990)
    await bulks.end(held)
    job = await bulks.look(job)
    assert (job.status, job.total, job.progress) == (BulkStatus.FINISHED, 10, 1.0)


async def test_a_job_that_failed_is_extended_and_stays_failed(bulks: Bulks) -> None:
    job = await bulks.launched(10)
    (held,) = await bulks.take()
    await bulks.fail(held)
    job = await bulks.store.bulk.jobs.extend_bulk_job(job.id, Found(0, 12))
    assert (job.status, job.total, job.finished_at is not None) == (BulkStatus.FAILED, 12, True)
    fresh = await bulks.create(10)
    with pytest.raises(Conflict, match="is created: it cannot extend now"):
        await bulks.store.bulk.jobs.extend_bulk_job(fresh.id, Found(0, 12))


async def test_what_cannot_be_done_now_is_refused(bulks: Bulks) -> None:
    job = await bulks.create()
    with pytest.raises(Conflict, match="is created: it cannot stop now"):
        await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    with pytest.raises(Conflict, match="can start it only while it waits"):
        await bulks.store.bulk.jobs.start_bulk_job(job.id, by_business=True)
    with pytest.raises(Conflict, match="is at version 1, not 7"):
        await bulks.store.bulk.jobs.start_bulk_job(job.id, version=7)
    with pytest.raises(NotFound, match="no bulk job 999"):
        await bulks.store.bulk.queries.bulk_job(999)
    with pytest.raises(NotFound):
        await bulks.store.for_namespace("other").bulk.jobs.stop_bulk_job(job.id)


# --- the business -----------------------------------------------------------------------------------


async def test_a_business_may_start_the_job_itself(bulks: Bulks, world: World) -> None:
    job = await bulks.create(10)
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    (claimed,) = await world.claim(bulks.session)
    await bulks.store.bulk.launches.await_business(claimed.id, claimed.attempt, job.id, ("finish",))
    await world.finish(bulks.session, claimed)
    await bulks.aggregate()
    assert (await bulks.look(job)).status is BulkStatus.WAITING_BUSINESS
    await bulks.store.bulk.jobs.start_bulk_job(job.id, by_business=True)
    (claimed,) = await world.claim(bulks.session)
    assert claimed.payload is not None and '"launch":"business"' in claimed.payload
    await bulks.store.bulk.launches.launch_bulk_job(claimed.id, claimed.attempt, job.id, Found(0, 10), ())
    await world.finish(bulks.session, claimed)
    (held,) = await bulks.take()
    await held.write(10)
    await bulks.end(held)
    assert (await bulks.look(job)).status is BulkStatus.FINISHED


async def test_a_job_that_waits_for_its_business_can_be_stopped_and_its_business_hears_of_it(
    bulks: Bulks, world: World
) -> None:
    job = await bulks.create(10)
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    (claimed,) = await world.claim(bulks.session)
    await bulks.store.bulk.launches.await_business(claimed.id, claimed.attempt, job.id, ("stop", "finish"))
    await world.finish(bulks.session, claimed)
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    assert (await bulks.look(job)).status is BulkStatus.STOPPED
    (told,) = await world.claim(bulks.session)
    assert told.payload is not None and '"callback":"stop"' in told.payload


async def test_an_operator_starts_a_job_that_waits_for_its_business_only_by_force(
    bulks: Bulks, world: World
) -> None:
    job = await bulks.create(10)
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    (claimed,) = await world.claim(bulks.session)
    await bulks.store.bulk.launches.await_business(claimed.id, claimed.attempt, job.id, ())
    await world.finish(bulks.session, claimed)
    with pytest.raises(Conflict, match="waits for its business to start it"):
        await bulks.store.bulk.jobs.start_bulk_job(job.id, who="op")
    assert (await bulks.look(job)).status is BulkStatus.WAITING_BUSINESS
    started = await bulks.store.bulk.jobs.start_bulk_job(job.id, force=True, who="op")
    assert started.status is BulkStatus.RUNNING
    texts = [log.text for log in await bulks.store.bulk.queries.bulk_logs(job.id, kind="operator")]
    assert texts[-1] == "started by force while it waited for its business"
    assert "started by its business" not in texts


async def test_a_command_that_finds_the_job_as_it_should_be_changes_nothing_and_says_so(bulks: Bulks) -> None:
    job = await bulks.create(10)
    first = await bulks.store.bulk.jobs.start_bulk_job(job.id)
    second = await bulks.store.bulk.jobs.start_bulk_job(job.id)
    assert (first.changed, second.changed, second.version) == (True, False, first.version)
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    assert not (await bulks.store.bulk.jobs.stop_bulk_job(job.id)).changed
    same = await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"concurrency": job.concurrency})
    assert not same.changed
    assert len(await bulks.store.bulk.queries.bulk_logs(job.id, kind="operator")) == 3, (
        "created, started, stopped"
    )


# --- asking the business first ----------------------------------------------------------------------


async def unchecked(bulks: Bulks, **how: Any) -> BulkJob:
    source = {"kind": "range", "stop": 10}
    spec = BulkSpec(name="j", business="mail", source=source)
    job, _ = await bulks.store.bulk.creation.create_bulk_job(spec, check="here", **how)
    return job


async def test_a_job_that_was_refused_leaves_nothing(bulks: Bulks) -> None:
    job = await unchecked(bulks)
    await bulks.store.bulk.creation.withdraw_bulk_job(job.id, "no")
    with pytest.raises(NotFound):
        await bulks.store.bulk.queries.bulk_job(job.id)


async def test_a_refused_job_that_a_repetition_was_given_stays_as_refused(bulks: Bulks) -> None:
    job = await unchecked(bulks, idempotency_key="k")
    same = await unchecked(bulks, idempotency_key="k")  # as by another process, told that it will start
    assert same.id == job.id
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.store.bulk.creation.withdraw_bulk_job(job.id, "no")
    seen = await bulks.look(job)
    assert (seen.status, seen.reason, seen.checking) == (BulkStatus.FAILED, "no", False)
    assert (await unchecked(bulks, idempotency_key="k")).id != job.id, "the key may be used again"


async def test_a_request_that_went_away_leaves_a_job_that_others_know_of_as_it_is(
    bulks: Bulks, world: World
) -> None:
    job = await unchecked(bulks, idempotency_key="k")
    await bulks.store.bulk.creation.withdraw_bulk_job(job.id, None)
    started = await bulks.store.bulk.jobs.start_bulk_job(job.id)
    assert (started.status, started.checking) == (BulkStatus.CREATED, True)
    (claimed,) = await world.claim(bulks.session)
    assert claimed.payload is not None and '"check":true' in claimed.payload
    await bulks.store.bulk.creation.conclude_check(job.id, None, claimed.id, claimed.attempt)
    assert (await bulks.look(job)).status is BulkStatus.RUNNING
    with pytest.raises(LeaseLost):
        await bulks.store.bulk.creation.conclude_check(job.id, "too late", claimed.id, claimed.attempt)


# --- the error budget -------------------------------------------------------------------------------


async def spend_budget(bulks: Bulks, job: BulkJob, mark: int, indexes: list[int]) -> None:
    """Items below `mark` end, these of them in quarantine; the job comes to rest."""
    (held,) = await bulks.take()
    already = held.taken.segment.quarantined
    new = [bad(index) for index in indexes]
    answer = await held.write(mark, new=new, quarantined=already + len(new))
    assert answer.stop
    await bulks.end(held)
    assert (await bulks.look(job)).status is BulkStatus.FAILED


async def test_a_job_that_failed_by_its_budget_is_resumed_with_a_fresh_one(
    bulks: Bulks, world: World
) -> None:
    job = await bulks.launched(1000, error_budget=4)
    await spend_budget(bulks, job, 55, [1, 2, 3, 4, 5])
    resumed = await bulks.store.bulk.jobs.start_bulk_job(job.id, who="op")
    assert resumed.errors_left == 4
    texts = [log.text for log in await bulks.store.bulk.queries.bulk_logs(job.id, kind="operator")]
    assert texts[-1] == "resumed with a fresh error budget: 4 more may be quarantined"
    await bulks.launch(job, 1000)
    (held,) = await bulks.take()
    assert not (await held.write(500, new=[bad(100)], quarantined=6)).stop, "it has four more"
    assert not (await held.write(1000, quarantined=6)).stop
    await bulks.end(held)
    done = await bulks.look(job)
    assert (done.status, done.ended, done.quarantined) == (BulkStatus.FINISHED, 1000, 6)


async def test_the_error_budget_changes_while_the_job_runs(bulks: Bulks) -> None:
    job = await bulks.launched(1000, error_budget=1)
    (held,) = await bulks.take()
    changed = await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"error_budget": 0.01})
    assert (changed.spec.error_budget, changed.errors_left) == (0.01, 10)
    answer = await held.write(20, new=[bad(n) for n in range(5)], quarantined=5)
    assert (answer.stop, answer.errors_left) == (False, 5)
    await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"error_budget": None})
    assert (await held.write(30, quarantined=5)).errors_left is None
    await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"error_budget": 3})
    assert (await held.write(40, quarantined=5)).stop, "five are more than three"


async def test_alerts_change_while_the_job_runs(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, alerts="https://ops.example/old")
    (held,) = await bulks.take()
    new = BulkAlerts(webhook="https://ops.example/new?key=secret", on_stalled=False)
    assert (
        await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"alerts": new}, who="eve")
    ).spec.alerts == new
    logs = [log.text for log in await bulks.store.bulk.queries.bulk_logs(job.id, kind="operator")]
    assert logs[-1] == "changed: alerts to https://ops.example", "the rest of an address may be secret"
    await bulks.fail(held)
    (listed,) = await world.store.runs.runs(RunFilter(queue="fusee.alerts"))
    alert = await world.store.runs.run(listed.id)
    assert isinstance(alert.payload, dict) and alert.payload["url"] == new.webhook
    assert (await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"alerts": None})).spec.alerts is None


async def test_tries_of_an_item_change_only_while_nothing_runs(bulks: Bulks) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    with pytest.raises(Conflict, match="stop it before you change its item_attempts"):
        await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"item_attempts": 9})
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    await held.write(10)
    await bulks.end(held)
    changed = await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"item_attempts": 9, "item_backoff": 2.0})
    assert (changed.spec.item_attempts, changed.spec.item_backoff) == (9, 2.0)
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job, 1000)
    (held,) = await bulks.take()
    assert held.taken.job.spec.item_attempts == 9


async def test_data_changes_only_while_nothing_runs(bulks: Bulks) -> None:
    job = await bulks.create()
    assert (await bulks.store.bulk.jobs.set_bulk_data(job.id, {"template": 7})).data == {"template": 7}
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job)
    with pytest.raises(Conflict, match="stop it before you change its data"):
        await bulks.store.bulk.jobs.set_bulk_data(job.id, {"template": 8})


async def test_data_logs_and_operator_history_are_kept_apart_and_in_order(bulks: Bulks) -> None:
    job = await bulks.create()
    numbers = await asyncio.gather(
        *(bulks.store.bulk.jobs.log_bulk_data(job.id, f"line {n}", "mail") for n in range(5))
    )
    assert sorted(numbers) == [2, 3, 4, 5, 6]
    logs = await bulks.store.bulk.queries.bulk_logs(job.id, kind="data")
    assert sorted(log.text for log in logs) == [f"line {n}" for n in range(5)]
    assert {log.who for log in logs} == {"mail"}
    assert [log.id for log in await bulks.store.bulk.queries.bulk_logs(job.id, after=5)] == [6]


# --- rate and concurrency ---------------------------------------------------------------------------


def _paces(answers: Iterable[BulkAnswer]) -> list[float]:
    return [round(answer.grant.pace, 6) for answer in answers if answer.grant is not None]


async def test_segments_have_even_parts_of_the_rate_and_begin_one_after_the_other(bulks: Bulks) -> None:
    await bulks.launched(100_000, segments=3, rate=300.0)
    segments = await bulks.take(want=3)
    assert [held.taken.part for held in segments] == [100.0, 100.0, 100.0]
    answers = [await held.write(held.taken.segment.first, begin=1) for held in segments]
    assert _paces(answers) == [100.0, 100.0, 100.0]
    begins = [answer.grant.first_at for answer in answers if answer.grant is not None]
    assert [later - earlier for earlier, later in itertools.pairwise(begins)] == [3334, 3334]


async def test_parts_are_even_when_all_ask_at_once(bulks: Bulks) -> None:
    await bulks.launched(100_000, segments=4, rate=400.0)
    segments = await bulks.take(want=4)
    answers = await asyncio.gather(*(held.write(held.taken.segment.first, begin=1) for held in segments))
    assert _paces(answers) == [100.0] * 4
    begins = {answer.grant.first_at for answer in answers if answer.grant is not None}
    assert len(begins) == 4, "no two begin at the same moment"


async def test_a_part_that_was_not_asked_for_again_goes_to_other_workers(bulks: Bulks, world: World) -> None:
    other = await world.session("worker-2", handlers=(HANDLER,))
    await bulks.launched(100_000, segments=2, rate=100.0)
    (one,), (two,) = await bulks.take(), await bulks.take(other)
    at = one.taken.segment.first, two.taken.segment.first
    answers = [
        await held.write(mark, begin=1, latency=0.0) for held, mark in zip((one, two), at, strict=True)
    ]
    assert _paces(answers) == [50.0, 50.0]
    first, second = (answer.grant for answer in answers)
    assert first is not None and second is not None
    assert second.until - answers[1].now < MICROSECONDS, "the other one waits for it if this one is lost"
    assert second.free_at == first.until
    await world.clock.tick(0.4)
    assert _paces([await one.write(at[0], latency=0.0)]) == [50.0], "the other may still start items"
    await world.clock.tick(0.4)
    assert _paces([await one.write(at[0], latency=0.0)]) == [100.0]
    assert _paces([await two.write(at[1])]) == [0.0], "it was taken for lost: the first has to make room"
    assert _paces([await one.write(at[0]), await two.write(at[1])]) == [50.0, 50.0]


async def test_a_worker_that_does_not_renew_short_grants_gets_long_ones(bulks: Bulks, world: World) -> None:
    other = await world.session("worker-2", handlers=(HANDLER,))
    await bulks.launched(100_000, segments=2, rate=100.0)
    (one,), (two,) = await bulks.take(), await bulks.take(other)
    for held in (one, two):
        answer = await held.write(held.taken.segment.first, begin=1)
        assert answer.grant is not None and answer.grant.until - answer.now > MICROSECONDS


async def test_each_segment_renews_all_parts_of_its_worker(bulks: Bulks, world: World) -> None:
    await bulks.launched(100_000, segments=2, rate=100.0)
    one, two = await bulks.take(want=2)
    answers = [await held.write(held.taken.segment.first, begin=1) for held in (one, two)]
    assert _paces(answers) == [50.0, 50.0]
    for second in range(1, 4):
        await world.clock.tick(1)
        answer = await one.write(second)
        assert _paces([answer]) == [50.0], "the same worker may still start items of the other"
        assert answer.grant is not None and not answer.grant.lapsed


async def test_parts_that_ran_out_are_void_when_their_worker_is_heard_from_again(
    bulks: Bulks, world: World
) -> None:
    other = await world.session("worker-2", handlers=(HANDLER,))
    job = await bulks.launched(100_000, segments=3, rate=90.0)
    one, two = await bulks.take(want=2)
    (three,) = await bulks.take(other)
    for held in (one, two, three, one):
        await held.write(held.taken.segment.first, begin=1, latency=0.0)
    await world.clock.tick(5)
    assert _paces([await three.write(three.taken.segment.first)]) == [90.0]
    answer = await one.write(one.taken.segment.first)
    assert answer.grant is not None and answer.grant.lapsed
    paces = {segment.number: segment.pace for segment in await bulks.segments(job)}
    assert paces == {one.number: 0.0, two.number: 0.0, three.number: 90.0}, "they would come to 120 a second"


async def test_a_segment_that_another_worker_takes_over_brings_no_part_along(
    bulks: Bulks, world: World
) -> None:
    job = await bulks.launched(100_000, segments=2, rate=100.0)
    one, two = await bulks.take(want=2)
    for held in (one, two):
        await held.write(held.taken.segment.first, begin=1)
    await bulks.resume(two.claimed)
    seen = {segment.number: segment.pace for segment in await bulks.segments(job)}
    assert seen == {one.number: 50.0, two.number: 0.0}


async def test_a_segment_that_is_handed_back_holds_neither_rate_nor_concurrency(
    bulks: Bulks, world: World
) -> None:
    job = await bulks.launched(100_000, segments=2, rate=100.0, concurrency=8)
    one, two = await bulks.take(want=2)
    await two.write(50_000, begin=1)
    run_id, attempt = one.claimed.id, one.claimed.attempt
    await bulks.store.bulk.checkpoints.hand_back_segment(run_id, attempt, job.id, 0, HeldBy.NODE_CAP)
    seen = {segment.number: segment for segment in await bulks.store.bulk.queries.bulk_segments(job.id)}
    assert (seen[0].share, seen[0].pace, seen[0].held_by) == (0, 0.0, HeldBy.NODE_CAP)
    assert (await bulks.store.bulk.queries.bulk_job(job.id)).held_by is HeldBy.NODE_CAP
    with pytest.raises(LeaseLost):
        await bulks.store.bulk.checkpoints.hand_back_segment(run_id, attempt + 1, job.id, 0, HeldBy.NODE_CAP)
    held = one.claimed
    ended = Ended(End.RETURNED, error="handed back: no room", after=5.0, effect=Effect.NONE)
    for _ in range(3):  # however often it comes to that, no attempt is spent
        verdict = decide(ended, RetryPolicy(max_attempts=1), spent=held.spent)
        settled = Settlement(held.id, held.attempt, ended, verdict, held.receipt, held.ticket)
        assert await world.store.outcomes.settle(bulks.session, [settled]) == []
        run = await world.store.runs.run(run_id)
        assert (run.status, run.reason) == (RunStatus.DELAYED, "handed back: no room")
        assert (await two.write(50_000)).share == 8, "nothing is kept for it"
        await world.clock.tick(6)
        await world.store.ready_queue.promote()
        (held,) = await world.claim(bulks.session, 1)
        assert (held.id, held.spent) == (run_id, 0)


async def test_the_item_timeout_changes_while_the_job_runs(bulks: Bulks) -> None:
    job = await bulks.launched(1000)
    assert job.item_timeout == 300.0
    (held,) = await bulks.take()
    assert held.taken.answer.item_timeout == 300.0
    assert (await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"item_timeout": 2.5})).item_timeout == 2.5
    assert (await held.write(0)).item_timeout == 2.5
    assert (await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"item_timeout": 0.0})).item_timeout is None
    assert (await held.write(0)).item_timeout == 0.0
    unlimited = await bulks.launched(1000, item_timeout=None)
    assert unlimited.item_timeout is None


async def test_a_new_rate_holds_from_the_next_checkpoint_on(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(100_000, rate=0.01)
    (held,) = await bulks.take()
    assert _paces([await held.write(0, begin=1)]) == [0.01]
    changes = {"rate": 50.0, "concurrency": 4, "window": 500}
    changed = await bulks.store.bulk.jobs.adjust_bulk_job(job.id, changes)
    assert (changed.rate, changed.concurrency, changed.window) == (50.0, 4, 500)
    answer = await held.write(0)
    assert (answer.rate, answer.share, answer.window) == (50.0, 4, 500)
    assert _paces([answer]) == [50.0]
    await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"rate": HOLD})
    answer = await held.write(0)
    assert (answer.rate, answer.grant) == (HOLD, None)
    await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"rate": UNLIMITED})
    assert (await held.write(0)).rate == UNLIMITED


async def test_a_job_that_nobody_works_on_says_so(bulks: Bulks, world: World) -> None:
    job = await bulks.create(10)
    await bulks.store.bulk.jobs.start_bulk_job(job.id)
    await world.clock.tick(6)
    assert (await bulks.look(job)).held_by is HeldBy.WORKER, "nobody came to launch it"
    await bulks.launch(job, 10)
    (held,) = await bulks.take()
    await held.write(1, held_by=HeldBy.HANDLER)
    assert (await bulks.look(job)).held_by is HeldBy.HANDLER
    await world.clock.tick(6)
    assert (await bulks.look(job)).held_by is HeldBy.WORKER, "its worker says nothing any more"


async def test_a_job_says_what_most_of_its_segments_are_held_by(bulks: Bulks) -> None:
    job = await bulks.launched(90_000, segments=3)
    assert job.held_by is HeldBy.WORKER
    one, two, three = await bulks.take(want=3)
    for held, by in ((one, HeldBy.HANDLER), (two, HeldBy.WINDOW), (three, HeldBy.WINDOW)):
        await held.write(held.taken.segment.first, held_by=by)
    assert (await bulks.store.bulk.queries.bulk_job(job.id)).held_by is HeldBy.WINDOW
    await bulks.store.bulk.jobs.stop_bulk_job(job.id)
    assert (await bulks.store.bulk.queries.bulk_job(job.id)).held_by is None, "it does not run"


async def test_shares_never_add_up_to_more_than_the_concurrency(bulks: Bulks) -> None:
    job = await bulks.launched(90_000, segments=3, concurrency=8)
    one, two, three = await bulks.take(want=3)
    assert [held.taken.answer.share for held in (one, two, three)] == [3, 3, 2]
    await one.write(30_000)
    await bulks.end(one)
    assert [(await held.write(held.taken.segment.first)).share for held in (two, three)] == [4, 4]
    await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"concurrency": 1})
    assert [(await held.write(held.taken.segment.first)).share for held in (three, two, three)] == [0, 1, 0]
    await bulks.store.bulk.jobs.adjust_bulk_job(job.id, {"concurrency": 5})
    assert [(await held.write(held.taken.segment.first)).share for held in (two, three)] == [3, 2]


# --- splitting --------------------------------------------------------------------------------------


async def test_an_idle_worker_gets_half_of_the_largest_rest(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000, segments=1)
    (held,) = await bulks.take()
    assert (await held.write(100, give_from=550)).end == 1000, "nobody is idle"
    other = await world.session("worker-2", handlers=(HANDLER,))
    answer = await held.write(100, give_from=550)
    assert (answer.end, answer.share) == (550, 32)
    (given,) = await bulks.take(other)
    assert (given.taken.segment.first, given.taken.segment.stop) == (550, 1000)
    assert given.taken.answer.share == 0, "the first has not made room yet"
    assert (await held.write(200, give_from=375)).share == 16
    assert (await held.write(200, give_from=375)).end == 550, "nobody is idle any more"
    assert (await given.write(550)).share == 16
    await held.write(550)
    await given.write(1000)
    await bulks.end(held)
    await bulks.end(given, session=other)
    seen = await bulks.look(job)
    assert (seen.status, seen.ended) == (BulkStatus.FINISHED, 1000)


async def test_the_segments_of_a_job_go_to_different_workers_first(bulks: Bulks, world: World) -> None:
    """Five jobs of three segments for three idle workers: each has one of each."""
    workers = [bulks.session]
    workers += [await world.session(f"worker-{n}", handlers=(HANDLER,)) for n in (2, 3)]
    jobs = [await bulks.launched(999, segments=3) for _ in range(5)]
    taken = {worker: await bulks.take(worker, want=99) for worker in workers}
    for held in taken.values():
        assert sorted(one.taken.job.id for one in held) == [job.id for job in jobs]


async def test_more_segments_than_workers_all_find_one(bulks: Bulks, world: World) -> None:
    other = await world.session("worker-2", handlers=(HANDLER,))
    await bulks.launched(900, segments=9)
    assert [len(await bulks.take(worker, want=99)) for worker in (bulks.session, other)] in ([5, 4], [4, 5])


async def test_only_the_segment_with_the_largest_rest_is_split(bulks: Bulks, world: World) -> None:
    await bulks.launched(1000, segments=2)
    one, two = await bulks.take(want=2)
    await world.session("worker-2", handlers=(HANDLER,))
    await world.session("worker-3", handlers=(HANDLER,))
    await one.write(300)
    assert (await one.write(300, give_from=400)).end == 500
    assert (await two.write(500, give_from=750)).end == 750
    assert (await one.write(300, give_from=400)).end == 500, "a segment waits for a worker already"


async def test_what_was_started_is_never_given_away(bulks: Bulks, world: World) -> None:
    await bulks.launched(1000)
    (held,) = await bulks.take()
    await world.session("worker-2", handlers=(HANDLER,))
    assert (await held.write(100, reached=600, give_from=550)).end == 1000


async def test_a_split_by_a_worker_that_lost_its_segment_does_not_happen(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await world.clock.tick(31)
    await bulks.store.recovery.recover()
    await world.session("worker-2", handlers=(HANDLER,))
    with pytest.raises(LeaseLost):
        await held.write(100, give_from=550)
    assert [(s.first, s.stop) for s in await bulks.segments(job)] == [(0, 1000)]


# --- looking and forgetting -------------------------------------------------------------------------


async def test_done_ranges_of_keys_that_lie_far_apart(bulks: Bulks) -> None:
    job = await bulks.launched(10**15)
    (held,) = await bulks.take()
    done = encode_runs([(5, 6), (10**14, 10**14 + 2)])
    fields = {"reached": 10**14 + 102, "ended": 4, "absent": 99}
    progress = SegmentProgress(checkpoint=Checkpoint(100, done), **fields)
    await bulks.store.bulk.checkpoints.checkpoint(
        held.claimed.id, held.claimed.attempt, job.id, held.number, progress
    )
    found = await bulks.store.bulk.queries.done_ranges(job.id)
    assert found == [(0, 100), (105, 106), (10**14 + 100, 10**14 + 102)]


async def test_done_ranges(bulks: Bulks) -> None:
    job = await bulks.launched(1000, segments=2)
    one, two = await bulks.take(want=2)
    await one.write(400, beyond=(10, 11, 50))
    await two.write(520)
    ranges = await bulks.store.bulk.queries.done_ranges(job.id)
    assert ranges == [(0, 400), (410, 412), (450, 451), (500, 520)]
    await one.write(500)
    assert await bulks.store.bulk.queries.done_ranges(job.id) == [(0, 520)]


async def test_old_jobs_are_forgotten_with_all_that_is_theirs(bulks: Bulks, world: World) -> None:
    done = await bulks.launched(10)
    (held,) = await bulks.take()
    await held.write(10, quarantined=1, new=[bad(3)])
    await bulks.end(held)
    stopped = await bulks.launched(10)
    await bulks.store.bulk.jobs.stop_bulk_job(stopped.id)
    await bulks.aggregate()
    await world.clock.tick(3600)
    await bulks.store.retention.prune(7200, 0, 1000)
    assert (await bulks.look(done)).status is BulkStatus.FINISHED
    await bulks.store.retention.prune(60, 0, 1000)
    with pytest.raises(NotFound):
        await bulks.look(done)
    for table in ("fusee_bulk_quarantine", "fusee_bulk_segments", "fusee_bulk_logs"):
        left = await bulks.store.database.read(
            lambda connection, table=table: connection.exec_driver_sql(  # type: ignore[misc]
                f"SELECT count(*) FROM {table} WHERE job_id = {done.id}"
            ).scalar_one()
        )
        assert left == 0, table
    assert (await bulks.look(stopped)).status is BulkStatus.STOPPED


# --- deleting ---------------------------------------------------------------------------------------


async def test_a_job_at_rest_is_deleted_with_all_that_belongs_to_it(bulks: Bulks) -> None:
    other = await bulks.create(10)
    job = await bulks.launched(10)
    (held,) = await bulks.take()
    await held.write(10, quarantined=1, new=(bad(3),))
    with pytest.raises(Conflict, match="is running: stop it before you delete it"):
        await bulks.store.bulk.jobs.delete_bulk_job(job.id)
    await bulks.end(held)
    job = await bulks.look(job)
    assert job.status is BulkStatus.FINISHED
    with pytest.raises(Conflict, match="at version"):
        await bulks.store.bulk.jobs.delete_bulk_job(job.id, version=job.version + 1)
    await bulks.store.bulk.jobs.delete_bulk_job(job.id, version=job.version)
    for look in (
        bulks.store.bulk.queries.bulk_job,
        bulks.store.bulk.jobs.delete_bulk_job,
        bulks.store.bulk.queries.bulk_logs,
    ):
        with pytest.raises(NotFound):
            await look(job.id)
    assert await bulks.store.bulk.queries.quarantined_count(job.id) == 0
    assert await bulks.store.bulk.queries.done_ranges(job.id) == []
    assert (await bulks.look(other)).id == other.id


async def test_a_job_that_another_one_reads_is_not_deleted(bulks: Bulks) -> None:
    job = await bulks.launched(10)
    (held,) = await bulks.take()
    await held.write(10, quarantined=1, new=(bad(3),))
    await bulks.end(held)
    source = {"kind": "quarantine", "job": job.id, "source": dict(job.spec.source)}
    again, _ = await bulks.store.bulk.creation.create_bulk_job(
        BulkSpec(name="again", business="mail", source=source)
    )
    with pytest.raises(Conflict, match=f"bulk job {again.id} reads the items of bulk job {job.id}"):
        await bulks.store.bulk.jobs.delete_bulk_job(job.id)
    await bulks.store.bulk.jobs.delete_bulk_job(again.id)
    await bulks.store.bulk.jobs.delete_bulk_job(job.id)
