"""Runs that started a bulk job and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from fusee.bulk.model.job import BulkStatus, next_bulk_status
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.tables import bulk_jobs
from fusee.engine.model.outcome import End
from fusee.engine.store.context import StoreContext
from fusee.engine.store.parents import Outcome, Parents, Started

__all__ = ["BulkParents"]

OVER = (BulkStatus.FINISHED, BulkStatus.FAILED, BulkStatus.STOPPED)


class BulkParents:
    def __init__(self, context: StoreContext, parents: Parents, moves: BulkMoves) -> None:
        self.context = context
        self.parents = parents
        self.moves = moves

    def bulk_waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        return self.parents.look_at_waiters(connection, run_ids, BULK_JOB, self._abandon_bulk, now)

    def _abandon_bulk(self, connection: Connection, job: Any, why: str, now: int) -> None:
        if job.status == BulkStatus.RUNNING:
            self.moves.begin_stop(connection, job, "stop", why, now)
        elif job.status == BulkStatus.WAITING_BUSINESS:
            self.moves.set_bulk(
                connection, job.id, now, status=next_bulk_status(BulkStatus.WAITING_BUSINESS, "stop")
            )


def _outcome(job: Any) -> Outcome:
    result = {
        "bulk_job_id": job.id,
        "status": job.status,
        "ended": job.ended - job.absent,
        "quarantined": job.quarantined,
    }
    match BulkStatus(job.status):
        case BulkStatus.FINISHED:
            return Outcome(End.SUCCEEDED, "finished", None, result)
        case BulkStatus.STOPPED:
            return Outcome(End.CANCELED, "was stopped", job.reason, result)
        case status:
            return Outcome(End.FAILED, f"ended {status}", job.reason, result)


BULK_JOB = Started("bulk job", bulk_jobs, lambda job: job.status in OVER, _outcome)
