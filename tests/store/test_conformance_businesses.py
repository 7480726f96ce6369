"""Businesses over HTTP, where quarantined items came from, what is told of bulk jobs: on every database."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fusee.bulk.business import HttpBusiness
from fusee.bulk.model.job import HTTP_HANDLER, BulkJob, BulkStatus, Quarantined
from fusee.bulk.model.segment import Found
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.store.queries import BulkFilter
from fusee.engine.model.run import Claimed
from fusee.errors import Conflict, NotFound
from fusee.events import BulkJobRested, Event
from tests.store.bulks import HANDLER, Bulks
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

CRM = HttpBusiness(name="crm", item="https://crm.example/mail", headers={"X-Key": "k"}, defaults={"rate": 5})


async def test_a_business_is_registered_changed_and_deleted(world: World) -> None:
    made = await world.store.bulk.businesses.register_business(CRM)
    assert (made.spec, made.version, made.namespace) == (CRM, 1, world.store.namespace)
    with pytest.raises(Conflict, match="already"):
        await world.store.bulk.businesses.register_business(CRM)
    same = await world.store.bulk.businesses.update_business("crm", CRM, version=1)
    assert same.version == 1, "an equal definition changes nothing"
    other = HttpBusiness(name="crm", chunk="https://crm.example/many")
    assert (await world.store.bulk.businesses.update_business("crm", other, version=1)).version == 2
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await world.store.bulk.businesses.update_business("crm", CRM, version=1)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await world.store.bulk.businesses.delete_business("crm", version=1)
    await world.store.bulk.businesses.delete_business("crm", version=2)
    assert await world.store.bulk.businesses.business("crm") is None
    with pytest.raises(NotFound, match="no business 'crm'"):
        await world.store.bulk.businesses.delete_business("crm")


async def test_a_tenant_sees_its_own_businesses_by_name(world: World) -> None:
    for name in ("b", "a", "c"):
        await world.store.bulk.businesses.register_business(
            HttpBusiness(name=name, item="https://crm.example")
        )
    theirs = world.store.for_namespace("other")
    await theirs.bulk.businesses.register_business(HttpBusiness(name="a", item="https://other.example"))
    assert [one.spec.name for one in await world.store.bulk.businesses.registered_businesses()] == [
        "a",
        "b",
        "c",
    ]
    page = await world.store.bulk.businesses.registered_businesses(after="a", limit=1)
    assert [one.spec.name for one in page] == ["b"]
    assert [one.spec.item for one in await theirs.bulk.businesses.registered_businesses()] == [
        "https://other.example"
    ]
    assert await theirs.bulk.businesses.business("b") is None


async def test_one_of_many_that_register_a_name_at_once_gets_it(world: World) -> None:
    tries = await asyncio.gather(
        *(world.store.bulk.businesses.register_business(CRM) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(one, Conflict) for one in tries) == 3
    assert [one.spec.name for one in await world.store.bulk.businesses.registered_businesses()] == ["crm"]


async def test_the_jobs_of_a_registered_business_are_served_by_the_built_in_handler(world: World) -> None:
    await world.store.bulk.businesses.register_business(CRM)
    spec = BulkSpec(name="j", business="crm", source={"kind": "range", "stop": 10})
    job, _ = await world.store.bulk.creation.create_bulk_job(spec)
    await world.store.bulk.jobs.start_bulk_job(job.id)
    other = await world.session(handlers=("bulk.crm",))
    assert await world.claim(other, 1, lanes=await world.lane_ids(handler="bulk.crm")) == []
    session = await world.session(handlers=(HTTP_HANDLER,))
    (claimed,) = await world.claim(session, 1, lanes=await world.lane_ids(handler=HTTP_HANDLER))
    assert await world.store.bulk.launches.launch_bulk_job(
        claimed.id, claimed.attempt, job.id, Found(0, 10), ()
    )
    (segment,) = await world.store.bulk.queries.bulk_segments(job.id)
    assert (await world.store.runs.run(segment.run_id or 0)).handler == HTTP_HANDLER


async def test_a_business_in_use_stays_and_a_name_in_use_is_not_taken_over(world: World) -> None:
    await world.store.bulk.businesses.register_business(CRM)
    spec = BulkSpec(name="j", business="crm", source={"kind": "range", "stop": 10})
    job, _ = await world.store.bulk.creation.create_bulk_job(spec)
    with pytest.raises(Conflict, match=f"is in use: bulk job {job.id} is created"):
        await world.store.bulk.businesses.delete_business("crm")
    python = BulkSpec(name="j", business="mail", source={"kind": "range", "stop": 10})
    await world.store.bulk.creation.create_bulk_job(python)
    with pytest.raises(Conflict, match="is served by workers"):
        await world.store.bulk.businesses.register_business(
            HttpBusiness(name="mail", item="https://crm.example")
        )
    await world.store.for_namespace("other").bulk.businesses.register_business(
        HttpBusiness(name="mail", item="https://crm.example")
    )


async def test_an_item_of_another_job_is_quarantined_with_the_index_that_it_has_there(world: World) -> None:
    bulks = await Bulks.begin(world)
    job = await bulks.launched(items=3)
    (held,) = await bulks.take()
    moved = Quarantined(index=4711, position=1, error="no", attempts=3)
    await held.write(2, quarantined=1, new=(moved,))
    await held.write(2, quarantined=1, new=(moved,))
    (found,) = await world.store.bulk.queries.bulk_quarantine(job.id)
    assert (found.index, found.position, found.place) == (4711, 1, 1)
    assert await world.store.bulk.queries.quarantined_indexes(job.id, 0, 10) == [1], (
        "sources go by the place in this job"
    )
    assert await world.store.bulk.queries.bulk_quarantine(job.id, after=1) == []


async def test_jobs_are_found_by_name(world: World) -> None:
    bulks = await Bulks.begin(world)
    for name in ("a", "b", "a"):
        await bulks.create(name=name)
    found = await world.store.bulk.queries.bulk_jobs(BulkFilter(name="a", status=[BulkStatus.CREATED]))
    assert [job.spec.name for job in found] == ["a", "a"]


# --- what dispatchers and metrics hear --------------------------------------------------------------


async def test_the_aggregator_tells_which_jobs_came_to_rest(world: World) -> None:
    bulks = await Bulks.begin(world)
    job = await bulks.launched(items=3)
    (held,) = await bulks.take()
    await held.write(3)
    assert await world.finish(bulks.session, held.claimed) == []
    told: list[Event] = []
    world.store.context.decisions.tell = told.append
    await world.store.aggregation.aggregate()
    await world.store.aggregation.aggregate()
    assert [
        (rest.job_id, rest.business, rest.status) for rest in told if isinstance(rest, BulkJobRested)
    ] == [(job.id, "mail", BulkStatus.FINISHED)]


async def test_what_is_not_over_is_summed_by_business_and_state(world: World) -> None:
    bulks = await Bulks.begin(world)
    await bulks.create()
    await bulks.launched(items=10)
    (held,) = await bulks.take()
    await world.clock.tick(1)
    await held.write(4)
    loads = {load.status: load for load in await world.store.bulk.queries.bulk_loads()}
    assert set(loads) == {BulkStatus.CREATED, BulkStatus.RUNNING}
    assert (loads[BulkStatus.CREATED].jobs, loads[BulkStatus.CREATED].left) == (1, 0)
    running = loads[BulkStatus.RUNNING]
    assert (running.business, running.jobs, running.left) == ("mail", 1, 6)
    assert 0 < running.speed < 10
    assert await world.store.for_namespace("other").bulk.queries.bulk_loads() == []


# --- how long after its creation a job is gone on with by itself ------------------------------------

DAY = 86400.0


async def crashed(world: World, *, segments: int = 2) -> tuple[Bulks, BulkJob, list[Claimed]]:
    """A job of two days whose worker died with all of its segments; they are in another one's hands."""
    bulks = await Bulks.begin(world)
    job = await bulks.launched(items=100, segments=segments)
    await world.clock.tick(2 * DAY)
    await world.store.recovery.recover()
    dying = await world.session(handlers=(HANDLER,))
    for held in await bulks.take(dying, want=segments):
        await held.write(held.taken.segment.first + 5)
    await world.clock.tick(300)
    assert (await world.store.recovery.recover()).requeued == segments
    bulks.session = await world.session(handlers=(HANDLER,))
    return bulks, job, await world.claim(bulks.session, segments)


