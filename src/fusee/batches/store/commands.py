"""The commands on a batch: apply, cancel, retry, roll back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, exists, or_, select, update

from fusee.batches.model.batch import Batch, BatchPhase
from fusee.batches.model.spec import OnConflict
from fusee.batches.store.exclusion import UNDER_WAY
from fusee.batches.store.moves import BatchMoves
from fusee.batches.store.moving import Moving
from fusee.batches.store.queries import batch_from
from fusee.batches.store.tables import Stands, batch_tasks, batches
from fusee.batches.store.truth import as_it_is
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.parents import ParentRun, must_own
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember
from fusee.engine.store.tables import runs
from fusee.engine.store.wakes import ENDED
from fusee.errors import Conflict, NotFound

__all__ = ["BatchCommands"]


class BatchCommands:
    def __init__(self, context: StoreContext, moves: BatchMoves, outbox: Outbox) -> None:
        self.context = context
        self.outbox = outbox
        self.moves = moves

    async def apply_batch(
        self, batch_id: int, version: int | None = None, parent: ParentRun | None = None
    ) -> Batch:
        """Start it; asked twice, nothing changes. An attempt that lost its run starts nothing."""

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if parent is not None:
                must_own(connection, parent)
            if batch.phase == BatchPhase.APPLYING:
                batch.version_step = 0
                return
            if batch.phase != BatchPhase.PLANNED:
                raise Conflict(
                    f"batch {batch.id} is {batch.phase}: retry its failed targets, or roll it back"
                )
            batch.step("apply")
            batch.started_at = now

        return await self._command(batch_id, version, change)

    async def cancel_batch(self, batch_id: int, reason: str, version: int | None = None) -> Batch:
        """No further target starts, or is undone; what runs keeps its real outcome."""

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if batch.phase == BatchPhase.DONE:
                raise Conflict(f"batch {batch.id} is done: there is nothing to cancel")
            if batch.phase != BatchPhase.STOPPING:
                self.moves.stop(connection, batch, reason, now)
            batch.undo_next = False

        return await self._command(batch_id, version, change)

    async def retry_batch(
        self,
        batch_id: int,
        *,
        canceled: bool = False,
        version: int | None = None,
        request: KeyedRequest | None = None,
    ) -> tuple[Batch, int]:
        """Try the failed targets again (and, when asked, those that were canceled); returns how many.

        Under a key that was used before nothing is tried: the batch as it is, and how many it was then.
        """
        tried: list[int] = []

        def change(connection: Connection, batch: Moving, now: int) -> None:
            if batch.phase not in (BatchPhase.DONE, BatchPhase.APPLYING):
                raise Conflict(f"batch {batch.id} is {batch.phase}: wait until it is done")
            tried[:] = [self._line_up_retries(connection, batch, canceled)]
            remember(connection, self.context.namespace, request, tried[0], now)
            if tried[0] or batch.pending:
                if batch.phase != BatchPhase.APPLYING:
                    batch.step("retry")
                batch.reason = None
                batch.started_at = batch.started_at or now
                batch.stopped = batch.stopped and not canceled

        def again(connection: Connection) -> bool:
            made = made_before(connection, self.context.namespace, request)
            if made is not None:
                tried[:] = [int(made)]
            return made is not None

        return await self._command(batch_id, version, change, again), tried[0]

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
                    self.moves.stop(connection, batch, reason, now)
                batch.undo_next = True
                return
            if targets is not None:
                self._known_targets(connection, batch.id, targets)
            batch.reason = reason[:500]
            if self.moves.rollbacks.begin(connection, batch, targets) == 0:
                raise Conflict(
                    f"no target of batch {batch.id} is left that was touched: there is nothing to undo"
                )

        return await self._command(batch_id, version, change)

    async def wake_batch(self, batch_id: int) -> None:
        """Have the aggregator look at it now."""

        await self.context.database.write(
            lambda connection: self.outbox.add(connection, [("batch", batch_id)])
        )
        self.context.wakes.fire(ENDED)

    async def _command(
        self,
        batch_id: int,
        version: int | None,
        change: Any,
        done_before: Callable[[Connection], bool] = lambda connection: False,
    ) -> Batch:
        def work(connection: Connection) -> Batch:
            row = self.moves.batch_row(connection, batch_id)
            if row is None:
                raise NotFound(f"no batch {batch_id} in namespace {self.context.namespace!r}")
            if done_before(connection):
                return batch_from(row)
            if version is not None and row.version != version:
                raise Conflict(
                    f"batch {batch_id} is at version {row.version}, not {version}: look at it again"
                )
            now = self.context.now(connection)
            batch = Moving(row)
            batch.version_step = 1
            change(connection, batch, now)
            if batch.phase in UNDER_WAY and row.phase not in UNDER_WAY:
                batch.entered_at = now
                self._refuse_conflict(connection, batch)
            self.moves.move_on(connection, batch, now)
            after = connection.execute(select(batches).where(batches.c.id == batch_id)).one()
            return as_it_is(connection, batch_from(after), now)

        batch = await self.context.write_aloud(work)
        for kind in ("pending", "ended", "cancel"):
            self.context.wakes.fire(kind)
        return batch

    def _refuse_conflict(self, connection: Connection, batch: Moving) -> None:
        """Where the batch does not want to wait for targets that another one has."""
        if batch.spec.on_conflict is not OnConflict.REFUSE:
            return
        undoes = batch.phase == BatchPhase.ROLLING_BACK
        wanted = (
            batch_tasks.c.todo == "undo"
            if undoes
            else or_(batch_tasks.c.todo.in_(("retry", "parked")), batch_tasks.c.run_id.is_(None))
        )
        conflict = self.moves.rivals(connection, batch).first_conflict(wanted)
        if conflict is not None:
            raise Conflict(
                f"batch {conflict[1]} has target {conflict[0]!r} too, and is not done with it: wait for that"
                f' batch, or let this one wait for its targets with on_conflict = "wait"'
            )

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
        for status, many in self.moves.by_status(connection, *conditions):
            stands: Stands = "cancel" if status in ("canceled", "skipped") else "fail"
            batch.shift(stands, "retry_pending", many)
            count += many
        change = update(batch_tasks).where(*conditions)
        connection.execute(change.values(todo="retry", turn=batch_tasks.c.position))
        if canceled and batch.stopped:  # those that never started
            never = batch.total - batch.begun
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
