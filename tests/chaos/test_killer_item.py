"""An item that ends the process of its worker, again and again: real workers, each started anew."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from fusee.bulk.model.job import BulkStatus
from tests.chaos.bulk_crew import KILLER
from tests.chaos.test_bulk_kills import crew_of


async def test_an_item_that_kills_its_worker_is_quarantined_and_the_job_finishes(
    database_url: str, tmp_path: Path
) -> None:
    async with crew_of(database_url, tmp_path, workers=1) as crew:
        jobs = crew.app.bulk_jobs
        fields = {"name": "deadly", "business": "deadly", "source": 2 * KILLER, "concurrency": 8}
        job, _ = await jobs.create(fields, start=True)
        deaths, deadline = 0, time.monotonic() + 240
        while (job := await jobs.get(job.id)).status is BulkStatus.RUNNING:
            assert time.monotonic() < deadline, f"never ended after {deaths} deaths: {job}"
            if not [one for one in crew.of("worker") if one.process.poll() is None]:
                deaths += 1
                assert deaths <= 3, job
                crew.start("worker")
            await asyncio.sleep(0.05)
        bad = await jobs.quarantine(job.id)
    assert (job.status, job.done) == (BulkStatus.FINISHED, 2 * KILLER - 1)
    assert [(item.index, item.attempts) for item in bad] == [(KILLER, 3)]
    assert deaths == 3
