"""Launching a bulk job: the run that prepares it, and the division of its items into segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from fusee.bulk.model.job import UNKNOWN, BulkStatus, next_bulk_status
from fusee.bulk.model.pacing import even_share
from fusee.bulk.model.segment import Found, SegmentState
from fusee.bulk.store.moves import LAUNCH_TIMEOUT, BulkMoves, new_segment
from fusee.bulk.store.rows import counted_in, spec_of_bulk
from fusee.bulk.store.tables import bulk_segments
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import IllegalTransition
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import AnyRow, encode
from fusee.engine.store.wakes import PENDING
from fusee.errors import Conflict, LeaseLost

__all__ = ["BulkLaunches", "next_of"]

LAUNCH_RETRY = RetryPolicy(max_attempts=1000, base=1.0, max=60.0, on=("lost", "failed"))


class BulkLaunches:
    def __init__(self, context: StoreContext, moves: BulkMoves) -> None:
        self.context = context
        self.moves = moves

    def start(self, connection: Connection, job: AnyRow, verb: str, now: int) -> str:
        """Insert its launcher; returns what the log says about its error budget."""
        status = BulkStatus(job.status)
        running = next_of(job, verb)
        allowed, words = _fresh_budget(job, status)
        by_business = status is BulkStatus.WAITING_BUSINESS
        launcher = self._insert_launcher(connection, job, now, by_business=by_business)
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

    def _insert_launcher(self, connection: Connection, job: AnyRow, now: int, *, by_business: bool) -> int:
        payload = {"job": job.id, "launch": "business" if by_business else "ask"}
        (run_id,) = self.moves.bulk_run(
            connection, job, [payload], LAUNCH_RETRY, now, timeout=LAUNCH_TIMEOUT + 60
        )
        return run_id

    def cut(self, connection: Connection, job: AnyRow, first: int, stop: int) -> list[int]:
        """Divide these items into segments after those that the job has; returns their numbers."""
        spec = spec_of_bulk(job)
        total = stop - first
        many = spec.segments or self.moves.workers_of(connection, job)
        many = max(1, min(many, job.concurrency, total))
        rows, begin = [], first
        for number in range(many if total else 0):
            end = begin + even_share(total, many, number)
            rows.append(new_segment(job.id, job.made + number, begin, end))
            begin = end
        if rows:
            connection.execute(insert(bulk_segments), rows)
        return [row["number"] for row in rows]

    # -- called by the launcher

    async def launch_bulk_job(
        self, run_id: int, attempt: int, job_id: int, found: Found, callbacks: Sequence[str]
    ) -> bool:
        """Its business is ready: its segments get runs. Returns false when the job was stopped meanwhile.

        A job that was launched before keeps its bounds, even if its source has changed."""
        fingerprint = None if found.fingerprint is None else encode(found.fingerprint, "fingerprint")

        def work(connection: Connection) -> bool:
            job = self._launching(connection, run_id, attempt, job_id)
            if job.status != BulkStatus.RUNNING:
                return False
            now = self.context.now(connection)
            first, stop = found.first, found.stop
            if job.total is None or job.made == 0:
                items = stop - first if found.rows in (None, UNKNOWN) else found.rows
                self.moves.set_bulk(
                    connection,
                    job_id,
                    now,
                    first=first,
                    total=stop - first,
                    item_count=found.rows,
                    allowed=spec_of_bulk(job).errors_allowed(items),
                )
                numbers = self.cut(connection, job, first, stop)
                self.moves.set_bulk(connection, job_id, now, made=len(numbers))
            else:
                idle = select(bulk_segments.c.number).where(
                    bulk_segments.c.job_id == job_id, bulk_segments.c.state == SegmentState.IDLE
                )
                numbers = sorted(connection.execute(idle).scalars())
            self.moves.open_segments(connection, job, numbers, now)
            self.moves.set_bulk(
                connection,
                job_id,
                now,
                launcher=None,
                callbacks=",".join(callbacks),
                fingerprint=fingerprint if job.fingerprint is None else job.fingerprint,
            )
            return True

        launched = await self.context.database.write(work)
        self.context.wakes.fire(PENDING)
        return launched

    async def await_business(self, run_id: int, attempt: int, job_id: int, callbacks: Sequence[str]) -> None:
        """Its business said that it will start the job itself."""

        def work(connection: Connection) -> None:
            job = self._launching(connection, run_id, attempt, job_id)
            if job.status == BulkStatus.RUNNING:
                now = self.context.now(connection)
                self.moves.set_bulk(
                    connection,
                    job_id,
                    now,
                    status=next_bulk_status(BulkStatus.RUNNING, "wait_business"),
                    launcher=None,
                    callbacks=",".join(callbacks),
                )
                self.moves.bulk_note(connection, job_id, "operator", "", "its business will start it", now)

        await self.context.database.write(work)

    def _launching(self, connection: Connection, run_id: int, attempt: int, job_id: int) -> Any:
        job = self.moves.bulk_row(connection, job_id, any_namespace=True)
        owned = self.moves.running_attempt(connection, run_id, attempt)
        if job is None or owned is None or job.launcher != run_id:
            raise LeaseLost(f"attempt {attempt} of run {run_id} is over: it launches nothing")
        return job


def _fresh_budget(job: AnyRow, status: BulkStatus) -> tuple[int | None, str]:
    """Returns how many quarantined items are allowed from now on, and what the log says about that. A resume
    of a failed job means that the cause is gone: items that were quarantined before no longer count."""
    if status is not BulkStatus.FAILED or job.allowed is None or job.total is None:
        return job.allowed, ""
    more = spec_of_bulk(job).errors_allowed(counted_in(job)) or 0
    return job.quarantined + more, f" with a fresh error budget: {more} more may be quarantined"


def next_of(job: AnyRow, verb: str) -> BulkStatus:
    try:
        return next_bulk_status(BulkStatus(job.status), verb)
    except IllegalTransition:
        raise Conflict(f"bulk job {job.id} is {job.status}: it cannot {verb.replace('_', ' ')} now") from None
