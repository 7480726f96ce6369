"""Rolling back: what a batch applied, or may have applied, is undone, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, exists, func, or_, select, update

from fusee.batches.store.exclusion import Rivals
from fusee.batches.store.moving import STANDS, Moving
from fusee.batches.store.starts import HAS_UNDO, TOUCHED, TargetStarts
from fusee.batches.store.tables import Stands, batch_tasks
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode, encode_rows
from fusee.engine.store.tables import runs
from fusee.events import BatchRollingBack

__all__ = ["Rollbacks"]

UNDONE_BADLY = ("failed", "timed_out", "canceled", "skipped", "missed")


class Rollbacks:
    def __init__(self, context: StoreContext, starts: TargetStarts) -> None:
        self.context = context
        self.starts = starts

    def begin(self, connection: Connection, batch: Moving, chosen: Sequence[str] | None) -> int:
        """Queue for a rollback what was applied or may have been, newest first; returns how many targets."""
        applied, undoing = runs.alias(), runs.alias()
        touched = (
            select(applied.c.id)
            .where(applied.c.id == batch_tasks.c.run_id)
            .where(applied.c.effect.in_(TOUCHED), applied.c.finished_at.is_not(None))
        )
        failed_before = (
            select(undoing.c.id)
            .where(undoing.c.id == batch_tasks.c.rollback_run_id)
            .where(undoing.c.status.in_(UNDONE_BADLY))
        )
        conditions = [
            batch_tasks.c.batch_id == batch.id,
            or_(batch_tasks.c.todo.is_(None), batch_tasks.c.todo == "left"),
            exists(touched),
            or_(batch_tasks.c.rollback_run_id.is_(None), exists(failed_before)),
        ]
        if chosen is not None:
            conditions.append(batch_tasks.c.target_id.in_(chosen))
        again = or_(batch_tasks.c.rollback_run_id.is_not(None), batch_tasks.c.todo.is_not(None))
        query = (
            select(runs.c.status, again, func.count())
            .select_from(batch_tasks.join(runs, runs.c.id == batch_tasks.c.run_id))
            .where(*conditions)
            .group_by(runs.c.status, again)
        )
        lined_up = 0
        for status, undone_before, count in connection.execute(query).all():
            stands: Stands = "rollback_fail" if undone_before else STANDS[RunStatus(status)]
            batch.shift(stands, "rollback_pending", count)
            lined_up += count
        # Newest first: the later it started, the earlier its turn. In the database: it may be a million rows.
        since = func.coalesce(runs.c.started_at, runs.c.created_at)
        started = select(-since).where(runs.c.id == batch_tasks.c.run_id).scalar_subquery()
        connection.execute(update(batch_tasks).where(*conditions).values(todo="undo", turn=started))
        batch.undo_next = False
        if lined_up:
            batch.step("roll_back")
            self.context.note(
                connection, BatchRollingBack(**batch.named, targets=lined_up, reason=batch.reason)
            )
        return lined_up

    def undo_more(self, connection: Connection, batch: Moving, rivals: Rivals, now: int) -> None:
        room = batch.undo_room()
        if room > 0 and batch.rollback_pending > 0:
            batch.waits_for = None
            rows = self.starts.next_turns(connection, batch, "undo", room, rivals)
            known = [run_id for row in rows for run_id in (row.run_id, row.rollback_run_id) if run_id]
            effects = self.starts.effects_of(connection, known)
            payloads = []
            for row in rows:
                payload = decode(row.payload)
                payload |= {
                    "rollback": True,
                    "force": bool(batch.force),
                    # What an earlier rollback began is no longer as the batch left it: that is not drift.
                    "effect": "unknown"
                    if effects.get(row.rollback_run_id) in TOUCHED
                    else effects.get(row.run_id, "unknown"),
                    "image": decode(row.image),
                    "captured": row.image is not None,
                }
                payloads.append(encode_rows(payload))
            ids = self.starts.insert_for(connection, batch, payloads, now, [row.run_id for row in rows])
            self.starts.set_runs(connection, HAS_UNDO, batch, rows, ids)
            batch.shift("rollback_pending", "rollback_running", len(rows))
            if batch.rollback_pending and len(rows) < room:
                self.starts.note_holder(connection, batch, "undo", rivals)
        if batch.rollback_pending + batch.rollback_running == 0:
            batch.step("finish")

    def left_applied(self, connection: Connection, batch: Moving) -> int | None:
        """How many targets are applied, or may be, and were not undone; looked at where it decides."""
        if not batch.rollback_success or not batch.success + batch.fail + batch.cancel:
            return 0 if batch.rollback_success else None
        query = (
            select(func.count())
            .select_from(batch_tasks.join(runs, runs.c.id == batch_tasks.c.run_id))
            .where(
                batch_tasks.c.batch_id == batch.id,
                batch_tasks.c.rollback_run_id.is_(None),
                batch_tasks.c.todo.is_(None),
                runs.c.effect.in_(TOUCHED),
            )
        )
        return int(connection.execute(query).scalar_one())
