"""The outbox: one row per finished run that has an owner, in the same transaction, for the aggregator."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert

from fusee.engine.owners import Owners
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import outbox
from fusee.engine.store.wakes import ENDED

__all__ = ["PARENT_TOPIC", "Outbox"]

PARENT_TOPIC = "parent"
"""Rows about runs that may have started something of another kind and wait for its end."""


class Outbox:
    def __init__(self, context: StoreContext, owners: Owners) -> None:
        self.context = context
        self.owners = owners

    def add_ends(self, connection: Connection, runs: Sequence[tuple[str, int]]) -> None:
        """(kind, run id) of runs that ended in this transaction in any way but plain success."""
        self.add(connection, [(self.owners.end_topic(kind), run_id) for kind, run_id in runs])

    def add(self, connection: Connection, rows: Sequence[tuple[str, int]]) -> None:
        """(topic, id): what the reader of that topic shall look at when this transaction has committed.

        Each row is new, never merged with an older one about the same run: a reader that deletes the older
        row at this moment may have looked at the run before it ended.
        """
        if rows:
            connection.execute(
                insert(outbox), [{"kind": topic, "run_id": row_id, "many": 0} for topic, row_id in rows]
            )
            self.context.notify(connection, ENDED)

    def add_fires(self, connection: Connection, topic: str, fires: Sequence[tuple[int, int]]) -> None:
        """(id, fire time): as `add`, about something that ended for one fire time."""
        if fires:
            connection.execute(
                insert(outbox), [{"kind": topic, "run_id": one, "fire_time": at} for one, at in fires]
            )
            self.context.notify(connection, ENDED)
