"""The registry of businesses over HTTP, and where the items of a quarantine came from: on every database."""

from __future__ import annotations

import asyncio

import pytest

from fusee.errors import Conflict, NotFound
from fusee.model.bulk import HTTP_HANDLER, BulkSpec, BulkStatus, Quarantined
from fusee.model.business import HttpBusiness
from fusee.store import BulkFilter
from tests.store.bulks import Bulks
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

CRM = HttpBusiness(name="crm", item="https://crm.example/mail", headers={"X-Key": "k"}, defaults={"rate": 5})


async def test_a_business_is_registered_changed_and_deleted(world: World) -> None:
    made = await world.store.register_business(CRM)
    assert (made.spec, made.version, made.namespace) == (CRM, 1, world.store.namespace)
    with pytest.raises(Conflict, match="already"):
        await world.store.register_business(CRM)
    same = await world.store.update_business("crm", CRM, version=1)
    assert same.version == 1, "an equal definition changes nothing"
    other = HttpBusiness(name="crm", chunk="https://crm.example/many")
    assert (await world.store.update_business("crm", other, version=1)).version == 2
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await world.store.update_business("crm", CRM, version=1)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await world.store.delete_business("crm", version=1)
    await world.store.delete_business("crm", version=2)
    assert await world.store.business("crm") is None
    with pytest.raises(NotFound, match="no business 'crm'"):
        await world.store.delete_business("crm")


async def test_a_tenant_sees_its_own_businesses_by_name(world: World) -> None:
    for name in ("b", "a", "c"):
        await world.store.register_business(HttpBusiness(name=name, item="https://crm.example"))
    theirs = world.store.for_namespace("other")
    await theirs.register_business(HttpBusiness(name="a", item="https://other.example"))
    assert [one.spec.name for one in await world.store.registered_businesses()] == ["a", "b", "c"]
    page = await world.store.registered_businesses(after="a", limit=1)
    assert [one.spec.name for one in page] == ["b"]
    assert [one.spec.item for one in await theirs.registered_businesses()] == ["https://other.example"]
    assert await theirs.business("b") is None


async def test_one_of_many_that_register_a_name_at_once_gets_it(world: World) -> None:
    tries = await asyncio.gather(
        *(world.store.register_business(CRM) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(one, Conflict) for one in tries) == 3
    assert [one.spec.name for one in await world.store.registered_businesses()] == ["crm"]


async def test_the_jobs_of_a_registered_business_are_served_by_the_built_in_handler(world: World) -> None:
    await world.store.register_business(CRM)
    spec = BulkSpec(name="j", business="crm", source={"kind": "range", "stop": 10})
    job, _ = await world.store.create_bulk_job(spec)
    await world.store.start_bulk_job(job.id)
    other = await world.session(handlers=("bulk.crm",))
    assert await world.claim(other, 1, lanes=await world.lane_ids(handler="bulk.crm")) == []
    session = await world.session(handlers=(HTTP_HANDLER,))
    (claimed,) = await world.claim(session, 1, lanes=await world.lane_ids(handler=HTTP_HANDLER))
    assert await world.store.launch_bulk_job(claimed.id, claimed.attempt, job.id, (0, 10), ())
    (segment,) = await world.store.bulk_segments(job.id)
    assert (await world.store.run(segment.run_id or 0)).handler == HTTP_HANDLER


async def test_a_business_in_use_stays_and_a_name_in_use_is_not_taken_over(world: World) -> None:
    await world.store.register_business(CRM)
    spec = BulkSpec(name="j", business="crm", source={"kind": "range", "stop": 10})
    job, _ = await world.store.create_bulk_job(spec)
    with pytest.raises(Conflict, match=f"is in use: bulk job {job.id} is created"):
        await world.store.delete_business("crm")
    python = BulkSpec(name="j", business="mail", source={"kind": "range", "stop": 10})
    await world.store.create_bulk_job(python)
    with pytest.raises(Conflict, match="is served by workers"):
        await world.store.register_business(HttpBusiness(name="mail", item="https://crm.example"))
    await world.store.for_namespace("other").register_business(
        HttpBusiness(name="mail", item="https://crm.example")
    )


async def test_an_item_of_another_job_is_quarantined_with_the_index_that_it_has_there(world: World) -> None:
    bulks = await Bulks.begin(world)
    job = await bulks.launched(items=3)
    (held,) = await bulks.take()
    moved = Quarantined(index=4711, position=1, error="no", attempts=3)
    await held.write(2, quarantined=1, new=(moved,))
    await held.write(2, quarantined=1, new=(moved,))
    (found,) = await world.store.bulk_quarantine(job.id)
    assert (found.index, found.position, found.place) == (4711, 1, 1)
    assert await world.store.quarantined_indexes(job.id, 0, 10) == [1], "sources go by the place in this job"
    assert await world.store.bulk_quarantine(job.id, after=1) == []


async def test_jobs_are_found_by_name(world: World) -> None:
    bulks = await Bulks.begin(world)
    for name in ("a", "b", "a"):
        await bulks.create(name=name)
    found = await world.store.bulk_jobs(BulkFilter(name="a", status=[BulkStatus.CREATED]))
    assert [job.spec.name for job in found] == ["a", "a"]
