"""Reading batches and their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from fusee.batches.model.batch import (
    Batch,
    BatchLoad,
    BatchPhase,
    BatchStatus,
    BatchTask,
    batch_status,
    target_status,
)
from fusee.batches.store.intake import HIDDEN, spec_of_batch
from fusee.batches.store.tables import COUNTED, batch_tasks, batches
from fusee.batches.store.truth import as_it_is, with_those_shown_as
from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode
from fusee.engine.store.set_aside import reading
from fusee.engine.store.tables import attempts, runs
from fusee.errors import NotFound
from fusee.values.chunks import chunks

__all__ = ["BatchFilter", "BatchQueries", "TargetFilter", "batch_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFilter:
    """Which batches to list; newest first, below `before` when given."""

    status: Sequence[BatchStatus] = ()
    batch_type: str | None = None
    target_type: str | None = None
    creator: str | None = None
    env: str | None = None
    region: str | None = None
    az: str | None = None
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFilter:
    """Which targets to list; by position, from `after` on when given."""

    status: Sequence[BatchStatus] = ()
    after: int | None = None
    limit: int = 50


NOT_DONE = (BatchPhase.PLANNED, BatchPhase.APPLYING, BatchPhase.STOPPING, BatchPhase.ROLLING_BACK)


class BatchQueries:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def batch(self, batch_id: int) -> Batch:
        query = self._visible().where(batches.c.id == batch_id)

        def work(connection: Connection) -> Batch | None:
            row = connection.execute(query).one_or_none()
            return (
                None if row is None else as_it_is(connection, batch_from(row), self.context.now(connection))
            )

        batch = await self.context.database.read(work)
        if batch is None:
            raise NotFound(f"no batch {batch_id} in namespace {self.context.namespace!r}")
        return batch

    async def batches(self, wanted: BatchFilter) -> list[Batch]:
        query = self._visible().order_by(batches.c.id.desc())
        if wanted.status:
            query = query.where(batches.c.status.in_(with_those_shown_as(wanted.status)))
        for name in ("batch_type", "target_type", "creator", "env", "region", "az"):
            if (value := getattr(wanted, name)) is not None:
                query = query.where(batches.c[name] == value)
        if wanted.before is not None:
            query = query.where(batches.c.id < wanted.before)
        found: list[Batch] = []
        while True:
            want = wanted.limit - len(found)
            page = await self.context.page(
                query, want, lambda last: batches.c.id < last.id, "batch", batch_from
            )
            shown = await self.context.database.read(
                lambda connection, page=page: [  # type: ignore[misc]
                    as_it_is(connection, batch, self.context.now(connection)) for batch in page
                ]
            )
            found += [batch for batch in shown if not wanted.status or batch.status in wanted.status]
            if len(page) < want or len(found) >= wanted.limit:
                return found
            query = query.where(batches.c.id < page[-1].id)

    async def batch_loads(self) -> list[BatchLoad]:
        """What is not done, by operation and phase."""
        sums = [func.sum(batches.c[name]).label(name) for name in COUNTED]
        by = (batches.c.target_type, batches.c.batch_type, batches.c.phase)
        query = (
            select(*by, func.count().label("many"), *sums)
            .where(batches.c.namespace == self.context.namespace, batches.c.phase.in_(NOT_DONE))
            .group_by(*by)
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [
            BatchLoad(
                operation=f"{row.target_type}.{row.batch_type}",
                phase=BatchPhase(row.phase),
                batches=int(row.many),
                targets={BatchStatus(name): int(getattr(row, name)) for name in COUNTED},
            )
            for row in rows
        ]

    def _visible(self) -> Select[Any]:
        return select(batches).where(
            batches.c.namespace == self.context.namespace, batches.c.phase.not_in(HIDDEN)
        )

    async def batch_tasks(self, batch_id: int, wanted: TargetFilter) -> list[BatchTask]:
        """A page of targets; with a status, the page is filled from as many rows as that takes."""
        known = self._visible().where(batches.c.id == batch_id)
        batch = await self.context.database.read(lambda connection: connection.execute(known).one_or_none())
        if batch is None:
            raise NotFound(f"no batch {batch_id} in namespace {self.context.namespace!r}")
        applied, undone = runs.alias("applied"), runs.alias("undone")
        query = (
            select(
                batch_tasks,
                applied.c.status.label("run_status"),
                applied.c.attempt,
                applied.c.effect,
                applied.c.origin_id,
                undone.c.status.label("rollback_status"),
                undone.c.attempt.label("rollback_attempt"),
            )
            .outerjoin(applied, applied.c.id == batch_tasks.c.run_id)
            .outerjoin(undone, undone.c.id == batch_tasks.c.rollback_run_id)
            .where(batch_tasks.c.batch_id == batch_id)
            .order_by(batch_tasks.c.position)
        )
        found: list[BatchTask] = []
        after = -1 if wanted.after is None else wanted.after
        while len(found) < wanted.limit:
            page = query.where(batch_tasks.c.position > after).limit(max(wanted.limit, 500))
            rows = await self.context.database.read(
                lambda connection, page=page: connection.execute(page).all()  # type: ignore[misc]
            )
            if not rows:
                break
            # Targets that had no run wait for theirs all together, or were canceled all together.
            stopped = batch.pending == 0
            past = await self.context.database.read(lambda connection, rows=rows: _past(connection, rows))  # type: ignore[misc]
            tasks = self.context.set_aside.readable(
                "targets listed",
                "batch",
                rows,
                lambda row: _task(row, stopped=stopped, past=past),  # noqa: B023 -- called at once
                id_of=lambda row: int(row.batch_id),
                key_of=lambda row: (row.batch_id, row.position),
            )
            found += [task for task in tasks if not wanted.status or task.status in wanted.status]
            after = rows[-1].position
        return found[: wanted.limit]

    async def recount_batch(self, batch_id: int) -> tuple[dict[BatchStatus, int], dict[BatchStatus, int]]:
        """(as kept, as counted from the targets themselves), at one moment."""

        def work(connection: Connection) -> tuple[dict[BatchStatus, int], dict[BatchStatus, int]]:
            query = self._visible().where(batches.c.id == batch_id).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is None:
                raise NotFound(f"no batch {batch_id} in namespace {self.context.namespace!r}")
            kept = {BatchStatus(name): int(getattr(row, name)) for name in COUNTED}
            applied, undone = runs.alias(), runs.alias()
            query = (
                select(
                    batch_tasks.c.todo,
                    applied.c.status,
                    undone.c.status,
                    batch_tasks.c.run_id.is_not(None),
                    func.count(),
                )
                .outerjoin(applied, applied.c.id == batch_tasks.c.run_id)
                .outerjoin(undone, undone.c.id == batch_tasks.c.rollback_run_id)
                .where(batch_tasks.c.batch_id == batch_id)
                .group_by(
                    batch_tasks.c.todo, applied.c.status, undone.c.status, batch_tasks.c.run_id.is_not(None)
                )
            )
            counted = dict.fromkeys(kept, 0)
            for todo, run, rollback, started, count in connection.execute(query):
                status = _counted_as(todo, run, rollback, bool(started), bool(row.stopped))
                counted[status] = counted.get(status, 0) + int(count)
            return kept, counted

        return await self.context.database.write(work)


def _counted_as(
    todo: str | None, run: str | None, rollback: str | None, started: bool, stopped: bool
) -> BatchStatus:
    """A batch counts a target as running from when it has a run until that has ended."""
    if todo is not None and todo != "parked":
        return _TO_DO[todo]
    status = target_status(
        RunStatus(run) if run else None,
        RunStatus(rollback) if rollback else None,
        started=started,
        stopped=stopped,
        retried=False,
    )
    if status is BatchStatus.ROLLBACK_PENDING:
        return BatchStatus.ROLLBACK_RUNNING
    return BatchStatus.RUNNING if status is BatchStatus.PENDING and started else status


_TO_DO = {
    "retry": BatchStatus.RETRY_PENDING,
    "undo": BatchStatus.ROLLBACK_PENDING,
    "left": BatchStatus.ROLLBACK_FAIL,
}
"""The status of a target whose turn is still to come."""


def batch_from(row: Any) -> Batch:
    return reading("batch", row.id, lambda: _batch(row))


def _batch(row: Any) -> Batch:
    counts = {BatchStatus(name): int(getattr(row, name)) for name in COUNTED}
    return Batch(
        id=row.id,
        namespace=row.namespace,
        spec=spec_of_batch(row),
        phase=BatchPhase(row.phase),
        status=batch_status(counts, left=row.left_applied) if row.total else BatchStatus(row.status),
        left_applied=row.left_applied,
        kept_until=row.kept_until,
        reason=row.reason,
        version=row.version,
        total=row.total,
        counts=counts,
        window=row.window,
        waits_for=row.waits_for,
        created_at=row.created_at,
        updated_at=row.updated_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


WAITS = ("blocked", "pending", "delayed", "dispatched")


def _past(connection: Connection, rows: Sequence[Any]) -> dict[int, str]:
    """Run → what is known of its last try, for the runs of these targets that wait for another."""
    again = [row.run_id for row in rows if row.run_status in WAITS and row.attempt]
    again += [row.rollback_run_id for row in rows if row.rollback_status in WAITS and row.rollback_attempt]
    origins = {
        row.origin_id: row.run_id
        for row in rows
        if row.run_status in WAITS and not row.attempt and row.origin_id is not None
    }
    found: dict[int, str] = {}
    for chunk in chunks(again):
        part = attempts.c.run_id.in_(chunk)
        query = select(attempts.c.run_id, attempts.c.attempt, attempts.c.ended, attempts.c.error).where(part)
        for one in connection.execute(query.order_by(attempts.c.run_id, attempts.c.attempt)):
            found[one.run_id] = f"attempt {one.attempt} {one.ended}: {one.error or 'no reason given'}"
    ids = sorted(origins)
    for chunk in chunks(ids):
        part = runs.c.id.in_(chunk)
        query = select(runs.c.id, runs.c.status, runs.c.error, runs.c.reason).where(part)
        for one in connection.execute(query):
            found[origins[one.id]] = (
                f"run {one.id} {one.status}: {one.error or one.reason or 'no reason given'}"
            )
    return found


def _task(row: Any, *, stopped: bool, past: Mapping[int, str]) -> BatchTask:
    payload = decode(row.payload)
    if row.todo is not None and row.todo != "parked":  # which never had a run
        status = _TO_DO[row.todo]
    else:
        status = target_status(
            RunStatus(row.run_status) if row.run_status else None,
            RunStatus(row.rollback_status) if row.rollback_status else None,
            started=row.run_id is not None,
            stopped=stopped,
            retried=row.retry_time > 0 or bool(row.attempt),
        )
    return BatchTask(
        batch_id=row.batch_id,
        position=row.position,
        target_id=row.target_id,
        target_name=row.target_name,
        target_env=row.target_env,
        before=payload["before"],
        after=payload["after"],
        image=decode(row.image),
        status=status,
        effect=Effect(row.effect) if row.effect else None,
        info=row.info or _waits_again(row, past),
        retry_time=row.retry_time + _tried_again(row),
        run_id=row.run_id,
        rollback_run_id=row.rollback_run_id,
    )


def _waits_again(row: Any, past: Mapping[int, str]) -> str | None:
    told = past.get(row.rollback_run_id) if row.rollback_run_id is not None else past.get(row.run_id)
    return None if told is None else f"waits to be tried again; {told}"


def _tried_again(row: Any) -> int:
    """Automatic retries of its run: one less than its attempts, or as many when another is to come."""
    attempt: int = row.attempt or 0
    return attempt if row.run_status in WAITS else max(0, attempt - 1)
