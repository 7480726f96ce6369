"""The steps of a bulk job: the runs of its segments, and what follows when they end.

Each step holds the lock of the job's row: commands, checkpoints and ends happen one after the other. Locks
are taken in one order: job, place in the ready queue, run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from fusee.bulk.model.job import BulkRest, BulkStatus, HeldBy, handler_of_business, next_bulk_status
from fusee.bulk.model.segment import SegmentState
from fusee.bulk.store.rows import spec_of_bulk
from fusee.bulk.store.tables import bulk_jobs, bulk_logs, bulk_segments
from fusee.engine.model.queue import ALERT_QUEUE, ALERT_RETRY, Strategy
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Lane
from fusee.engine.model.states import TERMINAL, RunStatus, SessionState
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.rows import AnyRow, NewRun, encode
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import runs, sessions
from fusee.values.times import iso

__all__ = ["LAUNCH_TIMEOUT", "BulkMoves", "new_segment"]

SEGMENT_RETRY = RetryPolicy(max_attempts=1000, base=1.0, max=60.0)
"""A segment continues where it was, so losing its worker costs little, however often it happens."""
LAUNCH_TIMEOUT = 1800.0
"""Seconds; a business may have to download what it needs."""
CALLBACK_RETRY = RetryPolicy(max_attempts=5, base=2.0)
NOT_STARTED = (RunStatus.PENDING, RunStatus.DELAYED, RunStatus.BLOCKED, RunStatus.DISPATCHED)
NOTHING_HELD: dict[str, Any] = {"share": 0, "pace": 0.0, "pace_until": 0, "wants": None}
"""The values of a segment without a worker: neither concurrency nor rate is reserved for it."""
LONGEST_REASON = 500
LONGEST_LOG = 8000


class BulkMoves:
    def __init__(
        self, context: StoreContext, run_writer: RunWriter, lanes: Lanes, cancels: Cancels, outbox: Outbox
    ) -> None:
        self.context = context
        self.run_writer = run_writer
        self.lanes = lanes
        self.cancels = cancels
        self.outbox = outbox

    def bulk_row(self, connection: Connection, job_id: int, *, any_namespace: bool = False) -> Any:
        """Returns the job's row, locked."""
        query = select(bulk_jobs).where(bulk_jobs.c.id == job_id)
        if not any_namespace:
            query = query.where(bulk_jobs.c.namespace == self.context.namespace)
        return connection.execute(query.with_for_update()).one_or_none()

    def set_bulk(self, connection: Connection, job_id: int, now: int, **values: Any) -> None:
        connection.execute(update(bulk_jobs).where(bulk_jobs.c.id == job_id).values(updated_at=now, **values))

    def bulk_note(self, connection: Connection, job_id: int, kind: str, who: str, text: str, now: int) -> int:
        """Append a line to the job's log under its lock, so that numbers are in order; returns its number."""
        last = select(func.coalesce(func.max(bulk_logs.c.id), 0)).where(bulk_logs.c.job_id == job_id)
        number = int(connection.execute(last).scalar_one()) + 1
        connection.execute(
            insert(bulk_logs).values(
                job_id=job_id, id=number, at=now, kind=kind, who=who[:128], text=text[:LONGEST_LOG]
            )
        )
        return number

    # -- runs of a job

    def bulk_run(
        self,
        connection: Connection,
        job: AnyRow,
        payloads: Sequence[dict[str, Any]],
        retry: RetryPolicy,
        now: int,
        *,
        timeout: float | None = None,
        kind: str | None = "bulk",
        strategy: str = "",
        apart: Sequence[int] = (),
    ) -> list[int]:
        spec = spec_of_bulk(job)
        lane = Lane(job.namespace, spec.queue, "python", _handler(job), spec.region, strategy)
        options: dict[str, Any] = {"retry": retry.to_dict()}
        if timeout is not None:
            options["timeout"] = timeout
        if apart:
            options["apart"] = list(apart)
        lane_id, text = self.lanes.lane_id(connection, lane), encode(options, "options")
        new_runs = [
            NewRun(
                lane_id=lane_id,
                priority=spec.priority,
                payload=encode(payload, "payload"),
                options=text,
                kind=kind,
                owner_id=job.id if kind else None,
            )
            for payload in payloads
        ]
        return self.run_writer.insert_runs(connection, new_runs, now, job.namespace)

    def open_segments(
        self,
        connection: Connection,
        job: AnyRow,
        numbers: Sequence[int],
        now: int,
    ) -> None:
        """Give each of these segments a run. When several workers serve the job, dispatchers distribute them:
        from a shared queue, the first worker that looks would take them all."""
        payloads = [{"job": job.id, "segment": number} for number in numbers]
        spread = bool(numbers) and self.workers_of(connection, job) > 1
        ids = self.bulk_run(
            connection,
            job,
            payloads,
            SEGMENT_RETRY,
            now,
            strategy=Strategy.ROUND_ROBIN if spread else "",
            apart=self._working_on(connection, job) if spread else (),
        )
        for number, run_id in zip(numbers, ids, strict=True):
            mine = (bulk_segments.c.job_id == job.id, bulk_segments.c.number == number)
            connection.execute(
                update(bulk_segments)
                .where(*mine, bulk_segments.c.state == SegmentState.IDLE)
                .values(
                    state=SegmentState.OPEN,
                    run_id=run_id,
                    taken_attempt=0,
                    **NOTHING_HELD,
                    held_by=HeldBy.WORKER,
                )
            )
        if numbers and job.held_by is None:
            self.set_bulk(connection, job.id, now, held_by=HeldBy.WORKER)

    def workers_of(self, connection: Connection, job: AnyRow) -> int:
        """Returns the number of live workers that serve it."""
        name = encode(_handler(job), "business").replace("_", "!_")
        query = (
            select(func.count())
            .select_from(sessions)
            .where(
                sessions.c.namespace == job.namespace,
                sessions.c.state == SessionState.ALIVE,
                sessions.c.abilities.like(f"%{name}%", escape="!"),
            )
        )
        return int(connection.execute(query).scalar_one())

    def _working_on(self, connection: Connection, job: AnyRow) -> list[int]:
        """Returns the sessions that have a segment of the job already."""
        query = (
            select(runs.c.session_id)
            .join(bulk_segments, bulk_segments.c.run_id == runs.c.id)
            .where(bulk_segments.c.job_id == job.id, bulk_segments.c.state == SegmentState.OPEN)
            .where(runs.c.status == RunStatus.RUNNING)
            .distinct()
        )
        return [int(session) for session in connection.execute(query).scalars() if session is not None]

    # -- stopping

    def begin_stop(self, connection: Connection, job: AnyRow, doom: str, reason: str, now: int) -> None:
        """Start no further item: runs that wait are canceled, those that run see it at their next
        checkpoint."""
        status = next_bulk_status(BulkStatus(job.status), "stop")
        self.set_bulk(connection, job.id, now, status=status, doom=doom, reason=reason[:LONGEST_REASON])
        waiting = (
            select(runs.c.id)
            .join(bulk_segments, bulk_segments.c.run_id == runs.c.id)
            .where(bulk_segments.c.job_id == job.id, bulk_segments.c.state == SegmentState.OPEN)
            .where(runs.c.status.in_(NOT_STARTED))
        )
        ids = list(connection.execute(waiting).scalars())
        if job.launcher is not None:
            ids.append(job.launcher)
        if ids:
            self.cancels.cancel_many(connection, ids, reason, now)
        # Look at the job even if nothing of it was running.
        self.outbox.add(connection, [("bulk", job.id)])

    # -- what follows when runs end

    def bulk_jobs_ended(self, connection: Connection, job_ids: Sequence[int], now: int) -> list[BulkRest]:
        """Returns the jobs that came to rest."""
        rested: list[BulkRest] = []
        for job_id in sorted(set(job_ids)):
            job = self.bulk_row(connection, job_id, any_namespace=True)
            if job is not None and (rest := self._look_at(connection, job, now)) is not None:
                rested.append(rest)
        return rested

    def _look_at(self, connection: Connection, job: AnyRow, now: int) -> BulkRest | None:
        """Read the status of the job's runs, and do what follows from it."""
        if job.checker is not None:
            checker = self.run_of(connection, job.checker)
            if checker is None or checker.status in TERMINAL:
                self._check_ended(connection, job, _why("its check", checker), now)
            return None
        if job.status not in (BulkStatus.RUNNING, BulkStatus.STOPPING):
            return None
        if job.launcher is not None:
            launcher = self.run_of(connection, job.launcher)
            if launcher is not None and launcher.status not in TERMINAL:
                return None
            self.set_bulk(connection, job.id, now, launcher=None)
            job = self.bulk_row(connection, job.id, any_namespace=True)
            if job.status == BulkStatus.RUNNING:
                # It ended and launched nothing: its business refused, or took too long.
                self.begin_stop(connection, job, "stop", _why("its launch", launcher), now)
                job = self.bulk_row(connection, job.id, any_namespace=True)
        under_way = 0
        again: list[int] = []
        for row in connection.execute(_open_with_runs(job.id)).all():
            if row.status is not None and row.status not in TERMINAL:
                under_way += 1
                continue
            mine = (bulk_segments.c.job_id == job.id, bulk_segments.c.number == row.number)
            connection.execute(
                update(bulk_segments)
                .where(*mine, bulk_segments.c.state == SegmentState.OPEN)
                .values(state=SegmentState.IDLE, run_id=None, **NOTHING_HELD, held_by=None)
            )
            if job.status == BulkStatus.RUNNING:
                if row.status == RunStatus.SUCCEEDED:
                    again.append(row.number)  # it ended because of a stop that is over
                    continue
                doom = "stop" if row.status == RunStatus.CANCELED else "fail"
                self.begin_stop(connection, job, doom, _why(f"segment {row.number}", row), now)
                job = self.bulk_row(connection, job.id, any_namespace=True)
        if job.status == BulkStatus.RUNNING and again:
            self.open_segments(connection, job, again, now)
            under_way += len(again)
        return self._come_to_rest(connection, job, now) if under_way == 0 else None

    def _come_to_rest(self, connection: Connection, job: AnyRow, now: int) -> BulkRest | None:
        """No run of the job is open any more: finish, stop or fail it."""
        if job.total is not None and job.ended == job.total and job.doom != "fail":
            verb = "finish"
        elif job.status == BulkStatus.STOPPING:
            verb = "fail" if job.doom == "fail" else "halt"
        else:
            return None
        status = next_bulk_status(BulkStatus(job.status), verb)
        over = status in (BulkStatus.FINISHED, BulkStatus.FAILED)
        reason = None if status is BulkStatus.FINISHED else job.reason
        self.set_bulk(
            connection,
            job.id,
            now,
            status=status,
            doom=None,
            reason=reason,
            finished_at=now if over else None,
            speed=0.0,
            held_by=None,
        )
        self.call_back(connection, job, "finish" if status is BulkStatus.FINISHED else "stop", now)
        if status is BulkStatus.FAILED:
            facts = {"reason": reason, "ended": job.ended, "quarantined": job.quarantined, "total": job.total}
            self.bulk_alarm(connection, job, "bulk_job_failed", facts, now)
        if job.parent_run is not None:
            self.outbox.add(connection, [(PARENT_TOPIC, job.parent_run)])
        return BulkRest(
            job_id=job.id, namespace=job.namespace, business=job.business, status=status, reason=reason
        )

    def bulk_alarm(
        self, connection: Connection, job: AnyRow, event: str, facts: dict[str, Any], now: int
    ) -> None:
        """Post an alert to the job's webhook, if the job has one for this event."""
        alerts = spec_of_bulk(job).alerts
        if alerts is None or not (alerts.on_stalled if event == "bulk_job_stalled" else alerts.on_failure):
            return
        body = {
            "event": event,
            "namespace": job.namespace,
            "bulk_job_id": job.id,
            "name": job.name,
            "business": job.business,
            "at": iso(now),
            **facts,
        }
        new_run = NewRun(
            lane_id=self.lanes.lane_id(connection, Lane(job.namespace, ALERT_QUEUE, "http", "http")),
            payload=encode({"url": alerts.webhook, "method": "POST", "body": body}, "the alert"),
            options=encode({"retry": ALERT_RETRY.to_dict(), "timeout": 30.0}, "options"),
        )
        self.run_writer.insert_runs(connection, [new_run], now, job.namespace)

    def call_back(self, connection: Connection, job: AnyRow, callback: str, now: int) -> None:
        """Insert the run of a callback, if the business has one for this."""
        if callback in job.callbacks.split(","):
            payload = {"job": job.id, "callback": callback}
            self.bulk_run(connection, job, [payload], CALLBACK_RETRY, now, timeout=LAUNCH_TIMEOUT, kind=None)

    def _check_ended(self, connection: Connection, job: AnyRow, why: str, now: int) -> None:
        """The run that asked the business ended without an answer."""
        self.refuse(connection, job, why, "wait", now)

    def refuse(self, connection: Connection, job: AnyRow, reason: str, checking: str, now: int) -> None:
        values: dict[str, Any] = {}
        if job.status == BulkStatus.CREATED:
            values = {"status": next_bulk_status(BulkStatus.CREATED, "refuse"), "finished_at": now}
        self.set_bulk(connection, job.id, now, checking=checking, checker=None, reason=reason[:500], **values)
        self.bulk_note(connection, job.id, "operator", "", f"not accepted: {reason}", now)
        if job.parent_run is not None:
            self.outbox.add(connection, [(PARENT_TOPIC, job.parent_run)])

    def running_attempt(self, connection: Connection, run_id: int, attempt: int) -> Any:
        """Returns the run while this attempt of it runs, locked: it stays so until the commit."""
        query = select(runs.c.id, runs.c.session_id).where(
            runs.c.id == run_id, runs.c.attempt == attempt, runs.c.status == RunStatus.RUNNING
        )
        return connection.execute(query.with_for_update()).one_or_none()

    def run_of(self, connection: Connection, run_id: int) -> Any:
        query = select(runs.c.id, runs.c.status, runs.c.error, runs.c.reason).where(runs.c.id == run_id)
        return connection.execute(query).one_or_none()


def _handler(job: AnyRow) -> str:
    return job.handler or handler_of_business(job.business)


def _open_with_runs(job_id: int) -> Any:
    return (
        select(bulk_segments.c.number, runs.c.status, runs.c.error, runs.c.reason)
        .outerjoin(runs, runs.c.id == bulk_segments.c.run_id)
        .where(bulk_segments.c.job_id == job_id, bulk_segments.c.state == SegmentState.OPEN)
        .order_by(bulk_segments.c.number)
    )


def new_segment(job_id: int, number: int, first: int, stop: int) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "number": number,
        "first": first,
        "stop": stop,
        "watermark": first,
        "reached": first,
        "done": "",
        "state": SegmentState.IDLE,
    }


def _why(what: str, run: AnyRow) -> str:
    if run is None:
        return f"{what}: its run does not exist any more"
    lines = (run.error or run.reason or "").strip().splitlines()
    return f"{what} ended {run.status}: {lines[-1] if lines else 'no reason recorded'}"
