"""The commands of a bulk job: start, stop, adjust, extend, data, logs and delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, delete, or_, select

from fusee.bulk.model.job import AT_REST, UNKNOWN, BulkJob, BulkStatus
from fusee.bulk.model.segment import Found
from fusee.bulk.store.creation import BulkCreation
from fusee.bulk.store.launches import BulkLaunches, next_of
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.queries import BulkQueries
from fusee.bulk.store.rows import counted_in, definition_of, items_in, job_from, shown_change, spec_of_bulk
from fusee.bulk.store.tables import bulk_jobs, bulk_logs, bulk_quarantine, bulk_segments
from fusee.engine.model.states import TERMINAL
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.rows import AnyRow, decode, encode
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict

__all__ = ["BulkJobs"]

Change = Callable[[Connection, Any, int], bool]
"""Returns whether it changed anything."""
LIVE_COLUMNS = ("rate", "concurrency", "window", "item_timeout")
"""What workers learn with every checkpoint."""
ONLY_AT_REST = ("item_attempts", "item_backoff")
"""What a worker reads when it takes a segment."""


class BulkJobs:
    def __init__(
        self,
        context: StoreContext,
        moves: BulkMoves,
        launches: BulkLaunches,
        creation: BulkCreation,
        outbox: Outbox,
        queries: BulkQueries,
    ) -> None:
        self.context = context
        self.moves = moves
        self.launches = launches
        self.creation = creation
        self.outbox = outbox
        self.queries = queries

    async def start_bulk_job(
        self,
        job_id: int,
        *,
        by_business: bool = False,
        force: bool = False,
        who: str = "",
        version: int | None = None,
    ) -> BulkJob:
        """Start it, or resume it where it was. A failed job gets a fresh error budget.

        `force`: start it also while it waits for its business to start it."""

        def change(connection: Connection, job: AnyRow, now: int) -> bool:
            status = BulkStatus(job.status)
            if status is BulkStatus.RUNNING:
                return False
            if job.checking is not None:
                return self.creation.start_when_checked(connection, job, who, now)
            if status is BulkStatus.WAITING_BUSINESS and not by_business and not force:
                raise Conflict(
                    f"bulk job {job.id} waits for its business to start it; use force to start it now"
                )
            if by_business and status is not BulkStatus.WAITING_BUSINESS:
                raise Conflict(
                    f"bulk job {job.id} is {status}: its business can start it only while it waits for that"
                )
            if status is BulkStatus.WAITING_BUSINESS:
                verb = "business_start"
            else:
                verb = "start" if status is BulkStatus.CREATED else "resume"
            words = self.launches.start(connection, job, verb, now)
            text = "started" if verb == "start" else "resumed"
            if verb == "business_start":
                by_force = "started by force while it waited for its business"
                text = "started by its business" if by_business else by_force
            self.moves.bulk_note(connection, job.id, "operator", who, text + words, now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def stop_bulk_job(
        self, job_id: int, *, reason: str = "stopped by request", who: str = "", version: int | None = None
    ) -> BulkJob:
        """Record the stop; every worker sees it at its next checkpoint."""

        def change(connection: Connection, job: AnyRow, now: int) -> bool:
            status = BulkStatus(job.status)
            if status in (BulkStatus.STOPPING, BulkStatus.STOPPED):
                return False
            if job.checking == "start":
                self.moves.set_bulk(connection, job.id, now, checking="wait")
                self.moves.bulk_note(connection, job.id, "operator", who, "will not start automatically", now)
                return True
            if status is BulkStatus.WAITING_BUSINESS:
                self.moves.set_bulk(connection, job.id, now, status=next_of(job, "stop"), reason=reason[:500])
                self.moves.call_back(connection, job, "stop", now)  # its business has prepared itself
                if job.parent_run is not None:
                    self.outbox.add(connection, [(PARENT_TOPIC, job.parent_run)])
            else:
                next_of(job, "stop")
                self.moves.begin_stop(connection, job, "stop", reason, now)
            self.moves.bulk_note(connection, job.id, "operator", who, f"stopped: {reason}", now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def adjust_bulk_job(
        self,
        job_id: int,
        changes: Mapping[str, Any],
        *,
        who: str = "",
        version: int | None = None,
    ) -> BulkJob:
        """Change some fields; running segments follow at their next checkpoint."""

        def change(connection: Connection, job: AnyRow, now: int) -> bool:
            if job.status == BulkStatus.FINISHED:
                raise Conflict(f"bulk job {job.id} is finished: nothing can be changed any more")
            spec = spec_of_bulk(job)
            now_set = {
                name: getattr(job, name) if name in LIVE_COLUMNS else getattr(spec, name) for name in changes
            }
            different = {name: value for name, value in changes.items() if value != now_set[name]}
            if not different:
                return False
            busy = job.status in (BulkStatus.RUNNING, BulkStatus.STOPPING)
            if busy and (fixed := [name for name in different if name in ONLY_AT_REST]):
                raise Conflict(
                    f"bulk job {job.id} is {job.status}: stop it before you change its {' and '.join(fixed)}"
                )
            values = {name: value for name, value in different.items() if name in LIVE_COLUMNS}
            kept = {name: value for name, value in different.items() if name not in LIVE_COLUMNS}
            if kept:
                changed = replace(spec, **kept)
                values["definition"], _ = definition_of(changed)
                if "error_budget" in kept and job.total is not None:
                    fresh = changed.errors_allowed(counted_in(job))
                    before = (spec.errors_allowed(counted_in(job)) or 0) if job.allowed is not None else 0
                    granted = (job.allowed or 0) - before  # what resumes added
                    values["allowed"] = None if fresh is None else granted + fresh
            self.moves.set_bulk(connection, job.id, now, rate_at=now, **values)
            shown = ", ".join(f"{name} {shown_change(name, value)}" for name, value in different.items())
            self.moves.bulk_note(connection, job.id, "operator", who, f"changed: {shown}", now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def extend_bulk_job(
        self, job_id: int, found: Found, *, who: str = "", version: int | None = None
    ) -> BulkJob:
        """Add the items that its source has after the job's last item; this does not start the job."""
        fingerprint = None if found.fingerprint is None else encode(found.fingerprint, "fingerprint")

        def change(connection: Connection, job: AnyRow, now: int) -> bool:
            status = next_of(job, "extend")
            if job.total is None:
                raise Conflict(f"bulk job {job.id} was never launched: it takes all items when it is started")
            end = job.first + job.total
            if found.stop <= end:
                raise Conflict(
                    f"the source has no items beyond those of bulk job {job.id}: it ends at {found.stop},"
                    f" the job at {end}"
                )
            numbers = self.launches.cut(connection, job, end, found.stop)
            total, spec = found.stop - job.first, spec_of_bulk(job)
            items = None if found.rows is None else UNKNOWN
            if found.rows not in (None, UNKNOWN) and job.item_count != UNKNOWN:
                items = (items_in(job) or 0) + found.rows
            before = counted_in(job)
            after = total if items in (None, UNKNOWN) else items
            more = (spec.errors_allowed(after) or 0) - (spec.errors_allowed(before) or 0)
            values: dict[str, Any] = {}
            if job.status == BulkStatus.FINISHED:
                values = {"finished_at": None, "reason": "extended: start it to handle the new items"}
            self.moves.set_bulk(
                connection,
                job.id,
                now,
                status=status,
                total=total,
                item_count=items,
                made=job.made + len(numbers),
                allowed=None if job.allowed is None else job.allowed + more,
                fingerprint=fingerprint,
                **values,
            )
            added = "unknown many" if found.rows == UNKNOWN else found.rows or found.stop - end
            text = f"extended by {added} items: from {end} to {found.stop - 1}"
            self.moves.bulk_note(connection, job.id, "operator", who, text, now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def set_bulk_data(
        self, job_id: int, data: Any, *, who: str = "", version: int | None = None
    ) -> BulkJob:
        """Set the business's own data, only while nothing runs, so that all items see the same data."""
        text = None if data is None else encode(data, "data")

        def change(connection: Connection, job: AnyRow, now: int) -> bool:
            if job.status in (BulkStatus.RUNNING, BulkStatus.STOPPING) and job.launcher is None:
                raise Conflict(f"bulk job {job.id} is {job.status}: stop it before you change its data")
            self.moves.set_bulk(connection, job.id, now, data=text)
            self.moves.bulk_note(connection, job.id, "operator", who, "data changed", now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def log_bulk_data(
        self, job_id: int, text: str, who: str = "", request: KeyedRequest | None = None
    ) -> int:
        """Append a line to the job's data log; returns its number."""

        def work(connection: Connection) -> int:
            self._row(connection, job_id)
            if (made := made_before(connection, self.context.namespace, request)) is not None:
                return int(made)
            now = self.context.now(connection)
            number = self.moves.bulk_note(connection, job_id, "data", who, text, now)
            remember(connection, self.context.namespace, request, number, now)
            return number

        return await write_once(self.context.database, work, request)

    async def _bulk_command(self, job_id: int, version: int | None, change: Change) -> BulkJob:
        def work(connection: Connection) -> BulkJob:
            row = self._row(connection, job_id, version)
            now = self.context.now(connection)
            changed = change(connection, row, now)
            if changed:
                self.moves.set_bulk(connection, job_id, now, version=row.version + 1)
            return replace(job_from(connection.execute(_job(job_id)).one()), changed=changed)

        job = await self.context.database.write(work)
        for kind in (PENDING, ENDED, "cancel"):
            self.context.wakes.fire(kind)
        return job

    def _row(self, connection: Connection, job_id: int, version: int | None = None) -> Any:
        """Returns the job's row, locked; raises when there is none, or when it is at another version."""
        row = self.moves.bulk_row(connection, job_id)
        if row is None:
            raise self.queries.no_bulk(job_id)
        if version is not None and row.version != version:
            raise Conflict(f"bulk job {job_id} is at version {row.version}, not {version}: look at it again")
        return row

    async def delete_bulk_job(self, job_id: int, version: int | None = None) -> None:
        """Delete it with its segments, its quarantine and its logs. Raises `Conflict` while it runs, while a
        run waits for it, and while an unfinished job undoes it or reruns its quarantine."""

        def work(connection: Connection) -> None:
            job = self._row(connection, job_id, version)
            if job.status not in AT_REST:
                raise Conflict(f"bulk job {job_id} is {job.status}: stop it before you delete it")
            if job.checker is not None and job.checking in ("wait", "start"):
                raise Conflict(f"bulk job {job_id} is being checked by its business: delete it after that")
            if job.parent_run is not None:
                parent = self.moves.run_of(connection, job.parent_run)
                if parent is not None and parent.status not in TERMINAL:
                    raise Conflict(
                        f"run {job.parent_run} waits for bulk job {job_id}: let it end, or cancel it"
                    )
            needed_by = self._reader_of(connection, job_id)
            if needed_by is not None:
                raise Conflict(
                    f"bulk job {needed_by} reads the items of bulk job {job_id}: let it finish, or delete it"
                    " first"
                )
            for table in (bulk_quarantine, bulk_segments, bulk_logs):
                connection.execute(delete(table).where(table.c.job_id == job_id))
            connection.execute(delete(bulk_jobs).where(bulk_jobs.c.id == job_id))

        await self.context.database.write(work)

    def _reader_of(self, connection: Connection, job_id: int) -> int | None:
        """Returns an unfinished job whose source is this job."""
        derived = or_(bulk_jobs.c.undo_of == job_id, bulk_jobs.c.source.like('%"quarantine"%'))
        query = (
            select(bulk_jobs.c.id, bulk_jobs.c.source)
            .where(bulk_jobs.c.namespace == self.context.namespace, bulk_jobs.c.id > job_id)
            .where(bulk_jobs.c.status != BulkStatus.FINISHED, derived)
            .order_by(bulk_jobs.c.id)
        )
        for row in connection.execute(query):
            if _reads(decode(row.source), job_id):
                return int(row.id)
        return None


def _job(job_id: int) -> Any:
    return select(bulk_jobs).where(bulk_jobs.c.id == job_id)


def _reads(source: Any, job_id: int) -> bool:
    if not isinstance(source, Mapping):
        return False
    if source.get("kind") in ("quarantine", "done") and source.get("job") == job_id:
        return True
    return _reads(source.get("source"), job_id)
