"""Telling the owner of a run (its task, its workflow …) that it has ended: a row for the aggregator."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert

from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import outbox
from fusee.engine.store.wakes import ENDED

__all__ = ["Outbox"]


_AS = {"batch": "batch_run", "bulk": "bulk_run"}
"""A batch only counts its plain successes; of every other end it looks at the run. Plain successes are told
of the owner, other ends of the run."""


class Outbox:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def add(self, connection: Connection, runs: Sequence[tuple[str, int]]) -> None:
        """(kind, run id) of runs that ended in this very transaction: none is forgotten, none is early.

        Each row is new, never merged with an older one about the same run: whoever takes that one
        away just now may have looked at the run before it ended.
        """
        if runs:
            rows = [{"kind": _AS.get(kind, kind), "run_id": run_id} for kind, run_id in runs]
            connection.execute(insert(outbox), rows)
            self.context.notify(connection, ENDED)
