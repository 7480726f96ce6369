"""An attempt that ends in a batch that was stopped is its run's last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select

from fusee.batches.model.batch import BatchPhase
from fusee.batches.store.tables import batches
from fusee.engine.model.outcome import Verdict
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Settlement

__all__ = ["heed_stops"]

Owned = tuple[Settlement, Any]


def heed_stops(connection: Connection, owned: Sequence[Owned]) -> list[Owned]:
    """Whoever stopped the batch was told that no target starts any more: not even for another try."""
    again = {row.owner_id for settlement, row in owned if _is_again(settlement, row)}
    if not again:
        return list(owned)
    # Locked: a stop under way would look for this run in line before we have put it there.
    query = select(batches.c.id, batches.c.phase, batches.c.reason).where(batches.c.id.in_(again))
    rows = connection.execute(query.order_by(batches.c.id).with_for_update(read=True)).all()
    stopped = {row.id: row.reason for row in rows if row.phase == BatchPhase.STOPPING}
    heeded: list[Owned] = []
    for settlement, row in owned:
        if _is_again(settlement, row) and row.owner_id in stopped:
            reason = f"not tried again, its batch was stopped: {stopped[row.owner_id]}"
            verdict = Verdict("cancel", RunStatus.CANCELED, reason, counted=settlement.verdict.counted)
            settlement = replace(settlement, verdict=verdict)
        heeded.append((settlement, row))
    return heeded


def _is_again(settlement: Settlement, row: Any) -> bool:
    return row.kind == "batch" and settlement.verdict.status in (RunStatus.PENDING, RunStatus.DELAYED)
