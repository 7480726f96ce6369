"""Deleting what is old: finished runs, ended sessions, idempotency keys, and what nouns keep beside them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, select

from fusee.batches.store.tables import batches
from fusee.bulk.store.retention import BulkRetention
from fusee.engine.model.states import SessionState
from fusee.engine.store.broker_tables import openings
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import attempts, callbacks, gates, request_keys, runs, sessions
from fusee.tasks.store.retention import TaskRetention
from fusee.tasks.store.tables import fires, waits
from fusee.workflows.store.retention import WorkflowRetention

__all__ = ["Pruned", "Retention"]


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many finished runs were deleted, and where to go on."""

    count: int
    cursor: int
    workflow_runs: int = 0

    def __bool__(self) -> bool:
        return self.count > 0 or self.cursor > 0 or self.workflow_runs > 0


class Retention:
    def __init__(
        self,
        context: StoreContext,
        tasks_retention: TaskRetention,
        workflows_retention: WorkflowRetention,
        bulk_retention: BulkRetention,
    ) -> None:
        self.context = context
        self.tasks_retention = tasks_retention
        self.workflows_retention = workflows_retention
        self.bulk_retention = bulk_retention

    async def prune(self, older_than: float, cursor: int, batch: int) -> Pruned:
        """Delete one small batch of runs that finished more than `older_than` seconds ago.

        Walks the primary key from `cursor`, so no index on the finish time burdens every run. Ids grow with
        time: a run created after the cutoff ends the walk. The answer's cursor is 0 at the end.
        """

        def work(connection: Connection) -> Pruned:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            # What a target's runs did is needed for as long as its batch can be rolled back.
            owner = and_(runs.c.kind == "batch", batches.c.id == runs.c.owner_id)
            query = (
                select(runs.c.id, runs.c.created_at, runs.c.finished_at, batches.c.id.label("batch_id"))
                .outerjoin(batches, owner)
                .where(runs.c.id > cursor)
                .order_by(runs.c.id)
                .limit(batch)
            )
            rows = connection.execute(query).all()
            ended = [r for r in rows if r.finished_at is not None and r.finished_at < cutoff]
            old = [r.id for r in ended if r.batch_id is None]
            old = self.tasks_retention.of_no_open_fire(connection, old)
            if old:
                connection.execute(delete(attempts).where(attempts.c.run_id.in_(old)))
                connection.execute(delete(runs).where(runs.c.id.in_(old), runs.c.finished_at < cutoff))
                for table in (callbacks, fires, gates, waits):
                    connection.execute(delete(table).where(table.c.run_id.in_(old)))
            over = len(rows) < batch or rows[-1].created_at > cutoff
            forgotten = 0
            if over:
                gone = (
                    sessions.c.state.in_((SessionState.ENDED, SessionState.LOST)),
                    sessions.c.ended_at < cutoff,
                )
                old_sessions = select(sessions.c.id).where(*gone)
                connection.execute(delete(openings).where(openings.c.session_id.in_(old_sessions)))
                connection.execute(delete(sessions).where(*gone))
                self.tasks_retention.forget_tasks(connection, cutoff)
                forgotten = self.workflows_retention.prune_workflow_runs(connection, cutoff, batch)
                self.bulk_retention.forget_bulk_jobs(connection, cutoff)
            return Pruned(len(old), 0 if over else rows[-1].id, forgotten)

        return await self.context.database.write(work)

    async def forget_keys(self, older_than: float) -> int:
        """Delete idempotency keys of requests that have no row of their own (a retry of a batch, a change of
        a task …) that are older than so many seconds; returns how many."""

        def work(connection: Connection) -> int:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            return connection.execute(delete(request_keys).where(request_keys.c.created_at < cutoff)).rowcount

        return await self.context.database.write(work)
