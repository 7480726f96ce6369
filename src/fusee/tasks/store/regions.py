"""Which tasks a dispatcher with a region fires: those of that region, and those of none.

The column repeats what the definition says, so that the scan need not read the tasks of others. A version
that does not know the column leaves it as it was: the definition, read before a fire, has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, or_, update

from fusee.engine.store.context import StoreContext
from fusee.tasks.store.tables import tasks
from fusee.tasks.store.tasks import spec_of

__all__ = ["TaskRegions", "served_by"]


def served_by(region: str) -> Sequence[ColumnElement[bool]]:
    """For a query's `where`; nothing at all for a dispatcher that serves every region."""
    return (or_(tasks.c.region.is_(None), tasks.c.region.in_(("", region))),) if region else ()


class TaskRegions:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def mine(self, connection: Connection, rows: Sequence[Any], region: str) -> Sequence[Any]:
        """Of these tasks (locked) those of the region; where the column is wrong, it is put right."""
        mine = [row for row in rows if spec_of(row).region in ("", region)]
        for row in rows:
            known = spec_of(row).region
            if row.region != known:
                connection.execute(update(tasks).where(tasks.c.id == row.id).values(region=known))
        return mine
