"""Tasks whose fires are bulk jobs: the handler `fusee.bulk`."""

from __future__ import annotations

from collections import Counter

from fusee import Fusee
from fusee.bulk.model.job import BulkStatus
from fusee.config import load
from fusee.engine.store.runs import RunFilter
from fusee.testing import TestKit


def counting_app(seen: Counter[int]) -> Fusee:
    app = Fusee(config=load(env={}, overrides={"database": {"url": "sqlite://"}}))
    app.bulk_server.beat = 0.05

    @app.bulk("count", item_attempts=1, error_budget=0)
    async def count(item: int) -> None:
        if item >= 100:
            raise ValueError("too many")
        seen[item] += 1

    return app


JOB = {"name": "nightly count", "business": "count", "source": 10}


async def test_a_fire_starts_a_bulk_job_and_ends_with_it() -> None:
    seen = Counter[int]()
    app = counting_app(seen)
    async with TestKit(app) as kit:
        await app.tasks.create(
            {
                "name": "nightly",
                "every": 60,
                "handler": "fusee.bulk",
                "payload": {"job": JOB, "data": {"v": 1}},
            }
        )
        for fires in (1, 2):
            kit.clock.tick(seconds=60)
            await kit.run_until_idle()
            jobs = await app.bulk_jobs.list()
            assert [job.status for job in jobs] == [BulkStatus.FINISHED] * fires, (
                "each fire is a job of its own"
            )
        assert seen == Counter(dict.fromkeys(range(10), 2))
        assert jobs[0].data == {"v": 1}
        run, first = await app.runs.list(RunFilter(handler="fusee.bulk"))
        whole = await kit.run(run.id)
        assert (whole.status, whole.task) == ("succeeded", "nightly")
        assert whole.result == {
            "bulk_job_id": jobs[0].id,
            "status": "finished",
            "ended": 10,
            "quarantined": 0,
        }
        assert first.id != run.id
        (created, *_) = await app.bulk_jobs.logs(jobs[0].id)
        assert created.who == f"run {run.id}"


async def test_a_job_that_fails_fails_the_fire_and_it_is_not_retried() -> None:
    app = counting_app(Counter())
    async with TestKit(app) as kit:
        await app.tasks.create(
            {
                "name": "nightly",
                "handler": "fusee.bulk",
                "payload": {"job": {**JOB, "source": 101}},
                "retry": {"max_attempts": 3, "base": 0},
            }
        )
        fired = await app.tasks.trigger("nightly")
        await kit.run_until_idle()
        (job,) = await app.bulk_jobs.list()
        run = await kit.run(fired.run_ids[0])
        assert (job.status, run.status) == (BulkStatus.FAILED, "failed")
        assert run.error is not None and "error budget" in run.error