async def test_an_old_job_is_not_gone_on_with_after_a_crash(world: World) -> None:
    bulks, job, (first, *_) = await crashed(world, segments=1)
    payload = msgspec.json.decode(first.payload or "")
    taken = await world.store.bulk.checkpoints.take_segment(
        first.id, first.attempt, job.id, payload["segment"], resume_within=DAY
    )
    assert taken.answer.stop
    await world.finish(bulks.session, first)
    await bulks.aggregate()
    job = await bulks.look(job)
    assert (job.status, job.ended) == (BulkStatus.STOPPED, 5)
    assert job.reason is not None and "worker.bulk_resume_within" in job.reason and "1d ago" in job.reason
    logs = await world.store.bulk.queries.bulk_logs(job.id, kind="operator")
    assert "not resumed automatically" in logs[-1].text
    await world.store.bulk.jobs.start_bulk_job(job.id)
    await bulks.launch(job, 100)
    (again,) = await world.claim(bulks.session, 1)
    taken = await world.store.bulk.checkpoints.take_segment(
        again.id, again.attempt, job.id, payload["segment"], resume_within=DAY
    )
    assert not taken.answer.stop, "someone resumed it"
    assert taken.checkpoint.watermark == 5


@pytest.mark.parametrize("within", [0.0, 3 * DAY])
async def test_a_job_that_is_young_enough_goes_on(world: World, within: float) -> None:
    _, job, claimed = await crashed(world)
    for number, run in enumerate(claimed):
        taken = await world.store.bulk.checkpoints.take_segment(
            run.id, run.attempt, job.id, number, resume_within=within
        )
        assert not taken.answer.stop


async def test_an_old_job_that_others_still_work_on_goes_on(world: World) -> None:
    """Two segments are claimed: the one that is taken first finds the other running."""
    _, job, claimed = await crashed(world)
    taken = await world.store.bulk.checkpoints.take_segment(
        claimed[0].id, claimed[0].attempt, job.id, 0, resume_within=DAY
    )
    assert not taken.answer.stop
