"""What people and businesses ask of a bulk job, and how it is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from fusee.bulk.model.job import HTTP_HANDLER, UNKNOWN, BulkJob, BulkStatus, next_bulk_status
from fusee.bulk.model.segment import Found, SegmentState
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.store.businesses import BusinessRegistry
from fusee.bulk.store.checks import BulkChecks, next_of
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.queries import BulkQueries
from fusee.bulk.store.rows import counted_in, definition_of, items_in, job_from, shown_change, spec_of_bulk
from fusee.bulk.store.tables import bulk_jobs, bulk_segments
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.request_keys import (
    KeyedRequest,
    asked,
    check_same,
    digest_of,
    made_before,
    remember,
    write_once,
)
from fusee.engine.store.rows import encode
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict, LeaseLost

__all__ = ["BulkJobs"]

Change = Callable[[Connection, Any, int], bool]
"""Returns whether it changed anything."""
LIVE_COLUMNS = ("rate", "concurrency", "window", "item_timeout")
"""What workers hear of with every checkpoint."""
ONLY_AT_REST = ("item_attempts", "item_backoff")
"""What a worker reads when it takes a segment."""


class BulkJobs:
    def __init__(
        self,
        context: StoreContext,
        moves: BulkMoves,
        checks: BulkChecks,
        businesses: BusinessRegistry,
        outbox: Outbox,
        queries: BulkQueries,
    ) -> None:
        self.context = context
        self.moves = moves
        self.checks = checks
        self.businesses = businesses
        self.outbox = outbox
        self.queries = queries

    async def create_bulk_job(
        self,
        spec: BulkSpec,
        data: Any = None,
        *,
        bounds: tuple[int, int] | None = None,
        idempotency_key: str | None = None,
        request_digest: str | None = None,
        undo_of: int | None = None,
        parent_run: int | None = None,
        who: str = "",
        check: str | None = None,
    ) -> tuple[BulkJob, bool]:
        """(the job, whether it is new). `bounds` (first item, one past the last) when they are known; what a
        key is bound to is the digest, or the job itself without one. `check`: its business has to agree
        first, asked by the caller (`here`) or by a worker (`worker`)."""
        definition, source = definition_of(spec)
        digest = request_digest or digest_of("bulk job", {**asked(spec), "data": data})

        def known(connection: Connection) -> Any:
            if parent_run is not None:
                mine = bulk_jobs.c.parent_run == parent_run
            elif idempotency_key is not None:
                mine = bulk_jobs.c.idempotency_key == idempotency_key
            else:
                return None
            query = select(bulk_jobs).where(bulk_jobs.c.namespace == self.context.namespace, mine)
            return connection.execute(query).one_or_none()

        def work(connection: Connection) -> tuple[BulkJob, bool]:
            row = known(connection)
            if row is not None:
                if parent_run is None:
                    check_same(idempotency_key, row.request_digest, digest, f"bulk job {row.id}")
                return job_from(row), False
            now = self.context.now(connection)
            remote = self.businesses.business_row(connection, spec.business, lock=True) is not None
            added = connection.execute(
                insert(bulk_jobs).values(
                    namespace=self.context.namespace,
                    name=spec.name,
                    business=spec.business,
                    status=BulkStatus.CREATED,
                    version=1,
                    definition=definition,
                    source=source,
                    data=None if data is None else encode(data, "data"),
                    undo_of=undo_of,
                    first=None if bounds is None else bounds[0],
                    total=None if bounds is None else bounds[1] - bounds[0],
                    allowed=None if bounds is None else spec.errors_allowed(bounds[1] - bounds[0]),
                    concurrency=spec.concurrency,
                    rate=float(spec.rate),
                    window=spec.window,
                    item_timeout=spec.item_timeout or 0.0,
                    parent_run=parent_run,
                    idempotency_key=idempotency_key,
                    request_digest=digest,
                    checking=None if check is None else "wait",
                    handler=HTTP_HANDLER if remote else None,
                    created_at=now,
                    updated_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            job_id = int(key[0])
            self.moves.bulk_note(connection, job_id, "operator", who or spec.creator, "created", now)
            if check == "worker":
                self.checks.begin_check(connection, connection.execute(_job(job_id)).one(), now)
            if parent_run is not None:
                self.outbox.add(connection, [(PARENT_TOPIC, parent_run)])
            return job_from(connection.execute(_job(job_id)).one()), True

        try:
            return await self.context.database.write(work)
        except IntegrityError:  # another was first with this key, at the same moment
            return await self.context.database.write(work)

    async def bulk_job_under(self, key: str, digest: str) -> BulkJob | None:
        """The job that this request made under that idempotency key."""
        query = select(bulk_jobs).where(
            bulk_jobs.c.namespace == self.context.namespace, bulk_jobs.c.idempotency_key == key
        )
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        check_same(key, row.request_digest, digest, f"bulk job {row.id}")
        return job_from(row)

    # -- commands

    async def start_bulk_job(
        self,
        job_id: int,
        *,
        by_business: bool = False,
        force: bool = False,
        who: str = "",
        version: int | None = None,
    ) -> BulkJob:
        """Start, or go on where it was. A job that failed gets a fresh error budget.

        `force`: also one that waits for its business to start it."""

        def change(connection: Connection, job: Any, now: int) -> bool:
            status = BulkStatus(job.status)
            if status is BulkStatus.RUNNING:
                return False
            if job.checking is not None:
                return self.checks.start_when_checked(connection, job, who, now)
            if status is BulkStatus.WAITING_BUSINESS and not by_business and not force:
                raise Conflict(
                    f"bulk job {job.id} waits for its business to start it; to start it all the same: force"
                )
            if by_business and status is not BulkStatus.WAITING_BUSINESS:
                raise Conflict(
                    f"bulk job {job.id} is {status}: its business starts it while it waits for that"
                )
            if status is BulkStatus.WAITING_BUSINESS:
                verb = "business_start"
            else:
                verb = "start" if status is BulkStatus.CREATED else "resume"
            words = self.checks.start(connection, job, verb, now)
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
        """A durable intent: seen by every worker at its next checkpoint."""

        def change(connection: Connection, job: Any, now: int) -> bool:
            status = BulkStatus(job.status)
            if status in (BulkStatus.STOPPING, BulkStatus.STOPPED):
                return False
            if job.checking == "start":
                self.moves.set_bulk(connection, job.id, now, checking="wait")
                self.moves.bulk_note(connection, job.id, "operator", who, "will not start by itself", now)
                return True
            if status is BulkStatus.WAITING_BUSINESS:
                self.moves.set_bulk(connection, job.id, now, status=next_of(job, "stop"), reason=reason[:500])
                self.moves.call_back(connection, job, "stop", now)  # it had its start: it prepared itself
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
        """Other values for what can be changed; what runs follows at its next checkpoint."""

        def change(connection: Connection, job: Any, now: int) -> bool:
            if job.status == BulkStatus.FINISHED:
                raise Conflict(f"bulk job {job.id} is finished: there is nothing to change any more")
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
                    granted = (job.allowed or 0) - before  # by resumes
                    values["allowed"] = None if fresh is None else granted + fresh
            self.moves.set_bulk(connection, job.id, now, rate_at=now, **values)
            shown = ", ".join(f"{name} {shown_change(name, value)}" for name, value in different.items())
            self.moves.bulk_note(connection, job.id, "operator", who, f"changed: {shown}", now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def extend_bulk_job(
        self, job_id: int, found: Found, *, who: str = "", version: int | None = None
    ) -> BulkJob:
        """Add what its source has behind the job's last item; the job does not start by itself."""
        fingerprint = None if found.fingerprint is None else encode(found.fingerprint, "fingerprint")

        def change(connection: Connection, job: Any, now: int) -> bool:
            status = next_of(job, "extend")
            if job.total is None:
                raise Conflict(f"bulk job {job.id} was never launched: it takes all items when it is started")
            end = job.first + job.total
            if found.stop <= end:
                raise Conflict(
                    f"the source has no items beyond those of bulk job {job.id}: it ends at {found.stop},"
                    f" the job at {end}"
                )
            numbers = self.moves.cut(connection, job, end, found.stop, now)
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
        """The business's own data; only while nothing runs, so that all items see the same."""
        text = None if data is None else encode(data, "data")

        def change(connection: Connection, job: Any, now: int) -> bool:
            if job.status in (BulkStatus.RUNNING, BulkStatus.STOPPING) and job.launcher is None:
                raise Conflict(f"bulk job {job.id} is {job.status}: stop it before you change its data")
            self.moves.set_bulk(connection, job.id, now, data=text)
            self.moves.bulk_note(connection, job.id, "operator", who, "data changed", now)
            return True

        return await self._bulk_command(job_id, version, change)

    async def log_bulk_data(
        self, job_id: int, text: str, who: str = "", request: KeyedRequest | None = None
    ) -> int:
        """A line in the job's data log; returns its number."""

        def work(connection: Connection) -> int:
            if self.moves.bulk_row(connection, job_id) is None:
                raise self.queries.no_bulk(job_id)
            if (made := made_before(connection, self.context.namespace, request)) is not None:
                return int(made)
            now = self.context.now(connection)
            number = self.moves.bulk_note(connection, job_id, "data", who, text, now)
            remember(connection, self.context.namespace, request, number, now)
            return number

        return await write_once(self.context.database, work, request)

    async def _bulk_command(self, job_id: int, version: int | None, change: Change) -> BulkJob:
        def work(connection: Connection) -> BulkJob:
            row = self.moves.bulk_row(connection, job_id)
            if row is None:
                raise self.queries.no_bulk(job_id)
            if version is not None and row.version != version:
                raise Conflict(
                    f"bulk job {job_id} is at version {row.version}, not {version}: look at it again"
                )
            now = self.context.now(connection)
            changed = change(connection, row, now)
            if changed:
                self.moves.set_bulk(connection, job_id, now, version=row.version + 1)
            return replace(job_from(connection.execute(_job(job_id)).one()), changed=changed)

        job = await self.context.database.write(work)
        for kind in (PENDING, ENDED, "cancel"):
            self.context.wakes.fire(kind)
        return job

    # -- what a launcher does

    async def launch_bulk_job(
        self, run_id: int, attempt: int, job_id: int, found: Found, callbacks: Sequence[str]
    ) -> bool:
        """Its business is ready: its segments get runs. False when the job was stopped meanwhile.

        A job that was launched before keeps its bounds, whatever its source has become."""
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
                numbers = self.moves.cut(connection, job, first, stop, now)
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


def _job(job_id: int) -> Any:
    return select(bulk_jobs).where(bulk_jobs.c.id == job_id)
