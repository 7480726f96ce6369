"""The owner of the runs of bulk jobs: what follows when a run ends, and which old jobs are deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select

from fusee.bulk.model.job import BulkStatus, next_bulk_status
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.tables import bulk_jobs, bulk_logs, bulk_quarantine, bulk_segments
from fusee.engine.model.outcome import End
from fusee.engine.model.run import Run, RunKind
from fusee.engine.owners import Owner, Reaction, Retried
from fusee.engine.store.context import StoreContext
from fusee.engine.store.parents import Outcome, Parents, StartedKind
from fusee.engine.store.tables import runs
from fusee.errors import Conflict
from fusee.events import BulkJobRested

__all__ = ["BULK_RUNS", "BulkOwner"]

JOB_TOPIC, RUN_TOPIC = "bulk", "bulk_run"
"""Outbox topics: segments succeeded, or the job must be looked at; a run of the job ended otherwise."""
OVER = (BulkStatus.FINISHED, BulkStatus.FAILED, BulkStatus.STOPPED)
MOST_AT_ONCE = 50
ROWS_AT_ONCE = 5000


def _log_fields(
    owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    return {"bulk_job_id": owner_id, "segment": payload.get("segment")}


BULK_RUNS = RunKind("bulk", _log_fields)


class BulkOwner(Owner):
    kind = BULK_RUNS.name
    run_kind = BULK_RUNS

    def __init__(self, context: StoreContext, parents: Parents, moves: BulkMoves) -> None:
        self.context = context
        self.parents = parents
        self.moves = moves

    @property
    def end_topic(self) -> str:
        return RUN_TOPIC

    def reactions(self) -> Mapping[str, Reaction]:
        return {JOB_TOPIC: self._jobs, RUN_TOPIC: self._runs}

    def _jobs(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        self._look_at(connection, [row.run_id for row in rows], now)
        return ()

    def _look_at(self, connection: Connection, job_ids: Sequence[int], now: int) -> None:
        for rest in self.moves.bulk_jobs_ended(connection, job_ids, now):
            self.context.note(
                connection,
                BulkJobRested(
                    job_id=rest.job_id,
                    business=rest.business,
                    status=str(rest.status),
                    reason=rest.reason,
                    namespace=rest.namespace,
                ),
            )

    def _runs(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        mine = (runs.c.id.in_({row.run_id for row in rows}), runs.c.owner_id.is_not(None))
        self._look_at(
            connection, list(connection.execute(select(runs.c.owner_id).where(*mine)).scalars()), now
        )
        return ()

    def parents_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> Collection[int]:
        return self.parents.settle_parents(connection, run_ids, BULK_JOB, self._abandon, now)

    def _abandon(self, connection: Connection, job: Any, why: str, now: int) -> None:
        if job.status == BulkStatus.RUNNING:
            self.moves.begin_stop(connection, job, "stop", why, now)
        elif job.status == BulkStatus.WAITING_BUSINESS:
            self.moves.set_bulk(
                connection, job.id, now, status=next_bulk_status(BulkStatus.WAITING_BUSINESS, "stop")
            )

    def forget_old(self, connection: Connection, cutoff: int, most: int) -> int:
        """Delete jobs that finished or failed before `cutoff`. A large quarantine is deleted in portions, its
        job last.

        A stopped job is kept: it may still be resumed."""
        query = (
            select(bulk_jobs.c.id)
            .where(bulk_jobs.c.finished_at < cutoff)
            .order_by(bulk_jobs.c.finished_at)
            .limit(MOST_AT_ONCE)
        )
        forgotten = 0
        for job_id in list(connection.execute(query).scalars()):
            last = (
                select(bulk_quarantine.c.item_index)
                .where(bulk_quarantine.c.job_id == job_id)
                .order_by(bulk_quarantine.c.item_index)
                .limit(ROWS_AT_ONCE)
                .subquery()
            )
            upto = connection.execute(select(func.max(last.c.item_index))).scalar_one()
            if upto is not None:
                part = (bulk_quarantine.c.job_id == job_id, bulk_quarantine.c.item_index <= upto)
                if connection.execute(delete(bulk_quarantine).where(*part)).rowcount >= ROWS_AT_ONCE:
                    break
            for table in (bulk_segments, bulk_logs):
                connection.execute(delete(table).where(table.c.job_id == job_id))
            connection.execute(delete(bulk_jobs).where(bulk_jobs.c.id == job_id))
            forgotten += 1
        return forgotten

    async def retry(self, run: Run, idempotency_key: str | None) -> Retried:
        """Refused: the segment belongs to a window that only its job can resume."""
        job_id = run.payload["job"]
        raise Conflict(
            f"run {run.id} belongs to bulk job {job_id}: `fusee bulk start {job_id}` resumes the job where it"
            f" stopped, `fusee bulk rerun {job_id}` processes its quarantined items again"
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


BULK_JOB = StartedKind("bulk job", bulk_jobs, lambda job: job.status in OVER, _outcome)
