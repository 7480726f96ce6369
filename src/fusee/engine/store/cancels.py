"""Telling runs to stop, many in one transaction; no attempt of theirs starts afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update

from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import RUN, RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.callback_waits import leave_waiting
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.ready_queue import ReadyQueue
from fusee.engine.store.tables import LONGEST_REASON, runs
from fusee.engine.store.wakes import CANCEL
from fusee.values.chunks import chunks

__all__ = ["Cancels"]

WAITS = {status for status, verb in RUN if verb == "cancel"} - {RunStatus.RUNNING}
"""Canceled at once; a running one is told to stop."""

_KNOWN = (
    runs.c.id,
    runs.c.status,
    runs.c.lane_id,
    runs.c.priority,
    runs.c.due_at,
    runs.c.kind,
    runs.c.attempt,
)


class Cancels:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue, outbox: Outbox) -> None:
        self.context = context
        self.ready_queue = ready_queue
        self.outbox = outbox

    def cancel_many(
        self, connection: Connection, run_ids: Sequence[int], reason: str, now: int
    ) -> dict[int, RunStatus]:
        """Cancel what has not started; ask what runs to stop. Returns the status of each after that."""
        answer: dict[int, RunStatus] = {}
        ids = sorted(set(run_ids))
        for part in chunks(ids):
            answer |= self._cancel_some(connection, part, reason[:LONGEST_REASON], now)
        return answer

    def _cancel_some(
        self, connection: Connection, ids: Sequence[int], reason: str, now: int
    ) -> dict[int, RunStatus]:
        known = select(*_KNOWN).where(runs.c.id.in_(ids)).order_by(runs.c.id)
        # Their entries first, then their rows, as a claim and a promotion lock them: no deadlock.
        self._withdraw(connection, connection.execute(known).all())
        rows = connection.execute(known.with_for_update()).all()
        over = [row for row in rows if row.status in WAITS]
        running = [row.id for row in rows if row.status == RunStatus.RUNNING]
        if asked := [row.id for row in over if row.status == RunStatus.WAITING]:
            # The outside was asked for something; what came of it, nobody knows. In a statement of its own:
            # MySQL would look at the status that the same statement has just set.
            connection.execute(update(runs).where(runs.c.id.in_(asked)).values(effect=Effect.UNKNOWN))
            leave_waiting(connection, asked)
        if over:
            connection.execute(
                update(runs)
                .where(runs.c.id.in_([row.id for row in over]))
                .values(
                    effect=func.coalesce(runs.c.effect, Effect.NONE),
                    status=RunStatus.CANCELED,
                    rare=RunStatus.CANCELED,
                    finished_at=now,
                    cancel_requested_at=now,
                    reason=reason,
                )
            )
            self._withdraw(connection, over)  # again: one may have come back meanwhile
            self.outbox.add_ends(connection, [(row.kind, row.id) for row in over if row.kind is not None])
            # An attempt may have started a workflow, which ends with it.
            self.outbox.add(connection, [(PARENT_TOPIC, row.id) for row in over if row.attempt])
        if running:
            connection.execute(
                update(runs)
                .where(runs.c.id.in_(running))
                .values(cancel_requested_at=func.coalesce(runs.c.cancel_requested_at, now), reason=reason)
            )
            self.context.notify(connection, CANCEL)
        canceled = {row.id for row in over}
        return {row.id: RunStatus.CANCELED if row.id in canceled else RunStatus(row.status) for row in rows}

    def _withdraw(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Remove these runs from where they wait, if they wait."""
        self.ready_queue.withdraw(connection, rows)
        if sent := [row.id for row in rows if row.status == RunStatus.DISPATCHED]:
            connection.execute(delete(dispatched).where(dispatched.c.run_id.in_(sent)))

    def cancel_blocked(
        self, connection: Connection, run_ids: Sequence[int], reason: str, now: int
    ) -> list[int]:
        """Cancel those that are blocked; returns them. Their owner is not told through the outbox: it is the
        caller, who counts them in the same transaction."""
        blocked = select(runs.c.id).where(runs.c.id.in_(run_ids), runs.c.status == RunStatus.BLOCKED)
        ids = list(connection.execute(blocked.order_by(runs.c.id).with_for_update()).scalars())
        if ids:
            connection.execute(
                update(runs)
                .where(runs.c.id.in_(ids))
                .values(
                    status=RunStatus.CANCELED,
                    rare=RunStatus.CANCELED,
                    finished_at=now,
                    cancel_requested_at=now,
                    reason=reason,
                    effect=Effect.NONE,
                )
            )
        return ids

    def skip_pending(
        self, connection: Connection, entry: Row[Any], run: Row[Any], reason: str, now: int
    ) -> None:
        """Skip a pending run that no worker can take; its entry in the ready queue is locked."""
        connection.execute(
            update(runs)
            .where(runs.c.id == run.id)
            .values(
                status=RunStatus.SKIPPED,
                rare=RunStatus.SKIPPED,
                finished_at=now,
                effect=func.coalesce(runs.c.effect, Effect.NONE),
                reason=reason,
            )
        )
        self.ready_queue.remove(connection, [entry])
        if run.kind is not None:
            self.outbox.add_ends(connection, [(run.kind, run.id)])
