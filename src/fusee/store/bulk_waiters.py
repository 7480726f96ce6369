"""Runs that started a bulk job and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, select, update

from fusee.model import TERMINAL, Effect, End, Ended, RunStatus, Verdict
from fusee.model.bulk import BulkStatus
from fusee.store.bulk_jobs import BulkJobs
from fusee.store.bulk_schema import bulk_jobs
from fusee.store.contract import Settlement
from fusee.store.schema import runs, tickets
from fusee.store.settle import RULED_BY, Settle

__all__ = ["BulkWaiters"]

OVER = (BulkStatus.FINISHED, BulkStatus.FAILED, BulkStatus.STOPPED)


class BulkWaiters(BulkJobs, Settle):
    def _bulk_waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        """Each of these runs started a bulk job, perhaps: end it with its job, or that with it.

        Answers those whose attempt still runs: nobody knows yet whether it will wait.
        """
        query = select(bulk_jobs).where(bulk_jobs.c.waiter.in_(run_ids)).order_by(bulk_jobs.c.id)
        started = {row.waiter: row for row in connection.execute(query.with_for_update())}
        again: list[int] = []
        known = select(*RULED_BY).where(runs.c.id.in_(started)).order_by(runs.c.id).with_for_update()
        for run in connection.execute(known).all() if started else ():
            if run.status == RunStatus.RUNNING:
                again.append(run.id)
            else:
                self._look_at_bulk_of(connection, run, started[run.id], now)
        return again

    def _look_at_bulk_of(self, connection: Connection, run: Any, job: Any, now: int) -> None:
        status = RunStatus(run.status)
        if status is RunStatus.WAITING and job.status in OVER:
            self._apply(connection, [(_end(run, job), run)], now)
        elif status is RunStatus.WAITING:
            waits = {"reason": f"waits for bulk job {job.id}"}
            connection.execute(update(runs).where(runs.c.id == run.id).values(waits))
            # Its segments may need the place that it takes in a queue with limits.
            connection.execute(delete(tickets).where(tickets.c.run_id == run.id))
        elif status in TERMINAL and job.status == BulkStatus.RUNNING:
            self._doom(connection, job, "stop", f"run {run.id}, which started it, ended {status}", now)
        elif status in TERMINAL and job.status == BulkStatus.WAITING_BUSINESS:
            self._set_bulk(connection, job.id, now, status=BulkStatus.STOPPED)


def _end(run: Any, job: Any) -> Settlement:
    """How a run ends whose job is over. Not retried: it would find the same job again."""
    what = f"bulk job {job.id}"
    result = msgspec.json.encode(
        {"bulk_job_id": job.id, "status": job.status, "ended": job.ended, "quarantined": job.quarantined}
    ).decode()
    why = "" if job.reason is None else f": {job.reason}"
    match BulkStatus(job.status):
        case BulkStatus.FINISHED:
            ended = Ended(End.SUCCEEDED, result=result, effect=Effect.APPLIED)
            verdict = Verdict("succeed", RunStatus.SUCCEEDED, f"{what} finished", counted=False)
        case BulkStatus.STOPPED:
            ended = Ended(End.CANCELED, result=result, error=f"{what} was stopped{why}")
            verdict = Verdict("cancel", RunStatus.CANCELED, f"{what} was stopped")
        case status:
            ended = Ended(End.FAILED, result=result, error=f"{what} ended {status}{why}")
            verdict = Verdict("fail", RunStatus.FAILED, f"{what} ended {status}")
    return Settlement(run.id, run.attempt, ended, verdict, ticket=True)
