"""Which tasks are due, earliest first.

A dispatcher with a region fires the tasks of that region and those of none. The column `region` repeats what
the definition says, so that the scan does not read the tasks of other regions. A version that does not know
the column leaves it as it was: the definition, which is read before each fire, decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select, update

from fusee.engine.store.context import StoreContext
from fusee.tasks.store.tables import tasks
from fusee.tasks.store.tasks import spec_of

__all__ = ["SCAN", "DueTasks"]

SCAN = "scan"
"""The place under which tasks that cannot be fired are set aside."""
LOCKED_RETRY = 0.05


class DueTasks:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def lock(
        self, connection: Connection, now: int, limit: int, region: str, only: int | None = None
    ) -> Sequence[Any]:
        """The rows of up to `limit` due tasks, locked; `only` that one when it is due. Rows that another
        dispatcher has locked are left to it, where the database can skip them."""
        query = self._due(now, limit, region, [tasks])
        if only is not None:
            query = select(tasks).where(tasks.c.id == only, tasks.c.next_fire_at <= now)
        skip_locked = self.context.database.capabilities.skip_locked
        return connection.execute(query.with_for_update(skip_locked=skip_locked)).all()

    def of_region(self, connection: Connection, rows: Sequence[Any], region: str) -> Sequence[Any]:
        """Those of these locked tasks that belong to the region; a wrong column is corrected."""
        for row in rows:
            known = spec_of(row).region
            if row.region != known:
                connection.execute(update(tasks).where(tasks.c.id == row.id).values(region=known))
        return [row for row in rows if spec_of(row).region in ("", region)]

    def ids(self, connection: Connection, limit: int, region: str) -> list[int]:
        query = self._due(self.context.now(connection), limit, region, [tasks.c.id])
        return list(connection.execute(query).scalars())

    def next_in(self, connection: Connection, now: int, region: str) -> float | None:
        """Seconds until the next task is due; None when no task has a next fire."""
        earliest = select(func.min(tasks.c.next_fire_at)).where(*self._served(region))
        next_at = connection.execute(earliest).scalar_one_or_none()
        if next_at is None:
            return None
        # A due task that was not returned is locked by another dispatcher: ask again soon, not at once.
        return (next_at - now) / 1_000_000 if next_at > now else LOCKED_RETRY

    def _due(self, now: int, limit: int, region: str, columns: Sequence[Any]) -> Select[Any]:
        return (
            select(*columns)
            .where(tasks.c.next_fire_at <= now, *self._served(region))
            .order_by(tasks.c.next_fire_at, tasks.c.id)
            .limit(limit)
        )

    def _served(self, region: str) -> list[ColumnElement[bool]]:
        """Conditions: a region that this dispatcher serves, and not set aside."""
        conditions = []
        if region:
            conditions.append(or_(tasks.c.region.is_(None), tasks.c.region.in_(("", region))))
        if aside := self.context.set_aside.keys(SCAN):
            conditions.append(tasks.c.id.not_in(aside))
        return conditions
