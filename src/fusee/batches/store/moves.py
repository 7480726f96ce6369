"""Moving a batch on: the next targets start as places become free, too many errors stop it, a rollback runs.

All of it happens under the lock of the batch's row: commands and ends come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from sqlalchemy import Connection, Table, Update, bindparam, exists, func, or_, select, update

from fusee.batches.model.batch import BatchPhase, BatchStatus, batch_status
from fusee.batches.model.spec import BatchSpec
from fusee.batches.store.exclusion import Rivals, take_target_turn
from fusee.batches.store.insert import Range, TargetRuns
from fusee.batches.store.intake import HIDDEN, spec_of_batch
from fusee.batches.store.tables import COUNTED, Stands, batch_tasks, batches
from fusee.engine.model.run import Lane
from fusee.engine.model.states import RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.own_lanes import entries_in, own_lanes
from fusee.engine.store.rows import NewRun, decode, encode, encode_rows
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import lanes, later, line, runs
from fusee.engine.store.totals import BATCHES_ENDED, BATCHES_STOPPED, add_to_totals
from fusee.events import BatchEnded, BatchRollingBack, BatchStopped
from fusee.values.chunks import chunks

__all__ = ["BatchMoves", "Moving", "handler_of", "looker_of"]

PORTION = 5000
"""Targets that start in one transaction."""
MOST_PARKED = 1000
"""Targets that a batch passes over because another has them; then it waits for the first of them."""
LOOK_AHEAD = 200
"""Targets looked at together where another batch may have them."""
WITHOUT_CAP = 4 * PORTION
"""Under way at once when no cap is set: enough to keep workers busy, few enough to stop."""
TOUCHED = ("applied", "unknown")
UNDONE_BADLY = ("failed", "timed_out", "canceled", "skipped", "missed")


def handler_of(target_type: str, batch_type: str) -> str:
    """The name under which workers serve an operation."""
    return f"batch.{target_type}.{batch_type}"


def looker_of(target_type: str, batch_type: str) -> str:
    """The name under which they look at targets for it."""
    return f"look.{target_type}.{batch_type}"


class BatchMoves:
    def __init__(
        self,
        context: StoreContext,
        target_runs: TargetRuns,
        run_writer: RunWriter,
        cancels: Cancels,
        lanes: Lanes,
        outbox: Outbox,
    ) -> None:
        self.context = context
        self.target_runs = target_runs
        self.run_writer = run_writer
        self.cancels = cancels
        self.lanes = lanes
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
            batch.phase = BatchPhase.DONE
            if batch.undo_next:
                self.begin_rollback(connection, batch, None)
        if batch.phase == BatchPhase.ROLLING_BACK:
            self._undo_more(connection, batch, rivals, now)
        self._save_batch(connection, batch, now)
        if freed:
            self.outbox.add(connection, [("batch", rival) for rival in rivals.waiting()])

    def rivals(self, connection: Connection, batch: Moving) -> Rivals:
        if self.context.database.capabilities.skip_locked:  # else there is one writer
            take_target_turn(connection, batch.namespace, batch.spec.target_type)
        return Rivals(connection, batch.row, batch.entered_at)

    # -- applying

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
        room = min(batch.room(), PORTION)
        if room > 0:
            batch.waits_for = None
            room -= self._start_again(connection, batch, room, rivals, now)
        if room > 0 and batch.parked > 0:
            room -= self._start_parked(connection, batch, room, rivals, now)
        if room > 0 and batch.reached < batch.total:
            if rivals:
                self._start_free(connection, batch, room, rivals, now)
            else:
                self._start_new(connection, batch, min(room, batch.total - batch.reached), now)
        if batch.pending + batch.retry_pending + batch.running == 0:
            batch.phase = BatchPhase.DONE

    def _start_new(self, connection: Connection, batch: Moving, count: int, now: int) -> None:
        """The next targets in their order."""
        first, end = batch.reached, batch.reached + count
        alike = self._alike(connection, batch)
        self.target_runs.insert_range(connection, Range(batch.id, first, end, batch.namespace, alike), now)
        batch.reached = end
        batch.shift("pending", "running", count)

    def _start_free(self, connection: Connection, batch: Moving, room: int, rivals: Rivals, now: int) -> None:
        """The next targets in their order; those that another batch has are parked, and passed over."""
        while room > 0 and batch.reached < batch.total and batch.parked < MOST_PARKED:
            end = min(batch.reached + max(room, LOOK_AHEAD), batch.total)
            busy = rivals.busy_between(batch.reached, end)
            if not busy:
                self._start_new(connection, batch, min(room, end - batch.reached), now)
                return
            stretch_end = min(min(busy), batch.reached + room)
            if stretch_end > batch.reached:  # those before the first that is busy
                room -= stretch_end - batch.reached
                self._start_new(connection, batch, stretch_end - batch.reached, now)
            while room > 0 and batch.parked < MOST_PARKED and batch.reached in busy:
                parked = {"todo": "parked", "turn": batch.reached, "info": _waits(busy[batch.reached])}
                at = (batch_tasks.c.batch_id == batch.id, batch_tasks.c.position == batch.reached)
                connection.execute(update(batch_tasks).where(*at).values(parked))
                batch.waits_for = busy[batch.reached]
                batch.reached += 1
                batch.parked += 1

    def _start_parked(
        self, connection: Connection, batch: Moving, count: int, rivals: Rivals, now: int
    ) -> int:
        """Targets that were passed over, and that no other batch has any more."""
        rows = self._next_turns(connection, batch, "parked", count, rivals)
        ids = self._insert_runs(connection, batch, [row.payload for row in rows], now)
        self._set_runs(connection, _HAS_RUN, batch, rows, ids)
        batch.parked -= len(rows)
        batch.shift("pending", "running", len(rows))
        if batch.parked and len(rows) < count:
            self._note_holder(connection, batch, "parked", rivals)
        return len(rows)

    def _note_holder(self, connection: Connection, batch: Moving, todo: str, rivals: Rivals) -> None:
        """Write down one batch that has a target which this one wants, and so wakes it.

        Ends of runs take no turn: a target may have become free since `_next_turns` looked. Then nobody
        would wake this batch, and it looks again after the commit.
        """
        conflict = rivals.first_conflict(batch_tasks.c.todo == todo)
        if conflict is not None:
            batch.waits_for = conflict[1]
            return
        left = select(batch_tasks.c.position).where(
            batch_tasks.c.batch_id == batch.id, batch_tasks.c.todo == todo
        )
        if connection.execute(left.limit(1)).one_or_none() is not None:
            self.outbox.add(connection, [("batch", batch.id)])

    def _start_again(
        self, connection: Connection, batch: Moving, count: int, rivals: Rivals, now: int
    ) -> int:
        """Failed targets that someone wants tried again come before new ones."""
        if batch.retry_pending == 0:
            return 0
        rows = self._next_turns(connection, batch, "retry", count, rivals)
        # What the earlier run did stays known: a retry that finds the target as wanted has not undone it.
        effects = self._effects_of(connection, [row.run_id for row in rows])
        ids = self._insert_runs(
            connection,
            batch,
            [_with_image(row) for row in rows],
            now,
            [row.run_id for row in rows],
            [effects.get(row.run_id) for row in rows],
        )
        self._count_tries(connection, batch, rows)
        self._set_runs(connection, _HAS_RUN_AGAIN, batch, rows, ids)
        batch.shift("retry_pending", "running", len(rows))
        if batch.retry_pending and len(rows) < count:
            self._note_holder(connection, batch, "retry", rivals)
        return len(rows)

    def _count_tries(self, connection: Connection, batch: Moving, rows: Sequence[Any]) -> None:
        """Automatic retries of the runs that are replaced: they still count when the runs are gone."""
        by_run = {row.run_id: row.position for row in rows}
        ids = sorted(by_run)
        for chunk in chunks(ids):
            part = (runs.c.id.in_(chunk), runs.c.attempt > 1)
            more = [
                {"b_batch": batch.id, "b_at": by_run[run.id], "b_more": run.attempt - 1}
                for run in connection.execute(select(runs.c.id, runs.c.attempt).where(*part))
            ]
            if more:
                connection.execute(_TRIED_MORE, more)

    def _next_turns(
        self, connection: Connection, batch: Moving, todo: str, count: int, rivals: Rivals
    ) -> Sequence[Any]:
        query = (
            select(batch_tasks)
            .where(batch_tasks.c.batch_id == batch.id, batch_tasks.c.todo == todo)
            .order_by(batch_tasks.c.turn, batch_tasks.c.position.desc())
            .limit(count)
        )
        if rivals:
            query = query.where(rivals.free())
        return connection.execute(query).all()

    def _set_runs(
        self, connection: Connection, change: Update, batch: Moving, rows: Sequence[Any], ids: Sequence[int]
    ) -> None:
        """Each of these targets knows its new run."""
        if rows:
            numbers = zip(rows, ids, strict=True)
            connection.execute(
                change, [{"b_batch": batch.id, "b_at": row.position, "b_run": run} for row, run in numbers]
            )

    def _insert_runs(
        self,
        connection: Connection,
        batch: Moving,
        payloads: Sequence[str],
        now: int,
        origins: Sequence[int | None] = (),
        effects: Sequence[str | None] = (),
    ) -> list[int]:
        alike = self._alike(connection, batch)
        new_runs = [
            alike._replace(
                payload=payload,
                origin_id=origins[nr] if origins else None,
                effect=effects[nr] if effects and effects[nr] in TOUCHED else None,
            )
            for nr, payload in enumerate(payloads)
        ]
        return self.run_writer.insert_runs(connection, new_runs, now, batch.namespace)

    def _alike(self, connection: Connection, batch: Moving) -> NewRun:
        """What all runs of a batch have in common."""
        spec = batch.spec
        handler = handler_of(spec.target_type, spec.batch_type)
        lane = Lane(batch.namespace, spec.queue, "python", handler, spec.region)
        options: dict[str, Any] = {}
        if spec.timeout is not None:
            options["timeout"] = spec.timeout
        if spec.retry is not None:
            options["retry"] = spec.retry.to_dict()
        return NewRun(
            lane_id=self.lanes.lane_id(connection, lane),
            priority=spec.priority,
            options=encode(options, "options") if options else None,
            kind="batch",
            owner_id=batch.id,
        )

    # -- stopping

    def stop(self, connection: Connection, batch: Moving, reason: str, now: int) -> None:
        """No further target starts; what has started goes on to the end of its attempt (`heed_stops`)."""
        batch.phase, batch.stopped, batch.reason = BatchPhase.STOPPING, True, reason[:500]
        batch.waits_for = None
        batch.shift("pending", "cancel", batch.pending)
        mine = batch_tasks.c.batch_id == batch.id
        if batch.retry_pending:  # they are what they were
            again = (mine, batch_tasks.c.todo == "retry")
            for status, count in self.by_status(connection, *again):
                batch.shift("retry_pending", _STANDS[RunStatus(status)], count)
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
        found = self._in_home_lane(connection, batch, later)
        found += self._on_their_way(connection, batch)
        found += self._in_home_lane(connection, batch, line)
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

    # -- rolling back

    def begin_rollback(self, connection: Connection, batch: Moving, chosen: Sequence[str] | None) -> int:
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
            stands: Stands = "rollback_fail" if undone_before else _STANDS[RunStatus(status)]
            batch.shift(stands, "rollback_pending", count)
            lined_up += count
        # Newest first: the later it started, the earlier its turn. In the database: it may be a million rows.
        since = func.coalesce(runs.c.started_at, runs.c.created_at)
        started = select(-since).where(runs.c.id == batch_tasks.c.run_id).scalar_subquery()
        connection.execute(update(batch_tasks).where(*conditions).values(todo="undo", turn=started))
        batch.undo_next = False
        batch.phase = BatchPhase.ROLLING_BACK if lined_up else BatchPhase.DONE
        if lined_up:
            self.context.note(
                connection, BatchRollingBack(**batch.named, targets=lined_up, reason=batch.reason)
            )
        return lined_up

    def _left_applied(self, connection: Connection, batch: Moving) -> int | None:
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

    def _undo_more(self, connection: Connection, batch: Moving, rivals: Rivals, now: int) -> None:
        room = min(batch.cap - batch.rollback_running, PORTION)
        if room > 0 and batch.rollback_pending > 0:
            batch.waits_for = None
            rows = self._next_turns(connection, batch, "undo", room, rivals)
            known = [run_id for row in rows for run_id in (row.run_id, row.rollback_run_id) if run_id]
            effects = self._effects_of(connection, known)
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
            ids = self._insert_runs(connection, batch, payloads, now, [row.run_id for row in rows])
            self._set_runs(connection, _HAS_UNDO, batch, rows, ids)
            batch.shift("rollback_pending", "rollback_running", len(rows))
            if batch.rollback_pending and len(rows) < room:
                self._note_holder(connection, batch, "undo", rivals)
        if batch.rollback_pending + batch.rollback_running == 0:
            batch.phase = BatchPhase.DONE

    def _effects_of(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for part in chunks(run_ids):
            query = select(runs.c.id, runs.c.effect).where(runs.c.id.in_(part))
            found |= {row.id: row.effect for row in connection.execute(query)}
        return found

    # -- writing

    def _save_batch(self, connection: Connection, batch: Moving, now: int) -> None:
        if batch.phase != BatchPhase.DONE:
            batch.kept_until = None
        elif batch.row.phase != BatchPhase.DONE:
            batch.left_applied = self._left_applied(connection, batch)
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
        "parked",
        "waits_for",
        "entered_at",
        "left_applied",
        "kept_until",
    )

    def __init__(self, row: Any) -> None:
        self.row = row
        self.id: int = row.id
        self.namespace: str = row.namespace
        self.spec: BatchSpec = spec_of_batch(row)
        self.total: int = row.total
        self.parent_run: int | None = row.parent_run
        self.phase: str = row.phase
        self.reason: str | None = row.reason
        self.reached: int = row.reached
        self.stopped: bool = bool(row.stopped)
        self.undo_next: bool = bool(row.undo_next)
        self.force: bool = bool(row.force)
        self.window: int = row.window
        self.round_left: int = row.round_left
        self.started_at: int | None = row.started_at
        self.parked: int = row.parked
        self.waits_for: int | None = row.waits_for
        self.entered_at: int | None = row.entered_at
        self.left_applied: int | None = row.left_applied
        self.kept_until: int | None = row.kept_until
        self.version_step = 0
        self.pending: int = row.pending
        self.running: int = row.running
        self.success: int = row.success
        self.fail: int = row.fail
        self.cancel: int = row.cancel
        self.retry_pending: int = row.retry_pending
        self.rollback_pending: int = row.rollback_pending
        self.rollback_running: int = row.rollback_running
        self.rollback_success: int = row.rollback_success
        self.rollback_fail: int = row.rollback_fail

    @property
    def named(self) -> dict[str, Any]:
        """How events name it."""
        operation = f"{self.spec.target_type}.{self.spec.batch_type}"
        name = self.spec.batch_name
        return {"namespace": self.namespace, "batch_id": self.id, "name": name, "operation": operation}

    def shift(self, from_status: Stands, to_status: Stands, count: int) -> None:
        """So many targets stand elsewhere now."""
        setattr(self, from_status, getattr(self, from_status) - count)
        setattr(self, to_status, getattr(self, to_status) + count)

    def counts(self) -> dict[BatchStatus, int]:
        return {BatchStatus(name): getattr(self, name) for name in COUNTED}

    @property
    def under_way(self) -> int:
        """Targets whose run has not ended, or is not counted yet."""
        return self.running + self.rollback_running

    @property
    def begun(self) -> int:
        """Targets that had a run."""
        return self.reached - self.parked

    @property
    def cap(self) -> int:
        return self.spec.concurrency or WITHOUT_CAP

    def grow_window(self) -> None:
        """The canary passed: begin the ramp. A round of the ramp ended: widen it."""
        canary = min(self.spec.canary, self.total)
        if self.window == 0:
            if canary and self.begun >= canary and self.running == 0:
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
            return min(min(self.spec.canary, self.total) - self.begun, self.cap - self.running)
        room = self.window - self.running
        # Without a cap: in large portions, so that a few ends do not cost a transaction.
        left = self.pending + self.retry_pending
        return (
            room if self.spec.concurrency or room >= min(left, max(1, min(PORTION, self.window // 2))) else 0
        )

    def changes(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in (*self.KEPT, *COUNTED)}
        return values | {"version": self.row.version + self.version_step}


def _with_image(row: Any) -> str:
    """What the handler gets when a target is tried again: also what it was before the first try."""
    if row.image is None:
        return str(row.payload)
    return encode_rows(decode(row.payload) | {"image": decode(row.image)})


def _waits(batch_id: int) -> str:
    return f"waits: batch {batch_id} has this target"


_STANDS: dict[RunStatus, Stands] = {
    RunStatus.SUCCEEDED: "success",
    RunStatus.FAILED: "fail",
    RunStatus.TIMED_OUT: "fail",
    RunStatus.CANCELED: "cancel",
    RunStatus.SKIPPED: "cancel",
}
"""Where a target stands whose run ended like this."""

_AT = (batch_tasks.c.batch_id == bindparam("b_batch"), batch_tasks.c.position == bindparam("b_at"))
_HAS_RUN = update(batch_tasks).where(*_AT).values(run_id=bindparam("b_run"), todo=None, turn=None, info=None)
_HAS_RUN_AGAIN = _HAS_RUN.values(retry_time=batch_tasks.c.retry_time + 1)
_TRIED_MORE = (
    update(batch_tasks).where(*_AT).values(retry_time=batch_tasks.c.retry_time + bindparam("b_more"))
)
_HAS_UNDO = (
    update(batch_tasks)
    .where(*_AT)
    .values(rollback_run_id=bindparam("b_run"), todo=None, turn=None, info=None)
)
