"""Totals that are kept in the database: the same wherever they are read, and not lost with a process.

Only for what is rare and worth an alert. A total is one row, locked until its transaction commits, so a count
of something frequent would make dispatchers wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import totals

__all__ = [
    "RESULTS_REFUSED",
    "RUNS_LOST",
    "SESSIONS_LOST",
    "Total",
    "Totals",
    "add_to_totals",
]

SESSIONS_LOST = "sessions_lost"
RUNS_LOST = "runs_lost"
"""By what became of them: requeued, failed, canceled."""
RESULTS_REFUSED = "results_refused"
LONGEST_LABEL = 160


class Total(NamedTuple):
    name: str
    label: str
    value: int


class Totals:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def totals(self) -> list[Total]:
        """Those of this namespace; what never happened has no row."""
        query = select(totals).where(totals.c.namespace == self.context.namespace)
        query = query.order_by(totals.c.name, totals.c.label)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [Total(row.name, row.label, row.value) for row in rows]


def add_to_totals(connection: Connection, name: str, counts: Mapping[tuple[str, str], int]) -> None:
    """Add these, by (namespace, label); as the last thing in a transaction, since their rows are shared."""
    for (namespace, label), many in sorted(counts.items()):
        if many == 0:
            continue
        label = label[:LONGEST_LABEL]
        mine = (totals.c.namespace == namespace, totals.c.name == name, totals.c.label == label)
        add = update(totals).where(*mine).values(value=totals.c.value + many)
        if connection.execute(add).rowcount > 0:
            continue
        new = {"namespace": namespace, "name": name, "label": label, "value": many}
        try:
            with connection.begin_nested():
                connection.execute(insert(totals).values(new))
        except IntegrityError:  # another process counted for the first time just now
            connection.execute(add)
