"""Moving a batch on: the next targets start as places become free, too many errors stop it, a rollback runs.

All of it happens under the lock of the batch's row: commands and ends come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, func, select, update

from fusee.batches.model.batch import BatchPhase, batch_status
from fusee.batches.model.spec import handler_of
from fusee.batches.store.exclusion import Rivals, take_target_turn
from fusee.batches.store.intake import HIDDEN
from fusee.batches.store.moving import STANDS, Moving
from fusee.batches.store.rollbacks import Rollbacks
from fusee.batches.store.starts import TargetStarts
from fusee.batches.store.tables import batch_tasks, batches
from fusee.engine.model.states import RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.own_lanes import entries_in, own_lanes
from fusee.engine.store.tables import delayed, lanes, ready, runs
from fusee.engine.store.totals import add_to_totals
from fusee.events import BatchEnded, BatchStopped
from fusee.values.chunks import chunks

__all__ = ["BatchMoves"]

BATCHES_ENDED = "batches_ended"
"""A total by status and operation."""
BATCHES_STOPPED = "batches_stopped"
"""A total by operation: batches that stopped because more targets failed than they allow."""


class BatchMoves:
    def __init__(
        self,
        context: StoreContext,
        starts: TargetStarts,
        rollbacks: Rollbacks,
        cancels: Cancels,
        outbox: Outbox,
    ) -> None:
        self.context = context
        self.starts = starts
        self.rollbacks = rollbacks
        self.cancels = cancels
        self.outbox = outbox

    def batch_row(self, connection: Connection, batch_id: int, *, any_namespace: bool = False) -> Any:
        """Locked."""
        query = select(batches).where(batches.c.id == batch_id, batches.c.phase.not_in(HIDDEN))
        if not any_namespace:
            query = query.where(batches.c.namespace == self.context.namespace)
        return connection.execute(query.with_for_update()).one_or_none()

    def move_on(self, connection: Connection, batch: Moving, now: int, *, freed: bool = True) -> None:
        """Do what is to be done next, and write the batch's row. `freed`: other batches may have waited for
        what brought us here."""
        rivals = self.rivals(connection, batch)
        if batch.phase == BatchPhase.APPLYING:
            self._apply_more(connection, batch, rivals, now)
        if batch.phase == BatchPhase.STOPPING and batch.under_way == 0:
            batch.step("finish")
            if batch.undo_next:
                self.rollbacks.begin(connection, batch, None)
        if batch.phase == BatchPhase.ROLLING_BACK:
            self.rollbacks.undo_more(connection, batch, rivals, now)
        self._save_batch(connection, batch, now)
        if freed:
            self.outbox.add(connection, [("batch", rival) for rival in rivals.waiting()])

    def rivals(self, connection: Connection, batch: Moving) -> Rivals:
        if self.context.database.capabilities.skip_locked:  # else there is one writer
            take_target_turn(connection, batch.namespace, batch.spec.target_type)
        return Rivals(connection, batch.row, batch.entered_at)

    def _apply_more(self, connection: Connection, batch: Moving, rivals: Rivals, now: int) -> None:
        allowed = batch.spec.errors_allowed(batch.total)
        if allowed is not None and batch.fail > allowed:
            reason = f"max_errors {batch.spec.max_errors:g}: {batch.fail} of {batch.total} failed"
            self.stop(connection, batch, reason, now)
            batch.undo_next = batch.spec.on_error == "rollback"
            self.context.note(
                connection, BatchStopped(**batch.named, reason=reason, rollback=batch.undo_next)
            )
            add_to_totals(connection, BATCHES_STOPPED, {(batch.namespace, batch.named["operation"]): 1})
            return
        batch.grow_window()
        room = batch.room()
        if room > 0:
            batch.waits_for = None
            room -= self.starts.start_again(connection, batch, room, rivals, now)
        if room > 0 and batch.parked > 0:
            room -= self.starts.start_parked(connection, batch, room, rivals, now)
        if room > 0 and batch.reached < batch.total:
            if rivals:
                self.starts.start_free(connection, batch, room, rivals, now)
            else:
                self.starts.start_new(connection, batch, min(room, batch.total - batch.reached), now)
        if batch.pending + batch.retry_pending + batch.running == 0:
            batch.step("finish")

    # -- stopping

    def stop(self, connection: Connection, batch: Moving, reason: str, now: int) -> None:
        """No further target starts; an attempt that has started runs to its end (`heed_stops`)."""
        batch.step("stop")
        batch.stopped, batch.reason = True, reason[:500]
        batch.waits_for = None
        batch.shift("pending", "cancel", batch.pending)
        mine = batch_tasks.c.batch_id == batch.id
        if batch.retry_pending:  # they are what they were
            again = (mine, batch_tasks.c.todo == "retry")
            for status, count in self.by_status(connection, *again):
                batch.shift("retry_pending", STANDS[RunStatus(status)], count)
            connection.execute(update(batch_tasks).where(*again).values(todo=None, turn=None))
        if batch.rollback_pending:
            batch.shift("rollback_pending", "rollback_fail", batch.rollback_pending)
            left = {"todo": "left", "turn": None, "info": f"its rollback was stopped: {batch.reason}"}
            connection.execute(update(batch_tasks).where(mine, batch_tasks.c.todo == "undo").values(left))
        self.cancels.cancel_many(connection, self._not_started(connection, batch), batch.reason, now)

    def by_status(self, connection: Connection, *conditions: Any) -> Sequence[Any]:
        """How many targets have a run of which status."""
        query = (
            select(runs.c.status, func.count())
            .select_from(batch_tasks.join(runs, runs.c.id == batch_tasks.c.run_id))
            .where(*conditions)
            .group_by(runs.c.status)
        )
        return connection.execute(query).all()

    def _not_started(self, connection: Connection, batch: Moving) -> list[int]:
        """Runs of this batch that wait for a worker: found where runs wait, not among its targets.

        In the order in which runs move, so that none is passed over; and what can move back, to its home
        lane, is looked at before and after that lane.
        """
        found = self._in_home_lane(connection, batch, delayed)
        found += self._on_their_way(connection, batch)
        found += self._in_home_lane(connection, batch, ready)
        found += self._on_their_way(connection, batch)
        return found

    def _on_their_way(self, connection: Connection, batch: Moving) -> list[int]:
        """Those that a strategy gave to a worker, and those that were handed to the message broker."""
        candidates = [entry.run_id for entry in entries_in(connection, own_lanes(connection))]
        candidates += connection.execute(select(dispatched.c.run_id)).scalars()
        found: list[int] = []
        for chunk in chunks(candidates):
            part = runs.c.id.in_(chunk)
            mine = select(runs.c.id).where(part, runs.c.kind == "batch", runs.c.owner_id == batch.id)
            found += connection.execute(mine).scalars()
        return found

    def _in_home_lane(self, connection: Connection, batch: Moving, place: Table) -> list[int]:
        spec = batch.spec
        lane = select(lanes.c.id).where(
            lanes.c.namespace == batch.namespace,
            lanes.c.queue == spec.queue,
            lanes.c.handler == handler_of(spec.target_type, spec.batch_type),
            lanes.c.region == spec.region,
        )
        query = (
            select(place.c.run_id)
            .join(runs, runs.c.id == place.c.run_id)
            .where(place.c.lane_id.in_(lane), runs.c.owner_id == batch.id)
        )
        return list(connection.execute(query).scalars())

    # -- writing

    def _save_batch(self, connection: Connection, batch: Moving, now: int) -> None:
        if batch.phase != BatchPhase.DONE:
            batch.kept_until = None
        elif batch.row.phase != BatchPhase.DONE:
            batch.left_applied = self.rollbacks.left_applied(connection, batch)
        values = batch.changes()
        values["status"] = batch_status(batch.counts(), left=batch.left_applied)
        values["updated_at"] = now
        if batch.phase == BatchPhase.DONE:
            values["waits_for"] = None
            values["finished_at"] = now if batch.row.phase != BatchPhase.DONE else batch.row.finished_at
            if batch.parent_run is not None and batch.row.phase != BatchPhase.DONE:
                self.outbox.add(connection, [(PARENT_TOPIC, batch.parent_run)])
            if batch.row.phase != BatchPhase.DONE:
                self._note_end(connection, batch, str(values["status"]), now)
        else:
            values["finished_at"] = None
        connection.execute(update(batches).where(batches.c.id == batch.id).values(**values))

    def _note_end(self, connection: Connection, batch: Moving, status: str, now: int) -> None:
        add_to_totals(
            connection, BATCHES_ENDED, {(batch.namespace, f"{status} {batch.named['operation']}"): 1}
        )
        event = BatchEnded(
            **batch.named,
            status=status,
            targets=batch.total,
            failed=batch.fail + batch.rollback_fail,
            seconds=(now - (batch.started_at or now)) / 1_000_000,
            reason=batch.reason,
        )
        self.context.note(connection, event)
