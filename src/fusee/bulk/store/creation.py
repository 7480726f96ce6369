"""Creating a bulk job, and asking its business whether the job may exist.

The process that creates the job asks the business, or a worker that has it. Until the business has agreed,
the job is `created` and `checking`; a start that is requested meanwhile happens when the business has agreed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from fusee.bulk.model.job import HTTP_HANDLER, BulkJob, BulkStatus
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.store.businesses import BusinessRegistry
from fusee.bulk.store.launches import BulkLaunches
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.rows import definition_of, job_from
from fusee.bulk.store.tables import bulk_jobs, bulk_logs
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.request_keys import asked, check_same, digest_of
from fusee.engine.store.rows import AnyRow, encode
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict, LeaseLost

__all__ = ["BulkCreation"]

CHECK_RETRY = RetryPolicy(max_attempts=1000, base=1.0, max=60.0, on=("lost",))
"""A check whose worker was lost is repeated; one that failed has refused the job."""
CHECK_TIMEOUT = 300.0


class BulkCreation:
    def __init__(
        self,
        context: StoreContext,
        moves: BulkMoves,
        launches: BulkLaunches,
        businesses: BusinessRegistry,
        outbox: Outbox,
    ) -> None:
        self.context = context
        self.moves = moves
        self.launches = launches
        self.businesses = businesses
        self.outbox = outbox

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
        """Returns the job, and whether it is new. `bounds` (first item, one past the last) are given when
        they are known. A key is bound to the digest, or without one to the job itself. `check`: its business
        has to agree first, asked by the caller (`here`) or by a worker (`worker`)."""
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
                self._begin_check(connection, connection.execute(_job(job_id)).one(), now)
            if parent_run is not None:
                self.outbox.add(connection, [(PARENT_TOPIC, parent_run)])
            return job_from(connection.execute(_job(job_id)).one()), True

        try:
            return await self.context.database.write(work)
        except IntegrityError:  # another request with this key was first, at the same moment
            return await self.context.database.write(work)

    async def bulk_job_under(self, key: str, digest: str) -> BulkJob | None:
        """Returns the job that this request made under that idempotency key."""
        query = select(bulk_jobs).where(
            bulk_jobs.c.namespace == self.context.namespace, bulk_jobs.c.idempotency_key == key
        )
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        check_same(key, row.request_digest, digest, f"bulk job {row.id}")
        return job_from(row)

    # -- the check by its business

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None = None, attempt: int = 0
    ) -> None:
        """The business agreed, or refused with these words. When a run of it says so, its attempt is the
        fence."""

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
                words = self.launches.start(connection, job, verb, now)
                self.moves.bulk_note(
                    connection, job_id, "operator", "", f"its business agreed: started{words}", now
                )

        await self.context.database.write(work)
        self.context.wakes.fire(PENDING)
        self.context.wakes.fire(ENDED)

    async def withdraw_bulk_job(self, job_id: int, refusal: str | None) -> None:
        """Delete a job that was refused, or whose caller has gone away.

        When it has a key, or a run waits for it, a repetition of the request may have returned the job
        already. Then it stays: as refused, or unchanged when nobody refused it; a start then asks its
        business."""

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
                self.moves.set_bulk(
                    connection, job_id, now, idempotency_key=None
                )  # the key may be used again

        await self.context.database.write(work)
        self.context.wakes.fire(ENDED)

    def _begin_check(self, connection: Connection, job: AnyRow, now: int) -> None:
        payload = {"job": job.id, "check": True}
        (run_id,) = self.moves.bulk_run(connection, job, [payload], CHECK_RETRY, now, timeout=CHECK_TIMEOUT)
        self.moves.set_bulk(connection, job.id, now, checker=run_id)

    def start_when_checked(self, connection: Connection, job: AnyRow, who: str, now: int) -> bool:
        if job.checking == "refused":
            raise Conflict(
                f"bulk job {job.id} was refused by its business ({job.reason}): create another one"
            )
        if job.checking == "start" and job.checker is not None:
            return False
        self.moves.set_bulk(connection, job.id, now, checking="start")
        if job.checker is None:
            self._begin_check(connection, job, now)
        self.moves.bulk_note(connection, job.id, "operator", who, "starts when its business has agreed", now)
        return True


def _job(job_id: int) -> Any:
    return select(bulk_jobs).where(bulk_jobs.c.id == job_id)
