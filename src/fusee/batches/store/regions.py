"""Which batches a dispatcher with a region moves on: those of that region, and those of none."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, exists, select

from fusee.batches.store.tables import batches
from fusee.engine.store.tables import outbox, runs

__all__ = ["not_of_others"]


def not_of_others(kind: str, region: str) -> Sequence[ColumnElement[bool]]:
    """For a query of notices: none about a batch of another region. One whose batch is gone is anyone's."""
    if not region or kind not in ("batch", "batch_run"):
        return ()
    other = select(batches.c.id).where(batches.c.region.not_in(("", region)))
    if kind == "batch":
        other = other.where(batches.c.id == outbox.c.run_id)
    else:
        other = other.join(runs, runs.c.owner_id == batches.c.id).where(runs.c.id == outbox.c.run_id)
    return (~exists(other.correlate(outbox)),)
