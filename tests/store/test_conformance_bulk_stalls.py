"""A bulk job that ends no item though items are under way is noticed, and forgotten when it moves."""

from __future__ import annotations

import pytest
import pytest_asyncio

from fusee.app.stalls import Stalls
from fusee.engine.store.runs import RunFilter
from fusee.events import BulkJobsStalled, Bus
from fusee.observe.health import Health
from tests.store.bulks import Bulks
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def bulks(world: World) -> Bulks:
    return await Bulks.begin(world)


async def beat(world: World, seconds: float, session: int) -> None:
    """Time passes, and the worker is alive."""
    for _ in range(int(seconds // 10)):
        await world.clock.tick(10)
        await world.store.sessions.renew(session, 30.0, 1)


async def test_a_job_that_ends_no_item_has_stalled_until_one_ends(bulks: Bulks, world: World) -> None:
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(10, reached=12)
    await beat(world, 290, bulks.session)
    await held.write(10, reached=12)
    assert await bulks.store.bulk.stalls.stalled_bulk_jobs(300) == []
    await beat(world, 20, bulks.session)
    (found,) = await bulks.store.bulk.stalls.stalled_bulk_jobs(300)
    assert (found.job_id, found.business, found.new) == (job.id, "mail", True) and found.seconds >= 300
    (again,) = await bulks.store.bulk.stalls.stalled_bulk_jobs(300)
    assert not again.new
    seen = await bulks.look(job)
    assert seen.stalled_since is not None and seen.stalled_since < seen.updated_at
    assert [load.stalled for load in await bulks.store.bulk.queries.bulk_loads()] == [1]
    await held.write(10, reached=12)
    assert (await bulks.look(job)).stalled_since is not None
    await held.write(11, reached=12)
    assert (await bulks.look(job)).stalled_since is None
    assert await bulks.store.bulk.stalls.stalled_bulk_jobs(300) == []
    logs = await bulks.store.bulk.queries.bulk_logs(job.id)
    assert sum("stalled: no item has ended for" in line.text for line in logs) == 1


async def test_a_job_with_nothing_under_way_has_not_stalled(bulks: Bulks, world: World) -> None:
    await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(10)
    await beat(world, 600, bulks.session)
    await held.write(10)
    await beat(world, 10, bulks.session)
    assert await bulks.store.bulk.stalls.stalled_bulk_jobs(300) == []


async def test_a_job_whose_worker_is_gone_has_not_stalled(bulks: Bulks, world: World) -> None:
    await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(10, reached=12)
    await world.clock.tick(600)
    await bulks.store.recovery.recover()
    assert await bulks.store.bulk.stalls.stalled_bulk_jobs(300) == []


async def test_it_is_told_of_once_in_the_log_the_readiness_and_to_the_webhook(
    bulks: Bulks, world: World
) -> None:
    bus, told = Bus(), list[BulkJobsStalled]()
    bus.subscribe(BulkJobsStalled, told.append)

    async def ping() -> None: ...

    async def revision() -> tuple[str, str]:
        return ("1", "1")

    health = Health(bus, ping=ping, revision=revision)
    job = await bulks.launched(1000)
    (held,) = await bulks.take()
    await held.write(10, reached=12)
    await beat(world, 310, bulks.session)
    stalls = Stalls(world.store, bus, after=300, webhook="https://ops.example/alert")
    await stalls.run_once()
    await stalls.run_once()
    assert [[one.new for one in event.jobs] for event in told] == [[True], [False]]
    assert health.warnings("default") == [f"bulk job {job.id} has stalled: no item has ended for 310 s"]
    assert health.warnings("other") == []
    assert health.warnings() and "1 bulk job has stalled" in health.warnings()[0]
    alerts = [run for run in await world.store.runs.runs(RunFilter()) if run.queue == "fusee.alerts"]
    assert len(alerts) == 1
    await held.write(11, reached=12)
    await stalls.run_once()
    assert health.warnings("default") == []


async def test_a_job_tells_its_own_webhook_that_it_stalled_and_that_it_failed(
    bulks: Bulks, world: World
) -> None:
    hook = "https://ops.example/bulk"

    async def told() -> list[str]:
        listed = [run for run in await world.store.runs.runs(RunFilter()) if run.queue == "fusee.alerts"]
        runs = [await world.store.runs.run(run.id) for run in listed]
        assert all(run.payload["url"] == hook for run in runs)
        return sorted(run.payload["body"]["event"] for run in runs)

    job = await bulks.launched(1000, alerts={"webhook": hook})
    assert job.spec.alerts is not None and job.spec.alerts.webhook == hook
    (held,) = await bulks.take()
    await held.write(10, reached=12)
    await beat(world, 310, bulks.session)
    await bulks.store.bulk.stalls.stalled_bulk_jobs(300)
    await bulks.store.bulk.stalls.stalled_bulk_jobs(300)
    assert await told() == ["bulk_job_stalled"]
    await bulks.fail(held, "no luck")
    assert (await bulks.look(job)).status == "failed"
    assert await told() == ["bulk_job_failed", "bulk_job_stalled"]


async def test_a_job_tells_only_what_it_was_asked_to_tell(bulks: Bulks, world: World) -> None:
    quiet = {"webhook": "https://ops.example/bulk", "on_failure": False, "on_stalled": False}
    await bulks.launched(1000, alerts=quiet)
    (held,) = await bulks.take()
    await bulks.fail(held, "no luck")
    assert [run for run in await world.store.runs.runs(RunFilter()) if run.queue == "fusee.alerts"] == []


@pytest.mark.parametrize(
    "wrong", ["ftp://x", 5, {"webhook": "x"}, {"url": "https://x"}, {"webhook": "https://x", "on_failure": 1}]
)
async def test_alerts_that_make_no_sense_are_refused(bulks: Bulks, wrong: object) -> None:
    with pytest.raises(ValueError, match="alerts"):
        await bulks.create(alerts=wrong)
