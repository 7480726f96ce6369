"""Forgetting tasks that were deleted and backfills that are done; what is under way keeps what it needs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, exists, select

from fusee.engine.store.context import StoreContext
from fusee.tasks.store.tables import backfills, fires, tasks

__all__ = ["TaskRetention"]


class TaskRetention:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def of_no_open_fire(self, connection: Connection, run_ids: Sequence[int]) -> list[int]:
        """Those that may be forgotten: not a shard of a fire that goes on, or that nobody has closed yet."""
        if not run_ids:
            return []
        kept = select(fires.c.run_id).where(fires.c.run_id.in_(run_ids), fires.c.open_task.is_not(None))
        needed = set(connection.execute(kept).scalars())
        return [run_id for run_id in run_ids if run_id not in needed]

    def forget_tasks(self, connection: Connection, cutoff: int) -> None:
        under_way = exists().where(fires.c.open_task == tasks.c.id)
        connection.execute(delete(tasks).where(tasks.c.deleted_at < cutoff, ~under_way))
        # A backfill of many fires may take long: without its row nothing would let the next one go.
        to_come = exists().where(
            fires.c.open_task == backfills.c.task_id, fires.c.backfill_id == backfills.c.id
        )
        connection.execute(delete(backfills).where(backfills.c.created_at < cutoff, ~to_come))
