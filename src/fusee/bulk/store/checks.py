"""Asking a business whether a job may exist: by the process that creates it, or by a worker that has it.

Until its business has agreed, a job is `created` and `checking`; who starts it meanwhile has it started then.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete

from fusee.bulk.model.job import BulkStatus, next_bulk_status
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.rows import counted_in, spec_of_bulk
from fusee.bulk.store.tables import bulk_jobs, bulk_logs
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import IllegalTransition
from fusee.engine.store.context import StoreContext
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict, LeaseLost

__all__ = ["BulkChecks", "next_of"]

CHECK_RETRY = RetryPolicy(max_attempts=1000, base=1.0, max=60.0, on=("lost",))
"""Losing its worker is no answer; failing is one."""
CHECK_TIMEOUT = 300.0


class BulkChecks:
    def __init__(self, context: StoreContext, moves: BulkMoves) -> None:
        self.context = context
        self.moves = moves

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None = None, attempt: int = 0
    ) -> None:
        """The business agreed, or refused with these words; by a run of it, fenced by its attempt."""

        def work(connection: Connection) -> None:
            job = self.moves.bulk_row(connection, job_id, any_namespace=run_id is not None)
            if job is None:
                return
            if run_id is not None:
                owned = self.moves.running_attempt(connection, run_id, attempt)
                if owned is None or job.checker != run_id:
                    raise LeaseLost(f"attempt {attempt} of run {run_id} is over: it decides nothing")
            now = self.context.now(connection)
            if refusal is not None:
                self.moves.refuse(connection, job, refusal, "refused", now)
                return
            self.moves.set_bulk(connection, job_id, now, checking=None, checker=None)
            if job.checking == "start":
                verb = "start" if job.status == BulkStatus.CREATED else "resume"
                words = self.start(connection, job, verb, now)
                self.moves.bulk_note(
                    connection, job_id, "operator", "", f"its business agreed: started{words}", now
                )

        await self.context.database.write(work)
        self.context.wakes.fire(PENDING)
        self.context.wakes.fire(ENDED)

    async def withdraw_bulk_job(self, job_id: int, refusal: str | None) -> None:
        """Who asked for the job is told that it was refused, or has gone away: nothing of it is left.

        Under a key, or with a run that waits for it, a repetition of the request may have been given the job
        already. Then it stays, as refused; or as it is, when nobody refused it: whoever starts it has its
        business asked."""

        def work(connection: Connection) -> None:
            job = self.moves.bulk_row(connection, job_id)
            if job is None or job.checking is None or job.started_at is not None:
                return
            if job.idempotency_key is None and job.parent_run is None:
                connection.execute(delete(bulk_logs).where(bulk_logs.c.job_id == job_id))
                connection.execute(delete(bulk_jobs).where(bulk_jobs.c.id == job_id))
            elif refusal is not None:
                now = self.context.now(connection)
                if job.status == BulkStatus.CREATED:
                    self.moves.refuse(connection, job, refusal, "refused", now)
                self.moves.set_bulk(connection, job_id, now, idempotency_key=None)  # it may be used again

        await self.context.database.write(work)
        self.context.wakes.fire(ENDED)

    # -- parts of it

    def begin_check(self, connection: Connection, job: Any, now: int) -> None:
        payload = {"job": job.id, "check": True}
        (run_id,) = self.moves.bulk_run(connection, job, [payload], CHECK_RETRY, now, timeout=CHECK_TIMEOUT)
        self.moves.set_bulk(connection, job.id, now, checker=run_id)

    def start_when_checked(self, connection: Connection, job: Any, who: str, now: int) -> bool:
        if job.checking == "refused":
            raise Conflict(
                f"bulk job {job.id} was refused by its business ({job.reason}): create another one"
            )
        if job.checking == "start" and job.checker is not None:
            return False
        self.moves.set_bulk(connection, job.id, now, checking="start")
        if job.checker is None:
            self.begin_check(connection, job, now)
        self.moves.bulk_note(connection, job.id, "operator", who, "starts when its business has agreed", now)
        return True

    def start(self, connection: Connection, job: Any, verb: str, now: int) -> str:
        """Let it be launched; what is to be said about its error budget."""
        status = BulkStatus(job.status)
        running = next_of(job, verb)
        allowed, words = _fresh_budget(job, status)
        by_business = status is BulkStatus.WAITING_BUSINESS
        launcher = self.moves.insert_launcher(connection, job, now, by_business=by_business)
        self.moves.set_bulk(
            connection,
            job.id,
            now,
            status=running,
            reason=None,
            launcher=launcher,
            allowed=allowed,
            started_at=job.started_at or now,
            progressed_at=now,
            stalled_at=None,
            finished_at=None,
            speed=0.0,
            speed_at=now,
        )
        return words


def _fresh_budget(job: Any, status: BulkStatus) -> tuple[int | None, str]:
    """(quarantined items that are allowed from now on, what to tell). Who resumes a job that failed says that
    the cause is gone: what was quarantined before counts no more."""
    if status is not BulkStatus.FAILED or job.allowed is None or job.total is None:
        return job.allowed, ""
    more = spec_of_bulk(job).errors_allowed(counted_in(job)) or 0
    return job.quarantined + more, f" with a fresh error budget: {more} more may be quarantined"


def next_of(job: Any, verb: str) -> BulkStatus:
    try:
        return next_bulk_status(BulkStatus(job.status), verb)
    except IllegalTransition:
        raise Conflict(f"bulk job {job.id} is {job.status}: it cannot {verb.replace('_', ' ')} now") from None
