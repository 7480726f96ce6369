"""What people ask of a batch, and what they see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, exists, func, insert, select, update

from fusee.errors import Conflict, LeaseLost, NotFound
from fusee.model import Effect, RunStatus
from fusee.model.batch import Batch, BatchPhase, BatchStatus, BatchTask, batch_status, target_status
from fusee.store.batch_ends import BatchEnds
from fusee.store.batch_intake import HIDDEN, BatchIntake, spec_of_batch
from fusee.store.batch_moves import Moving
from fusee.store.batch_schema import COUNTED, batch_tasks, batches
from fusee.store.rows import decode, encode
from fusee.store.schema import runs
from fusee.store.task_schema import ended
from fusee.store.waiter import Waiter, must_own
from fusee.store.wakes import ENDED

__all__ = ["BatchFilter", "Batches", "TargetFilter"]


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


class Batches(BatchIntake, BatchEnds):
    # -- commands

    async def apply_batch(
        self, batch_id: int, version: int | None = None, waiter: Waiter | None = None
    ) -> Batch:
        """Start it; asked twice, nothing changes. An attempt that lost its run starts nothing."""

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if waiter is not None:
                must_own(connection, waiter)
            if batch.phase == BatchPhase.APPLYING:
                batch.version_step = 0
                return
            if batch.phase != BatchPhase.PLANNED:
                raise Conflict(
                    f"batch {batch.id} is {batch.phase}: retry its failed targets, or roll it back"
                )
            batch.phase, batch.started_at = BatchPhase.APPLYING, now

        return await self._command(batch_id, version, change)

    async def cancel_batch(self, batch_id: int, reason: str, version: int | None = None) -> Batch:
        """No further target starts, or is undone; what runs keeps its real outcome."""

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if batch.phase == BatchPhase.DONE:
                raise Conflict(f"batch {batch.id} is done: there is nothing to cancel")
            if batch.phase != BatchPhase.STOPPING:
                self._stop(connection, batch, reason, now)
            batch.undo_next = False

        return await self._command(batch_id, version, change)

    async def retry_batch(
        self, batch_id: int, *, canceled: bool = False, version: int | None = None
    ) -> tuple[Batch, int]:
        """Try the failed targets again (and, when asked, those that were canceled); answers how many."""
        tried: list[int] = []

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if batch.phase not in (BatchPhase.DONE, BatchPhase.APPLYING):
                raise Conflict(f"batch {batch.id} is {batch.phase}: wait until it is done")
            tried[:] = [self._line_up_retries(connection, batch, canceled)]
            if tried[0] or batch.pending:
                batch.phase, batch.reason = BatchPhase.APPLYING, None
                batch.started_at = batch.started_at or now
                batch.stopped = batch.stopped and not canceled

        return await self._command(batch_id, version, change), tried[0]

    async def roll_back_batch(
        self,
        batch_id: int,
        *,
        targets: Sequence[str] | None = None,
        force: bool = False,
        reason: str = "rolled back by request",
        version: int | None = None,
    ) -> Batch:
        """Undo what was applied or may have been, newest first; what runs is let end before."""

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if batch.phase == BatchPhase.ROLLING_BACK:
                raise Conflict(f"batch {batch.id} is being rolled back: wait for it")
            if batch.phase == BatchPhase.PLANNED:
                raise Conflict(f"batch {batch.id} has not started: there is nothing to undo")
            batch.force = force
            if batch.phase in (BatchPhase.APPLYING, BatchPhase.STOPPING):
                if targets is not None:
                    raise Conflict(
                        f"batch {batch.id} is {batch.phase}: cancel it, and wait until it is done, before"
                        " undoing chosen targets"
                    )
                if batch.phase == BatchPhase.APPLYING:
                    self._stop(connection, batch, reason, now)
                batch.undo_next = True
                return
            if targets is not None:
                self._known_targets(connection, batch.id, targets)
            batch.reason = reason[:500]
            if self._begin_rollback(connection, batch, targets) == 0:
                raise Conflict(
                    f"no target of batch {batch.id} is left that was touched: there is nothing to undo"
                )

        return await self._command(batch_id, version, change)

    async def wake_batch(self, batch_id: int) -> None:
        """Have a look at it now."""

        def work(connection: Connection) -> None:
            connection.execute(insert(ended).values(kind="batch", run_id=batch_id, many=0))
            self._notify(connection, ENDED)

        await self.database.write(work)
        self.wakes.fire(ENDED)

    async def _command(self, batch_id: int, version: int | None, change: Any) -> Batch:
        def work(connection: Connection) -> Batch:
            row = self._batch_row(connection, batch_id)
            if row is None:
                raise NotFound(f"no batch {batch_id} in namespace {self.namespace!r}")
            if version is not None and row.version != version:
                raise Conflict(
                    f"batch {batch_id} is at version {row.version}, not {version}: look at it again"
                )
            now = self._now(connection)
            batch = Moving(row)
            batch.version_step = 1
            change(connection, batch, now)
            self._move_on(connection, batch, now)
            return batch_from(connection.execute(select(batches).where(batches.c.id == batch_id)).one())

        batch = await self.database.write(work)
        for kind in ("pending", "ended", "cancel"):
            self.wakes.fire(kind)
        return batch

    def _line_up_retries(self, connection: Connection, batch: Moving, canceled: bool) -> int:
        statuses = ["failed", "timed_out", *(["canceled", "skipped"] if canceled else [])]
        before = runs.alias()
        ended_badly = select(before.c.id).where(
            before.c.id == batch_tasks.c.run_id, before.c.status.in_(statuses)
        )
        conditions = (
            batch_tasks.c.batch_id == batch.id,
            batch_tasks.c.todo.is_(None),
            batch_tasks.c.rollback_run_id.is_(None),
            # Said when the end is counted: one that is not yet would be counted for its old run, or for none.
            batch_tasks.c.info.is_not(None),
            exists(ended_badly),
        )
        count = 0
        for status, many in self._by_status(connection, *conditions):
            stands = "cancel" if status in ("canceled", "skipped") else "fail"
            batch.shift(stands, "retry_pending", many)
            count += many
        change = update(batch_tasks).where(*conditions)
        connection.execute(change.values(todo="retry", turn=batch_tasks.c.position))
        if canceled and batch.stopped:  # those that never started
            never = batch.total - batch.reached
            batch.shift("cancel", "pending", never)
            count += never
        return count

    def _known_targets(self, connection: Connection, batch_id: int, targets: Sequence[str]) -> None:
        query = select(batch_tasks.c.target_id).where(
            batch_tasks.c.batch_id == batch_id, batch_tasks.c.target_id.in_(targets)
        )
        known = set(connection.execute(query).scalars())
        unknown = [target for target in targets if target not in known]
        if unknown:
            raise NotFound(f"batch {batch_id} has no target {unknown[0]!r}")

    # -- what a handler keeps

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        """What the target was before it is touched; fenced: an attempt that lost its run keeps nothing.

        Answers the image that stands: the first, since a later attempt may look at what an earlier one left
        half done.
        """
        text = encode(image, "the image")

        def work(connection: Connection) -> Any:
            mine = select(runs.c.id).where(
                runs.c.id == run_id, runs.c.attempt == attempt, runs.c.status == RunStatus.RUNNING
            )
            if connection.execute(mine.with_for_update()).one_or_none() is None:
                raise LeaseLost(f"attempt {attempt} of run {run_id} is over: it must touch nothing")
            change = update(batch_tasks).where(batch_tasks.c.run_id == run_id, batch_tasks.c.image.is_(None))
            if connection.execute(change.values(image=text)).rowcount:
                return image
            return decode(connection.execute(_image_of(run_id)).scalar_one())

        return await self.database.write(work)

    async def image_of(self, run_id: int) -> Any:
        """What an earlier attempt kept."""
        query = _image_of(run_id)
        return decode(
            await self.database.read(lambda connection: connection.execute(query).scalar_one_or_none())
        )

    # -- looking

    async def batch(self, batch_id: int) -> Batch:
        query = self._visible().where(batches.c.id == batch_id)
        row = await self.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no batch {batch_id} in namespace {self.namespace!r}")
        return batch_from(row)

    async def batches(self, wanted: BatchFilter) -> list[Batch]:
        query = self._visible().order_by(batches.c.id.desc()).limit(wanted.limit)
        if wanted.status:
            query = query.where(batches.c.status.in_(wanted.status))
        for name in ("batch_type", "target_type", "creator", "env", "region", "az"):
            if (value := getattr(wanted, name)) is not None:
                query = query.where(batches.c[name] == value)
        if wanted.before is not None:
            query = query.where(batches.c.id < wanted.before)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return [batch_from(row) for row in rows]

    def _visible(self) -> Select[Any]:
        return select(batches).where(batches.c.namespace == self.namespace, batches.c.phase.not_in(HIDDEN))

    async def batch_tasks(self, batch_id: int, wanted: TargetFilter) -> list[BatchTask]:
        """A page of targets; with a status, the page is filled from as many rows as that takes."""
        batch = await self.batch(batch_id)
        applied, undone = runs.alias("applied"), runs.alias("undone")
        query = (
            select(
                batch_tasks,
                applied.c.status.label("run_status"),
                applied.c.attempt,
                applied.c.effect,
                undone.c.status.label("rollback_status"),
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
            rows = await self.database.read(lambda connection, page=page: connection.execute(page).all())  # type: ignore[misc]
            if not rows:
                break
            # Targets that had no run wait for theirs all together, or were canceled all together.
            tasks = [_task(row, stopped=batch.counts[BatchStatus.PENDING] == 0) for row in rows]
            found += [task for task in tasks if not wanted.status or task.status in wanted.status]
            after = rows[-1].position
        return found[: wanted.limit]

    async def recount_batch(self, batch_id: int) -> tuple[dict[BatchStatus, int], dict[BatchStatus, int]]:
        """(as kept, as counted from the targets themselves), at one moment."""

        def work(connection: Connection) -> tuple[dict[BatchStatus, int], dict[BatchStatus, int]]:
            row = self._batch_row(connection, batch_id)
            if row is None:
                raise NotFound(f"no batch {batch_id} in namespace {self.namespace!r}")
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

        return await self.database.write(work)


def _counted_as(
    todo: str | None, run: str | None, rollback: str | None, started: bool, stopped: bool
) -> BatchStatus:
    """A batch counts a target as running from when it has a run until that has ended."""
    if todo is not None:
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


def _image_of(run_id: int) -> Select[Any]:
    return select(batch_tasks.c.image).where(batch_tasks.c.run_id == run_id)


_TO_DO = {
    "retry": BatchStatus.RETRY_PENDING,
    "undo": BatchStatus.ROLLBACK_PENDING,
    "left": BatchStatus.ROLLBACK_FAIL,
}
"""Where a target stands whose turn is still to come."""


def batch_from(row: Any) -> Batch:
    counts = {BatchStatus(name): int(getattr(row, name)) for name in COUNTED}
    return Batch(
        id=row.id,
        namespace=row.namespace,
        spec=spec_of_batch(row),
        phase=BatchPhase(row.phase),
        status=batch_status(counts) if row.total else BatchStatus(row.status),
        reason=row.reason,
        version=row.version,
        total=row.total,
        counts=counts,
        window=row.window,
        created_at=row.created_at,
        updated_at=row.updated_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _task(row: Any, *, stopped: bool) -> BatchTask:
    payload = decode(row.payload)
    if row.todo is not None:
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
        info=row.info,
        retry_time=row.retry_time,
        run_id=row.run_id,
        rollback_run_id=row.rollback_run_id,
    )
