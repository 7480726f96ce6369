"""Reading bulk jobs: the job, its segments, its quarantine, its logs, and which items are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, case, func, select

from fusee.bulk.model.done_map import done_runs
from fusee.bulk.model.job import BulkJob, BulkLoad, BulkLog, BulkStatus, Quarantined
from fusee.bulk.model.segment import Segment
from fusee.bulk.store.rows import (
    SPEED_HOLDS,
    checkpoint_of,
    held_by_from,
    job_from,
    log_from,
    quarantined_from,
    segment_from,
)
from fusee.bulk.store.tables import bulk_jobs, bulk_logs, bulk_quarantine, bulk_segments
from fusee.engine.store.context import StoreContext
from fusee.errors import NotFound

__all__ = ["BulkFilter", "BulkQueries"]


NOT_OVER = (
    BulkStatus.CREATED,
    BulkStatus.WAITING_BUSINESS,
    BulkStatus.RUNNING,
    BulkStatus.STOPPING,
    BulkStatus.STOPPED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFilter:
    """Which jobs to list; newest first, with ids below `before` if it is given."""

    status: Sequence[BulkStatus] = ()
    business: str | None = None
    name: str | None = None
    before: int | None = None
    limit: int = 50


class BulkQueries:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def no_bulk(self, job_id: int) -> NotFound:
        return NotFound(f"no bulk job {job_id} in namespace {self.context.namespace!r}")

    async def bulk_job(self, job_id: int) -> BulkJob:
        query = self._bulk_jobs_now().where(bulk_jobs.c.id == job_id)
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise self.no_bulk(job_id)
        return job_from(row)

    def _bulk_jobs_now(self) -> Select[Any]:
        """Selects jobs with the time of the read, which decides whether their speed is still valid."""
        asked_at = self.context.database.now.label("asked_at")
        return select(bulk_jobs, asked_at).where(bulk_jobs.c.namespace == self.context.namespace)

    async def bulk_jobs(self, wanted: BulkFilter) -> list[BulkJob]:
        query = self._bulk_jobs_now()
        if wanted.status:
            query = query.where(bulk_jobs.c.status.in_(wanted.status))
        if wanted.business is not None:
            query = query.where(bulk_jobs.c.business == wanted.business)
        if wanted.name is not None:
            query = query.where(bulk_jobs.c.name == wanted.name)
        if wanted.before is not None:
            query = query.where(bulk_jobs.c.id < wanted.before)
        query = query.order_by(bulk_jobs.c.id.desc())
        return await self.context.page(
            query, wanted.limit, lambda last: bulk_jobs.c.id < last.id, "bulk job", job_from
        )

    async def bulk_loads(self) -> list[BulkLoad]:
        """Counts the jobs that are not over by business, state, and what keeps them from starting more
        items."""
        runs = bulk_jobs.c.status == BulkStatus.RUNNING
        holds = bulk_jobs.c.speed_at >= self.context.database.now - SPEED_HOLDS
        places = func.coalesce(bulk_jobs.c.total, 0) - bulk_jobs.c.ended
        left = bulk_jobs.c.item_count - bulk_jobs.c.ended + bulk_jobs.c.absent
        uncounted = bulk_jobs.c.item_count.is_(None)
        items = case((uncounted, places), (left < 0, 0), (left < places, left), else_=places)
        rest = case((runs, items), else_=0)
        query = (
            select(
                bulk_jobs.c.business,
                bulk_jobs.c.status,
                case((runs, bulk_jobs.c.held_by)).label("held_by"),
                func.count().label("jobs"),
                func.sum(rest).label("rest"),
                func.sum(case((and_(runs, bulk_jobs.c.stalled_at.is_not(None)), 1), else_=0)).label(
                    "stalled"
                ),
                func.sum(case((and_(runs, holds), bulk_jobs.c.speed), else_=0.0)).label("speed"),
            )
            .where(bulk_jobs.c.namespace == self.context.namespace, bulk_jobs.c.status.in_(NOT_OVER))
            .group_by(bulk_jobs.c.business, bulk_jobs.c.status, case((runs, bulk_jobs.c.held_by)))
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [
            BulkLoad(
                business=row.business,
                status=BulkStatus(row.status),
                jobs=int(row.jobs),
                left=max(0, int(row.rest)),
                speed=float(row.speed),
                held_by=held_by_from(row.held_by),
                stalled=int(row.stalled),
            )
            for row in rows
        ]

    async def bulk_segments(self, job_id: int) -> list[Segment]:
        await self.bulk_job(job_id)
        query = select(bulk_segments).where(bulk_segments.c.job_id == job_id).order_by(bulk_segments.c.first)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [segment_from(row) for row in rows]

    async def bulk_quarantine(self, job_id: int, *, after: int = -1, limit: int = 100) -> list[Quarantined]:
        """Returns a page of quarantined items, by their place in this job, after `after`."""
        await self.bulk_job(job_id)
        query = (
            select(bulk_quarantine)
            .where(bulk_quarantine.c.job_id == job_id, bulk_quarantine.c.item_index > after)
            .order_by(bulk_quarantine.c.item_index)
            .limit(limit)
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [quarantined_from(row) for row in rows]

    async def quarantined_indexes(self, job_id: int, offset: int, limit: int) -> list[int]:
        """Returns the indexes at these positions among the quarantined items, in order."""
        query = (
            select(bulk_quarantine.c.item_index)
            .where(bulk_quarantine.c.job_id == job_id)
            .order_by(bulk_quarantine.c.item_index)
            .offset(offset)
            .limit(limit)
        )
        return list(
            await self.context.database.read(lambda connection: connection.execute(query).scalars().all())
        )

    async def quarantined_count(self, job_id: int) -> int:
        query = select(func.count()).where(bulk_quarantine.c.job_id == job_id)
        return int(
            await self.context.database.read(lambda connection: connection.execute(query).scalar_one())
        )

    async def bulk_logs(
        self, job_id: int, *, kind: str | None = None, after: int = 0, limit: int = 100
    ) -> list[BulkLog]:
        await self.bulk_job(job_id)
        query = select(bulk_logs).where(bulk_logs.c.job_id == job_id, bulk_logs.c.id > after)
        if kind is not None:
            query = query.where(bulk_logs.c.kind == kind)
        query = query.order_by(bulk_logs.c.id).limit(limit)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [log_from(row) for row in rows]

    async def done_ranges(self, job_id: int) -> list[tuple[int, int]]:
        """Returns ranges of items that ended, including quarantined ones, by index."""
        query = select(bulk_segments).where(bulk_segments.c.job_id == job_id).order_by(bulk_segments.c.first)
        found: list[tuple[int, int]] = []

        def add(first: int, end: int) -> None:
            if first == end:
                return
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], end)
            else:
                found.append((first, end))

        for row in await self.context.database.read(lambda connection: connection.execute(query).all()):
            add(row.first, row.watermark)
            for first, end in done_runs(checkpoint_of(row).done):
                add(row.watermark + first, row.watermark + end)
        return found
