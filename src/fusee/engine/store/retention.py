"""Deleting what is old: finished runs, ended sessions, idempotency keys, and what nouns keep beside them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from fusee.engine.model.states import SessionState
from fusee.engine.owners import Owners
from fusee.engine.store.broker_tables import openings
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import attempts, callbacks, gates, request_keys, runs, sessions

__all__ = ["Pruned", "Retention"]


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many finished runs were deleted, and where to continue."""

    count: int
    cursor: int
    forgotten: int = 0
    """Tasks, workflow runs and bulk jobs that were deleted."""

    def __bool__(self) -> bool:
        return self.count > 0 or self.cursor > 0 or self.forgotten > 0


class Retention:
    def __init__(self, context: StoreContext, owners: Owners) -> None:
        self.context = context
        self.owners = owners

    async def prune(self, older_than: float, cursor: int, batch: int) -> Pruned:
        """Delete one small batch of runs that finished more than `older_than` seconds ago.

        Walks the primary key from `cursor`, so no index on the finish time burdens every run. Ids grow with
        time: a run created after the cutoff ends the walk. The answer's cursor is 0 at the end.
        """

        def work(connection: Connection) -> Pruned:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            query = (
                select(runs.c.id, runs.c.created_at, runs.c.finished_at)
                .where(runs.c.id > cursor)
                .order_by(runs.c.id)
                .limit(batch)
            )
            rows = connection.execute(query).all()
            ended = [r for r in rows if r.finished_at is not None and r.finished_at < cutoff]
            old = self._not_needed(connection, [r.id for r in ended])
            if old:
                connection.execute(delete(attempts).where(attempts.c.run_id.in_(old)))
                connection.execute(delete(runs).where(runs.c.id.in_(old), runs.c.finished_at < cutoff))
                for table in (callbacks, gates):
                    connection.execute(delete(table).where(table.c.run_id.in_(old)))
                for owner in self.owners:
                    owner.forget_runs(connection, old)
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
                forgotten = sum(owner.forget_old(connection, cutoff, batch) for owner in self.owners)
            return Pruned(len(old), 0 if over else rows[-1].id, forgotten)

        return await self.context.database.write(work)

    def _not_needed(self, connection: Connection, run_ids: list[int]) -> list[int]:
        for owner in self.owners if run_ids else ():
            needed = owner.needed(connection, run_ids)
            run_ids = [run_id for run_id in run_ids if run_id not in needed]
        return run_ids

    async def forget_keys(self, older_than: float) -> int:
        """Delete idempotency keys of requests that have no row of their own (a retry of a batch, a change of
        a task …) that are older than so many seconds; returns how many."""

        def work(connection: Connection) -> int:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            return connection.execute(delete(request_keys).where(request_keys.c.created_at < cutoff)).rowcount

        return await self.context.database.write(work)
