"""Moving a batch on: the next targets start as places become free, too many errors stop it, a rollback runs.

All of it happens under the lock of the batch's row: commands and ends come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, insert, or_, select, update

from fusee.model import Lane, RunStatus
from fusee.model.batch import BatchPhase, BatchSpec, BatchStatus, batch_status
from fusee.store.batch_intake import spec_of_batch
from fusee.store.batch_schema import COUNTED, batch_tasks, batches
from fusee.store.births import Birth, Births
from fusee.store.cancels import Cancels
from fusee.store.rows import decode, encode
from fusee.store.schema import runs
from fusee.store.task_schema import ended
from fusee.store.wakes import ENDED

__all__ = ["BatchMoves", "Moving", "handler_of"]

PORTION = 2500
"""Targets that start in one transaction."""
WITHOUT_CAP = 2 * PORTION
"""Under way at once when no cap is set: enough to keep workers busy, few enough to stop."""
TOUCHED = ("applied", "unknown")
UNDONE_BADLY = ("failed", "timed_out", "canceled", "skipped", "missed")


def handler_of(target_type: str, batch_type: str) -> str:
    """The name under which workers serve an operation."""
    return f"batch.{target_type}.{batch_type}"


class BatchMoves(Cancels, Births):
    def _batch_row(self, connection: Connection, batch_id: int, *, any_namespace: bool = False) -> Any:
        """Locked."""
        query = select(batches).where(batches.c.id == batch_id, batches.c.phase != BatchPhase.UPLOADING)
        if not any_namespace:
            query = query.where(batches.c.namespace == self.namespace)
        return connection.execute(query.with_for_update()).one_or_none()

    def _move_on(self, connection: Connection, batch: Moving, now: int) -> None:
        """Do what is to be done next, and write the batch's row."""
        match BatchPhase(batch.phase):
            case BatchPhase.APPLYING:
                self._apply_more(connection, batch, now)
            case BatchPhase.STOPPING if batch.running == 0:
                if batch.undo_next:
                    self._begin_rollback(connection, batch, None, now)
                else:
                    batch.phase = BatchPhase.DONE
            case BatchPhase.ROLLING_BACK:
                self._undo_more(connection, batch, now)
            case _:
                pass
        self._save_batch(connection, batch, now)

    # -- applying

    def _apply_more(self, connection: Connection, batch: Moving, now: int) -> None:
        allowed = batch.spec.errors_allowed(batch.total)
        if allowed is not None and batch.fail > allowed:
            reason = f"max_errors {batch.spec.max_errors:g}: {batch.fail} of {batch.total} failed"
            self._stop(connection, batch, reason)
            batch.undo_next = batch.spec.on_error == "rollback"
            self._move_on_if_idle(connection, batch, now)
            return
        batch.grow_window()
        room = min(batch.room(), PORTION)
        if room > 0:
            room -= self._start_again(connection, batch, room, now)
        if room > 0 and batch.pending > 0:
            self._start_new(connection, batch, min(room, batch.pending), now)
        if batch.pending + batch.retry_pending + batch.running == 0:
            batch.phase = BatchPhase.DONE

    def _move_on_if_idle(self, connection: Connection, batch: Moving, now: int) -> None:
        if batch.running == 0 and batch.undo_next:
            self._begin_rollback(connection, batch, None, now)
        elif batch.running == 0:
            batch.phase = BatchPhase.DONE

    def _start_new(self, connection: Connection, batch: Moving, count: int, now: int) -> None:
        """The next targets in their order."""
        mine = (batch_tasks.c.batch_id == batch.id, batch_tasks.c.position >= batch.reached)
        query = select(batch_tasks.c.position, batch_tasks.c.payload).where(*mine)
        rows = connection.execute(query.order_by(batch_tasks.c.position).limit(count)).all()
        ids = self._births_of(connection, batch, [row.payload for row in rows], now)
        connection.execute(
            _HAS_RUN,
            [{"b_batch": batch.id, "b_at": r.position, "b_run": i} for r, i in zip(rows, ids, strict=True)],
        )
        batch.reached = rows[-1].position + 1
        batch.shift("pending", "running", len(rows))

    def _start_again(self, connection: Connection, batch: Moving, count: int, now: int) -> int:
        """Failed targets that someone wants tried again come before new ones."""
        if batch.retry_pending == 0:
            return 0
        rows = self._next_turns(connection, batch, "retry", count)
        ids = self._births_of(connection, batch, [row.payload for row in rows], now, [r.run_id for r in rows])
        connection.execute(
            _HAS_RUN_AGAIN,
            [{"b_batch": batch.id, "b_at": r.position, "b_run": i} for r, i in zip(rows, ids, strict=True)],
        )
        batch.shift("retry_pending", "running", len(rows))
        return len(rows)

    def _next_turns(self, connection: Connection, batch: Moving, todo: str, count: int) -> Sequence[Any]:
        query = (
            select(batch_tasks)
            .where(batch_tasks.c.batch_id == batch.id, batch_tasks.c.todo == todo)
            .order_by(batch_tasks.c.turn)
            .limit(count)
        )
        return connection.execute(query).all()

    def _births_of(
        self,
        connection: Connection,
        batch: Moving,
        payloads: Sequence[str],
        now: int,
        origins: Sequence[int | None] = (),
    ) -> list[int]:
        spec = batch.spec
        lane = Lane(
            batch.namespace, spec.queue, "python", handler_of(spec.target_type, spec.batch_type), spec.region
        )
        lane_id = self._lane_id(connection, lane)
        options: dict[str, Any] = {}
        if spec.timeout is not None:
            options["timeout"] = spec.timeout
        if spec.retry is not None:
            options["retry"] = spec.retry.to_dict()
        text = encode(options, "options") if options else None
        births = [
            Birth(
                lane_id=lane_id,
                priority=spec.priority,
                payload=payload,
                options=text,
                kind="batch",
                owner_id=batch.id,
                origin_id=origins[nr] if origins else None,
            )
            for nr, payload in enumerate(payloads)
        ]
        return self._bear(connection, births, now, batch.namespace)

    # -- stopping

    def _stop(self, connection: Connection, batch: Moving, reason: str) -> None:
        """No further target starts; what has started goes on to its end."""
        batch.phase, batch.stopped, batch.reason = BatchPhase.STOPPING, True, reason[:500]
        batch.shift("pending", "cancel", batch.pending)
        batch.shift("retry_pending", "cancel", batch.retry_pending)
        mine = (batch_tasks.c.batch_id == batch.id, batch_tasks.c.todo == "retry")
        connection.execute(update(batch_tasks).where(*mine).values(todo=None, turn=None))

    # -- rolling back

    def _begin_rollback(
        self, connection: Connection, batch: Moving, chosen: Sequence[str] | None, now: int
    ) -> int:
        """Line up what was applied or may have been, newest first; answers how many."""
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
            batch_tasks.c.todo.is_(None),
            exists(touched),
            or_(batch_tasks.c.rollback_run_id.is_(None), exists(failed_before)),
        ]
        if chosen is not None:
            conditions.append(batch_tasks.c.target_id.in_(chosen))
        again = batch_tasks.c.rollback_run_id.is_not(None)
        query = (
            select(runs.c.status, again, func.count())
            .select_from(batch_tasks.join(runs, runs.c.id == batch_tasks.c.run_id))
            .where(*conditions)
            .group_by(runs.c.status, again)
        )
        lined_up = 0
        for status, undone_before, count in connection.execute(query).all():
            stands = "rollback_fail" if undone_before else _STANDS[RunStatus(status)]
            batch.shift(stands, "rollback_pending", count)
            lined_up += count
        # Newest first: the later it started, the earlier its turn. In the database: it may be a million rows.
        started = select(-runs.c.started_at).where(runs.c.id == batch_tasks.c.run_id).scalar_subquery()
        connection.execute(
            update(batch_tasks).where(*conditions).values(todo="undo", turn=started, info=None)
        )
        batch.undo_next = False
        batch.phase = BatchPhase.ROLLING_BACK if lined_up else BatchPhase.DONE
        if lined_up:
            self._undo_more(connection, batch, now)
        return lined_up

    def _undo_more(self, connection: Connection, batch: Moving, now: int) -> None:
        room = min(batch.cap - batch.rollback_running, PORTION)
        if room > 0 and batch.rollback_pending > 0:
            rows = self._next_turns(connection, batch, "undo", room)
            effects = self._effects_of(connection, [row.run_id for row in rows])
            payloads = []
            for row in rows:
                payload = decode(row.payload)
                payload |= {
                    "rollback": True,
                    "force": bool(batch.force),
                    "effect": effects.get(row.run_id, "unknown"),
                    "image": decode(row.image),
                }
                payloads.append(encode(payload, "payload"))
            ids = self._births_of(connection, batch, payloads, now, [row.run_id for row in rows])
            connection.execute(
                _HAS_UNDO,
                [
                    {"b_batch": batch.id, "b_at": r.position, "b_run": i}
                    for r, i in zip(rows, ids, strict=True)
                ],
            )
            batch.shift("rollback_pending", "rollback_running", len(rows))
        if batch.rollback_pending + batch.rollback_running == 0:
            batch.phase = BatchPhase.DONE

    def _effects_of(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for start in range(0, len(run_ids), 500):
            query = select(runs.c.id, runs.c.effect).where(runs.c.id.in_(run_ids[start : start + 500]))
            found |= {row.id: row.effect for row in connection.execute(query)}
        return found

    # -- writing

    def _save_batch(self, connection: Connection, batch: Moving, now: int) -> None:
        values = batch.changes()
        values["status"] = batch_status(batch.counts())
        values["updated_at"] = now
        if batch.phase == BatchPhase.DONE:
            values["finished_at"] = now if batch.row.phase != BatchPhase.DONE else batch.row.finished_at
            if batch.waiter is not None and batch.row.phase != BatchPhase.DONE:
                connection.execute(insert(ended).values(kind="batch_waiter", run_id=batch.id))
                self._notify(connection, ENDED)
        else:
            values["finished_at"] = None
        connection.execute(update(batches).where(batches.c.id == batch.id).values(**values))


class Moving:
    """A batch's row, locked, with what changes in it."""

    KEPT = (
        "phase",
        "reason",
        "reached",
        "stopped",
        "undo_next",
        "force",
        "window",
        "round_left",
        "started_at",
    )

    def __init__(self, row: Any) -> None:
        self.row = row
        self.id: int = row.id
        self.namespace: str = row.namespace
        self.spec: BatchSpec = spec_of_batch(row)
        self.total: int = row.total
        self.waiter: int | None = row.waiter
        self.phase: str = row.phase
        self.reason: str | None = row.reason
        self.reached: int = row.reached
        self.stopped: bool = bool(row.stopped)
        self.undo_next: bool = bool(row.undo_next)
        self.force: bool = bool(row.force)
        self.window: int = row.window
        self.round_left: int = row.round_left
        self.started_at: int | None = row.started_at
        self.version_step = 0
        self._counts: dict[str, int] = {name: getattr(row, name) for name in COUNTED}

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["_counts"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def shift(self, from_status: str, to_status: str, count: int) -> None:
        """So many targets stand elsewhere now."""
        self._counts[from_status] -= count
        self._counts[to_status] += count

    def counts(self) -> dict[BatchStatus, int]:
        return {BatchStatus(name): count for name, count in self._counts.items()}

    @property
    def cap(self) -> int:
        return self.spec.concurrency or WITHOUT_CAP

    def grow_window(self) -> None:
        """The canary passed: begin the ramp. A round of the ramp ended: widen it."""
        canary = min(self.spec.canary, self.total)
        if self.window == 0:
            if canary and self.reached >= canary and self.running == 0:
                self.window = min(self.cap, max(1, ceil(canary * self.spec.ramp)))
                self.window = self.cap if self.spec.ramp == 1 else self.window
                self.round_left = self.window
            elif not canary:
                self.window = self.cap
        while self.round_left <= 0 < self.window < self.cap:
            self.window = min(self.cap, ceil(self.window * self.spec.ramp))
            self.round_left += self.window

    def room(self) -> int:
        """How many more may start now."""
        if self.window == 0:  # the canary
            return min(self.spec.canary, self.total) - self.reached
        room = self.window - self.running
        # Without a cap: in whole portions, so that a few ends do not cost a transaction.
        left = self.pending + self.retry_pending
        return room if self.spec.concurrency or room >= min(PORTION, left) else 0

    def changes(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.KEPT} | dict(self._counts)
        return values | {"version": self.row.version + self.version_step}


_STANDS = {
    RunStatus.SUCCEEDED: "success",
    RunStatus.FAILED: "fail",
    RunStatus.TIMED_OUT: "fail",
    RunStatus.CANCELED: "cancel",
    RunStatus.SKIPPED: "cancel",
}
"""Where a target stands whose run ended like this."""

_AT = (batch_tasks.c.batch_id == bindparam("b_batch"), batch_tasks.c.position == bindparam("b_at"))
_HAS_RUN = update(batch_tasks).where(*_AT).values(run_id=bindparam("b_run"))
_HAS_RUN_AGAIN = (
    update(batch_tasks)
    .where(*_AT)
    .values(run_id=bindparam("b_run"), todo=None, turn=None, retry_time=batch_tasks.c.retry_time + 1)
)
_HAS_UNDO = update(batch_tasks).where(*_AT).values(rollback_run_id=bindparam("b_run"), todo=None, turn=None)
