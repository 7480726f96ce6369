"""Deleting a bulk job that is at rest, with all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, or_, select

from fusee.bulk.model.job import BulkStatus
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.queries import BulkQueries
from fusee.bulk.store.tables import bulk_jobs, bulk_logs, bulk_quarantine, bulk_segments
from fusee.engine.model.states import TERMINAL
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode
from fusee.errors import Conflict

__all__ = ["BulkDeletes"]

AT_REST = (BulkStatus.CREATED, BulkStatus.STOPPED, BulkStatus.FINISHED, BulkStatus.FAILED)


class BulkDeletes:
    def __init__(self, context: StoreContext, moves: BulkMoves, queries: BulkQueries) -> None:
        self.context = context
        self.moves = moves
        self.queries = queries

    async def delete_bulk_job(self, job_id: int, version: int | None = None) -> None:
        """Delete it with its segments, its quarantine and its logs. `Conflict` while it is not at rest, while
        a run waits for it, and while an unfinished job undoes it or runs its quarantine again."""

        def work(connection: Connection) -> None:
            job = self.moves.bulk_row(connection, job_id)
            if job is None:
                raise self.queries.no_bulk(job_id)
            if version is not None and job.version != version:
                raise Conflict(
                    f"bulk job {job_id} is at version {job.version}, not {version}: look at it again"
                )
            if job.status not in AT_REST:
                raise Conflict(f"bulk job {job_id} is {job.status}: stop it before you delete it")
            if job.checker is not None and job.checking in ("wait", "start"):
                raise Conflict(f"bulk job {job_id} is being checked by its business: delete it after that")
            if job.parent_run is not None:
                parent = self.moves.run_of(connection, job.parent_run)
                if parent is not None and parent.status not in TERMINAL:
                    raise Conflict(
                        f"run {job.parent_run} waits for bulk job {job_id}: let it end, or cancel it"
                    )
            needed_by = self._reader_of(connection, job_id)
            if needed_by is not None:
                raise Conflict(
                    f"bulk job {needed_by} reads the items of bulk job {job_id}: let it finish, or delete it"
                    " first"
                )
            for table in (bulk_quarantine, bulk_segments, bulk_logs):
                connection.execute(delete(table).where(table.c.job_id == job_id))
            connection.execute(delete(bulk_jobs).where(bulk_jobs.c.id == job_id))

        await self.context.database.write(work)

    def _reader_of(self, connection: Connection, job_id: int) -> int | None:
        """An unfinished job over items of this one."""
        derived = or_(bulk_jobs.c.undo_of == job_id, bulk_jobs.c.source.like('%"quarantine"%'))
        query = (
            select(bulk_jobs.c.id, bulk_jobs.c.source)
            .where(bulk_jobs.c.namespace == self.context.namespace, bulk_jobs.c.id > job_id)
            .where(bulk_jobs.c.status != BulkStatus.FINISHED, derived)
            .order_by(bulk_jobs.c.id)
        )
        for row in connection.execute(query):
            if _reads(decode(row.source), job_id):
                return int(row.id)
        return None


def _reads(source: Any, job_id: int) -> bool:
    if not isinstance(source, Mapping):
        return False
    if source.get("kind") in ("quarantine", "done") and source.get("job") == job_id:
        return True
    return _reads(source.get("source"), job_id)
