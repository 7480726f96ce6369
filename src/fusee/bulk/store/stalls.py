"""Bulk jobs that run and end no item, although items are in progress."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from fusee.bulk.model.job import BulkStatus, StalledJob
from fusee.bulk.model.segment import SegmentState
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.tables import bulk_jobs, bulk_segments
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import runs

__all__ = ["BulkStalls"]


class BulkStalls:
    def __init__(self, context: StoreContext, moves: BulkMoves) -> None:
        self.context = context
        self.moves = moves

    async def stalled_bulk_jobs(self, after: float) -> list[StalledJob]:
        """Returns the jobs of all namespaces that have ended no item for `after` seconds. `new` is true for
        each of them once, whichever dispatcher asks."""

        def look(connection: Connection) -> list[StalledJob]:
            running = bulk_jobs.c.status == BulkStatus.RUNNING
            now = self.context.now(connection)
            under_way = (
                select(bulk_segments.c.number)
                .join(runs, runs.c.id == bulk_segments.c.run_id)
                .where(
                    bulk_segments.c.job_id == bulk_jobs.c.id,
                    bulk_segments.c.state == SegmentState.OPEN,
                    bulk_segments.c.reached - bulk_segments.c.first > bulk_segments.c.ended,
                    runs.c.status == RunStatus.RUNNING,
                )
                .exists()
            )
            query = (
                select(
                    bulk_jobs.c.id,
                    bulk_jobs.c.namespace,
                    bulk_jobs.c.business,
                    bulk_jobs.c.progressed_at,
                    bulk_jobs.c.stalled_at,
                )
                .where(running, bulk_jobs.c.progressed_at > 0)
                .where(bulk_jobs.c.progressed_at <= now - round(after * 1_000_000), under_way)
                .order_by(bulk_jobs.c.id)
            )
            return [
                StalledJob(
                    job_id=row.id,
                    namespace=row.namespace,
                    business=row.business,
                    seconds=(now - row.progressed_at) / 1_000_000,
                    new=row.stalled_at is None,
                )
                for row in connection.execute(query)
            ]

        def mark(connection: Connection) -> set[int]:
            now = self.context.now(connection)
            told: set[int] = set()
            for job_id in sorted(one.job_id for one in found if one.new):
                job = self.moves.bulk_row(connection, job_id, any_namespace=True)
                if job is None or job.status != BulkStatus.RUNNING or job.stalled_at is not None:
                    continue
                if now - job.progressed_at < after * 1_000_000:
                    continue
                mine = update(bulk_jobs).where(bulk_jobs.c.id == job_id, bulk_jobs.c.stalled_at.is_(None))
                if connection.execute(mine.values(stalled_at=now)).rowcount == 1:
                    seconds = (now - job.progressed_at) // 1_000_000
                    text = f"stalled: no item has ended for {seconds} s although items are in progress"
                    self.moves.bulk_note(connection, job_id, "operator", "", text, now)
                    facts = {"seconds": seconds, "ended": job.ended, "total": job.total}
                    self.moves.bulk_alarm(connection, job, "bulk_job_stalled", facts, now)
                    told.add(job_id)
            return told

        found = await self.context.database.read(look)
        if not any(one.new for one in found):
            return found
        told = await self.context.database.write(mark)
        return [one._replace(new=one.job_id in told) for one in found]
