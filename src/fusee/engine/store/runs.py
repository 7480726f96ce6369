"""Looking at runs, and telling them to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    null,
    select,
    update,
)

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Attempt, Lane, Run
from fusee.engine.model.states import RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import check_same
from fusee.engine.store.rows import decode
from fusee.engine.store.set_aside import reading
from fusee.engine.store.tables import (
    RARE,
    attempts,
    callbacks,
    delayed,
    lanes,
    ready,
    receipts,
    runs,
    sessions,
)
from fusee.engine.store.wakes import CANCEL, ENDED
from fusee.errors import Conflict, NotFound
from fusee.values.chunks import chunks
from fusee.values.labels import requires_from

__all__ = ["RunFilter", "Runs"]

LARGE = ("payload", "result", "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list; newest first, below `before` when given."""

    status: Sequence[RunStatus] = ()
    handler: str | None = None
    queue: str | None = None
    before: int | None = None
    limit: int = 50


class Runs:
    def __init__(self, context: StoreContext, cancels: Cancels) -> None:
        self.context = context
        self.cancels = cancels

    def _select(self, *, brief: bool = False) -> Select[Any]:
        """`brief` leaves out what can be large: a page of a thousand runs must not be a gigabyte."""
        columns = [null().label(c.name) if brief and c.name in LARGE else c for c in runs.c]
        query = (
            select(
                *columns,
                lanes.c.queue,
                lanes.c.executor,
                lanes.c.handler,
                lanes.c.region,
                sessions.c.worker,
                null().label("deadline") if brief else callbacks.c.deadline,
            )
            .join(lanes, lanes.c.id == runs.c.lane_id)
            .outerjoin(sessions, sessions.c.id == runs.c.session_id)
            .where(runs.c.namespace == self.context.namespace)
        )
        called = and_(callbacks.c.run_id == runs.c.id, callbacks.c.attempt == runs.c.attempt)
        return query if brief else query.outerjoin(callbacks, called)

    async def run(self, run_id: int) -> Run:
        query = self._select().where(runs.c.id == run_id)
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no run {run_id} in namespace {self.context.namespace!r}")
        return reading("run", run_id, lambda: _run(row))

    async def run_under(self, key: str, digest: str) -> Run | None:
        """The run that this request made under that idempotency key; `Conflict` when another did."""
        query = self._select().where(runs.c.idempotency_key == key)
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        check_same(key, row.request_digest, digest, f"run {row.id}")
        return _run(row)

    async def runs(self, wanted: RunFilter) -> list[Run]:
        """Without payload, result and output: `run` has them."""
        query = self._select(brief=True).order_by(runs.c.id.desc())
        if wanted.status:
            query = query.where(runs.c.status.in_(wanted.status))
            if set(wanted.status) <= RARE:
                query = query.where(runs.c.rare.in_(wanted.status))
            elif set(wanted.status) == {RunStatus.PENDING}:
                query = query.where(runs.c.id.in_(select(ready.c.run_id)))
            elif set(wanted.status) == {RunStatus.DELAYED}:
                query = query.where(runs.c.id.in_(select(delayed.c.run_id)))
            elif set(wanted.status) == {RunStatus.DISPATCHED}:
                query = query.where(runs.c.id.in_(select(dispatched.c.run_id)))
            elif set(wanted.status) == {RunStatus.RUNNING}:
                # Written into the statement: PostgreSQL takes at most 32767 parameters.
                ids: Any = bindparam("ids", await self.in_flight(), expanding=True, literal_execute=True)
                query = query.where(runs.c.id.in_(ids))
        if wanted.handler is not None:
            query = query.where(lanes.c.handler == wanted.handler)
        if wanted.queue is not None:
            query = query.where(lanes.c.queue == wanted.queue)
        if wanted.before is not None:
            query = query.where(runs.c.id < wanted.before)
        return await self.context.page(query, wanted.limit, lambda last: runs.c.id < last.id, "run", _run)

    async def attempts(self, run_id: int) -> list[Attempt]:
        query = (
            select(attempts, sessions.c.worker)
            .outerjoin(sessions, sessions.c.id == attempts.c.session_id)
            .where(attempts.c.namespace == self.context.namespace, attempts.c.run_id == run_id)
            .order_by(attempts.c.attempt)
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return self.context.set_aside.readable(
            "attempts listed",
            "run",
            rows,
            _attempt,
            id_of=lambda row: int(row.run_id),
            key_of=lambda row: (row.run_id, row.attempt),
        )

    async def ended(self, run_ids: Sequence[int]) -> dict[int, RunStatus]:
        """Which of them are terminal, and how they ended; unknown ids are left out."""
        query = select(runs.c.id, runs.c.status).where(
            runs.c.namespace == self.context.namespace,
            runs.c.id.in_(run_ids),
            runs.c.finished_at.is_not(None),
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return {row.id: RunStatus(row.status) for row in rows}

    async def cancel(self, run_id: int, reason: str) -> RunStatus:
        """Cancel what has not started; ask a running one to stop. Returns the status that it has now."""

        def work(connection: Connection) -> RunStatus:
            mine = select(runs.c.status).where(
                runs.c.namespace == self.context.namespace, runs.c.id == run_id
            )
            if connection.execute(mine).one_or_none() is None:
                raise NotFound(f"no run {run_id} in namespace {self.context.namespace!r}")
            status = self.cancels.cancel_many(connection, [run_id], reason, self.context.now(connection))[
                run_id
            ]
            if status not in (RunStatus.CANCELED, RunStatus.RUNNING):
                raise Conflict(f"run {run_id} has ended ({status}): there is nothing to cancel")
            return status

        status = await self.context.database.write(work)
        self.context.wakes.fire(CANCEL)
        self.context.wakes.fire(ENDED)
        return status

    async def claimed_ago(self, run_id: int) -> float | None:
        """Seconds since a running run was claimed, by the database's clock; None when it is not running."""

        def work(connection: Connection) -> float | None:
            query = select(runs.c.started_at).where(
                runs.c.namespace == self.context.namespace,
                runs.c.id == run_id,
                runs.c.status == RunStatus.RUNNING,
            )
            started: int | None = connection.execute(query).scalar_one_or_none()
            return None if started is None else (self.context.now(connection) - started) / 1_000_000

        return await self.context.database.read(work)

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        """Whether an attempt that was claimed a while ago may still begin: it is this session's, and nobody
        canceled it. A cancel that comes later waits as for a run that was claimed just now."""
        change = (
            update(runs)
            .where(
                runs.c.id == run_id,
                runs.c.attempt == attempt,
                runs.c.session_id == session,
                runs.c.status == RunStatus.RUNNING,
                runs.c.cancel_requested_at.is_(None),
            )
            .values(started_at=self.context.database.now)
        )
        return await self.context.database.write(lambda connection: connection.execute(change).rowcount == 1)

    async def cancel_requests(self, session: int, run_ids: Sequence[int]) -> list[tuple[int, int]]:
        """(run id, attempt) of those that this session runs and someone asked to stop."""
        rows: list[tuple[int, int]] = []
        for part in chunks(run_ids):
            query = select(runs.c.id, runs.c.attempt).where(
                runs.c.id.in_(part),
                runs.c.session_id == session,
                runs.c.status == RunStatus.RUNNING,
                runs.c.cancel_requested_at.is_not(None),
            )
            found = await self.context.database.read(
                lambda connection, query=query: connection.execute(query).all()  # type: ignore[misc]
            )
            rows += [(row.id, row.attempt) for row in found]
        return rows

    async def in_flight(self, session: int | None = None) -> list[int]:
        """Ids on the receipts of one session, or of all: whatever is running is among them."""
        query = select(receipts.c.run_ids)
        if session is not None:
            query = query.where(receipts.c.session_id == session)
        texts = await self.context.database.read(lambda connection: connection.execute(query).scalars().all())
        # Handed back and claimed again, a run is on two receipts.
        return sorted({int(run_id) for text in texts for run_id in text.split(",")})

    async def owned(self, session: int) -> list[tuple[int, int]]:
        """(run id, attempt) of everything the store believes this session runs."""
        rows: list[tuple[int, int]] = []
        ids = await self.in_flight(session)
        for part in chunks(ids):
            query = select(runs.c.id, runs.c.attempt).where(
                runs.c.id.in_(part),
                runs.c.session_id == session,
                runs.c.status == RunStatus.RUNNING,
            )
            found = await self.context.database.read(
                lambda connection, query=query: connection.execute(query).all()  # type: ignore[misc]
            )
            rows += [(row.id, row.attempt) for row in found]
        return rows


def _run(row: Row[Any]) -> Run:
    options = decode(row.options) or {}
    return Run(
        id=row.id,
        namespace=row.namespace,
        queue=row.queue,
        executor=row.executor,
        handler=row.handler,
        region=(lane := Lane.at(row.namespace, row.queue, row.executor, row.handler, row.region)).region,
        status=RunStatus(row.status),
        reason=row.reason,
        priority=row.priority,
        attempt=row.attempt,
        spent=row.spent,
        payload=decode(row.payload) or {},
        timeout=options.get("timeout"),
        retry=RetryPolicy.as_stored(options["retry"]) if "retry" in options else None,
        result=decode(row.result),
        error=row.error,
        output=row.output,
        effect=Effect(row.effect) if row.effect else None,
        idempotency_key=row.idempotency_key,
        origin_id=row.origin_id,
        worker=row.worker,
        created_at=row.created_at,
        due_at=row.due_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        cancel_requested_at=row.cancel_requested_at,
        callback_deadline=row.deadline,
        kind=row.kind,
        fire_time=options.get("fire_time"),
        shard_index=options.get("shard_index", 0),
        shard_total=options.get("shard_total", 1),
        task=options.get("task"),
        strategy=lane.strategy,
        requires=requires_from(lane.requires),
        cpu=options.get("cpu"),
        memory=options.get("memory"),
        hash_key=options.get("hash_key"),
        target=options.get("worker"),
    )


def _attempt(row: Row[Any]) -> Attempt:
    return Attempt(
        run_id=row.run_id,
        attempt=row.attempt,
        end=End(row.ended),
        worker=row.worker,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error,
        output=row.output,
        effect=Effect(row.effect) if row.effect else None,
        late_end=row.late_end,
        late_at=row.late_at,
    )
