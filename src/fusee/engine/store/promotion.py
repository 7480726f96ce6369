"""Delayed runs become claimable when their time has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import later, line, runs
from fusee.engine.store.wakes import PENDING

__all__ = ["Promoted", "Promotion"]


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many became pending, and in how many seconds the next one will."""

    count: int
    next_in: float | None

    def __bool__(self) -> bool:
        return self.count > 0


class Promotion:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def promote(self, limit: int = 1000) -> Promoted:
        """Make delayed runs whose time has come claimable; earliest first."""

        def work(connection: Connection) -> Promoted:
            now = self.context.now(connection)
            due = (
                select(later)
                .where(later.c.due_at <= now)
                .order_by(later.c.due_at, later.c.run_id)
                .limit(limit)
                .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
            )
            rows = connection.execute(due).all()
            if rows:
                self._promote(connection, rows)
            next_at: int | None = connection.execute(select(func.min(later.c.due_at))).scalar_one_or_none()
            if next_at is None:
                return Promoted(len(rows), None)
            next_in = max(0.0, (next_at - now) / 1_000_000)
            # Due and yet not taken, it is locked by someone: ask again soon, not at once.
            return Promoted(len(rows), 0.05 if next_in == 0 and not rows else next_in)

        promoted = await self.context.database.write(work)
        if promoted.count:
            self.context.wakes.fire(PENDING)
        return promoted

    def _promote(self, connection: Connection, rows: Sequence[Any]) -> None:
        ids = [row.run_id for row in rows]
        delayed = (runs.c.id.in_(ids), runs.c.status == RunStatus.DELAYED)
        connection.execute(_LEAVE, [{"b_due_at": row.due_at, "b_run_id": row.run_id} for row in rows])
        known = (
            select(runs.c.lane_id, runs.c.priority, runs.c.due_at, runs.c.id)
            .where(*delayed)
            .with_for_update()
        )
        waiting = connection.execute(known).all()
        if not waiting:
            return
        connection.execute(update(runs).where(*delayed).values(status=RunStatus.PENDING))
        connection.execute(
            insert(line),
            [
                {"lane_id": r.lane_id, "rank": -r.priority, "due_at": r.due_at, "run_id": r.id}
                for r in waiting
            ],
        )
        self.context.notify(connection, PENDING)


_LEAVE = delete(later).where(later.c.due_at == bindparam("b_due_at"), later.c.run_id == bindparam("b_run_id"))
