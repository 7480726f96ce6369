"""Forgetting old bulk jobs."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, select

from fusee.bulk.store.tables import bulk_jobs, bulk_logs, bulk_quarantine, bulk_segments
from fusee.engine.store.context import StoreContext

__all__ = ["BulkRetention"]

MOST_AT_ONCE = 50
ROWS_AT_ONCE = 5000


class BulkRetention:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def forget_bulk_jobs(self, connection: Connection, cutoff: int) -> int:
        """Jobs that finished or failed before `cutoff`; a large quarantine goes in portions, its job last.

        A stopped job is kept: someone may go on with it."""
        query = (
            select(bulk_jobs.c.id)
            .where(bulk_jobs.c.finished_at < cutoff)
            .order_by(bulk_jobs.c.finished_at)
            .limit(MOST_AT_ONCE)
        )
        forgotten = 0
        for job_id in list(connection.execute(query).scalars()):
            last = (
                select(bulk_quarantine.c.item_index)
                .where(bulk_quarantine.c.job_id == job_id)
                .order_by(bulk_quarantine.c.item_index)
                .limit(ROWS_AT_ONCE)
                .subquery()
            )
            upto = connection.execute(select(func.max(last.c.item_index))).scalar_one()
            if upto is not None:
                part = (bulk_quarantine.c.job_id == job_id, bulk_quarantine.c.item_index <= upto)
                if connection.execute(delete(bulk_quarantine).where(*part)).rowcount >= ROWS_AT_ONCE:
                    break
            for table in (bulk_segments, bulk_logs):
                connection.execute(delete(table).where(table.c.job_id == job_id))
            connection.execute(delete(bulk_jobs).where(bulk_jobs.c.id == job_id))
            forgotten += 1
        return forgotten
