"""A platform with a quick beat, for the tests of bulk jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fusee import Fusee
from fusee.bulk.model.job import BulkJob
from fusee.config import load

__all__ = ["at_rest", "bulk_app", "seen_in", "working"]

RESTS = ("stopped", "finished", "failed", "waiting_business")


def bulk_app(folder: Path, *, beat: float = 0.05, **sections: Any) -> Fusee:
    url = f"sqlite:///{folder}/fusee.db"
    worker = {"poll_interval": 0.05, "heartbeat_interval_seconds": 0.3, "lease_ttl": 30.0, "grace": 0.5}
    dispatcher = {"recover_interval": 0.1, "schedule_interval_seconds": 0.05}
    overrides = {
        "database": {"url": url},
        "worker": {**worker, **sections.pop("worker", {})},
        "dispatcher": dispatcher,
        **sections,
    }
    app = Fusee(config=load(env={}, overrides=overrides))
    app.bulk_server.beat = beat
    app.bulk_server.drain = 2.0
    return app


@asynccontextmanager
async def working(app: Fusee, workers: int = 1) -> AsyncIterator[Fusee]:
    """So many workers in this process, and a dispatcher."""
    async with app.running(worker=workers > 0):
        more = [app.worker() for _ in range(workers - 1)]
        tasks = [asyncio.create_task(worker.run()) for worker in more]
        try:
            yield app
        finally:
            for worker in more:
                worker.stop()
            await asyncio.gather(*tasks)


async def seen_in(
    app: Fusee, job: BulkJob, condition: Callable[[BulkJob], bool], seconds: float = 20.0
) -> BulkJob:
    """The job, as soon as the condition holds for it."""
    async with asyncio.timeout(seconds):
        while not condition(seen := await app.bulk_jobs.get(job.id)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return seen


async def at_rest(app: Fusee, job: BulkJob, seconds: float = 20.0) -> BulkJob:
    return await seen_in(app, job, lambda seen: seen.status in RESTS, seconds)
