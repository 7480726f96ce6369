"""Runs that started a batch and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.batches.store.commands import Batches
from fusee.batches.store.moves import Moving
from fusee.batches.store.tables import batches
from fusee.engine.model.outcome import End
from fusee.engine.store.parents import Awaiting, Outcome, Started

__all__ = ["BatchWaiters"]


class BatchWaiters(Batches, Awaiting):
    def _batch_waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        return self._look_at_waiters(connection, run_ids, BATCH, self._abandon_batch, now)

    def _abandon_batch(self, connection: Connection, batch: Any, why: str, now: int) -> None:
        if batch.phase == BatchPhase.UPLOADING:
            self._discard(connection, batch.id)
        elif batch.phase != BatchPhase.STOPPING:
            moving = Moving(batch)
            self._stop(connection, moving, why, now)
            self._move_on(connection, moving, now)


def _outcome(batch: Any) -> Outcome:
    result = {"batch_id": batch.id, "status": batch.status}
    match BatchStatus(batch.status):
        case BatchStatus.SUCCESS:
            return Outcome(End.SUCCEEDED, "succeeded", None, result)
        case BatchStatus.CANCEL | BatchStatus.PARTIAL_CANCEL:
            return Outcome(End.CANCELED, "was canceled", batch.reason, result)
        case status:
            return Outcome(End.FAILED, f"ended {status}", batch.reason, result)


BATCH = Started("batch", batches, lambda batch: bool(batch.phase == BatchPhase.DONE), _outcome)
