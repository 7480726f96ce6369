"""Runs that started a batch and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.batches.store.intake import BatchIntake
from fusee.batches.store.moves import BatchMoves, Moving
from fusee.batches.store.tables import batches
from fusee.engine.model.outcome import End
from fusee.engine.store.context import StoreContext
from fusee.engine.store.parents import Outcome, Parents, Started

__all__ = ["BatchParents"]


class BatchParents:
    def __init__(
        self, context: StoreContext, parents: Parents, intake: BatchIntake, moves: BatchMoves
    ) -> None:
        self.context = context
        self.parents = parents
        self.intake = intake
        self.moves = moves

    def batch_waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        return self.parents.look_at_waiters(connection, run_ids, BATCH, self._abandon_batch, now)

    def _abandon_batch(self, connection: Connection, batch: Any, why: str, now: int) -> None:
        if batch.phase == BatchPhase.UPLOADING:
            self.intake.discard(connection, batch.id)
        elif batch.phase != BatchPhase.STOPPING:
            moving = Moving(batch)
            self.moves.stop(connection, moving, why, now)
            self.moves.move_on(connection, moving, now)


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
