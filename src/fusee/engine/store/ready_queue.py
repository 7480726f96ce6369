"""The ready queue: where pending runs wait for a worker, and delayed runs for their time.

A pending run has an entry in `fusee_ready`, in the order in which claims read it; a delayed run has one in
`fusee_delayed`. Only this part writes the two tables, apart from the statements that every run passes through
(claim and bulk insert), which each database has in its own SQL.

Everyone locks the entry of a run before its row: a claim, a promotion and a cancel never wait for each other
in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.tables import assigned, delayed, ready, runs
from fusee.engine.store.wakes import DELAYED, PENDING
from fusee.values.chunks import chunks

__all__ = ["Promoted", "QueueEntry", "ReadyQueue"]


class QueueEntry(NamedTuple):
    """A run that is to wait, if its status says so: as pending for a worker, as delayed for its time."""

    run_id: int
    lane_id: int
    priority: int
    due_at: int
    status: RunStatus = RunStatus.PENDING


@dataclass(frozen=True, slots=True)
class Promoted:
    """The number of runs that became pending, and the seconds until the next one will."""

    count: int
    next_in: float | None

    def __bool__(self) -> bool:
        return self.count > 0


class ReadyQueue:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def add(self, connection: Connection, entries: Iterable[QueueEntry]) -> set[str]:
        """Add an entry for each run that is pending or delayed; returns the wake-ups to send."""
        ready_rows, delayed_rows = [], []
        for run_id, lane_id, priority, due_at, status in entries:
            if status == RunStatus.PENDING:
                ready_rows.append({"lane_id": lane_id, "rank": -priority, "due_at": due_at, "run_id": run_id})
            elif status == RunStatus.DELAYED:
                delayed_rows.append({"lane_id": lane_id, "due_at": due_at, "run_id": run_id})
        if ready_rows:
            connection.execute(insert(ready), ready_rows)
        if delayed_rows:
            connection.execute(insert(delayed), delayed_rows)
        return {hint for hint, some in ((PENDING, ready_rows), (DELAYED, delayed_rows)) if some}

    def add_selected(
        self, connection: Connection, run_ids: Select[Any], lane_id: int, priority: int, due_at: int
    ) -> None:
        """Add an entry for each pending run whose number the query returns."""
        found = run_ids.subquery()
        shared = {"lane_id": lane_id, "rank": -priority, "due_at": due_at}
        values = [literal(value, ready.c[name].type) for name, value in shared.items()]
        query = select(*values, found.c.run_id)
        connection.execute(insert(ready).from_select([*shared, "run_id"], query))

    def lock_first(self, connection: Connection, lane_id: int, limit: int) -> Sequence[Any]:
        """The first entries of a lane in the order of claims, locked; those that others hold are left out."""
        query = (
            select(ready)
            .where(ready.c.lane_id == lane_id)
            .order_by(ready.c.rank, ready.c.due_at, ready.c.run_id)
            .limit(limit)
            .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        )
        return connection.execute(query).all()

    def remove(self, connection: Connection, entries: Sequence[Any]) -> None:
        """Remove these rows of `fusee_ready`, which this transaction has locked."""
        if not entries:
            return
        if self.context.database.capabilities.arrays:
            keys = {column.name: [getattr(row, column.name) for row in entries] for column in ready.c}
            connection.execute(_REMOVE_AT_ONCE, keys)
        else:
            connection.execute(
                _REMOVE, [{f"b_{name}": value for name, value in row._mapping.items()} for row in entries]
            )

    def move(self, connection: Connection, entries: Sequence[Any], to: Sequence[int]) -> None:
        """Move these rows of `fusee_ready`, which this transaction has locked, to those lanes."""
        if entries:
            self.remove(connection, entries)
            connection.execute(
                insert(ready),
                [{**row._mapping, "lane_id": lane} for row, lane in zip(entries, to, strict=True)],
            )

    def withdraw(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Remove the entries of these runs, wherever they wait; the runs' rows need not be locked."""
        # Runs that were released together have neighbouring entries: one statement removes them all.
        ready_rows: dict[tuple[int, int, int], list[int]] = {}
        for row in rows:
            if row.status == RunStatus.PENDING:
                ready_rows.setdefault((row.lane_id, -row.priority, row.due_at), []).append(row.id)
        for (lane, rank, due), ids in ready_rows.items():
            key = (
                ready.c.lane_id == lane,
                ready.c.rank == rank,
                ready.c.due_at == due,
                ready.c.run_id.in_(ids),
            )
            removed = connection.execute(delete(ready).where(*key)).rowcount
            if removed < len(ids):  # claimed just now, or assigned to a worker
                self._withdraw_assigned(connection, ids)
        if delayed_rows := [row for row in rows if row.status == RunStatus.DELAYED]:
            connection.execute(
                _REMOVE_DELAYED, [{"b_due_at": r.due_at, "b_run_id": r.id} for r in delayed_rows]
            )

    def _withdraw_assigned(self, connection: Connection, run_ids: Sequence[int]) -> None:
        """Remove the entries of runs that were assigned to workers, from the workers' own lanes."""
        for part in chunks(run_ids):
            query = select(assigned.c.run_id, assigned.c.session_id).where(assigned.c.run_id.in_(part))
            by_session: dict[int, list[int]] = {}
            for row in connection.execute(query).all():
                by_session.setdefault(row.session_id, []).append(row.run_id)
            for session, ids in by_session.items():
                key = (ready.c.lane_id == own_lane(session), ready.c.run_id.in_(ids))
                connection.execute(delete(ready).where(*key))

    async def promote(self, limit: int = 1000) -> Promoted:
        """Make delayed runs pending whose time has come, the earliest first."""

        def work(connection: Connection) -> Promoted:
            now = self.context.now(connection)
            due = (
                select(delayed)
                .where(delayed.c.due_at <= now)
                .order_by(delayed.c.due_at, delayed.c.run_id)
                .limit(limit)
                .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
            )
            rows = connection.execute(due).all()
            if rows:
                self._promote(connection, rows)
            next_at: int | None = connection.execute(select(func.min(delayed.c.due_at))).scalar_one_or_none()
            if next_at is None:
                return Promoted(len(rows), None)
            next_in = max(0.0, (next_at - now) / 1_000_000)
            # An entry that is due and was not returned is locked by someone: ask again soon, not at once.
            return Promoted(len(rows), 0.05 if next_in == 0 and not rows else next_in)

        promoted = await self.context.database.write(work)
        if promoted.count:
            self.context.wakes.fire(PENDING)
        return promoted

    def _promote(self, connection: Connection, rows: Sequence[Any]) -> None:
        still_delayed = (runs.c.id.in_([row.run_id for row in rows]), runs.c.status == RunStatus.DELAYED)
        connection.execute(_REMOVE_DELAYED, [{"b_due_at": r.due_at, "b_run_id": r.run_id} for r in rows])
        known = select(runs.c.id, runs.c.lane_id, runs.c.priority, runs.c.due_at).where(*still_delayed)
        waiting = connection.execute(known.with_for_update()).all()
        if waiting:
            connection.execute(update(runs).where(*still_delayed).values(status=RunStatus.PENDING))
            self.add(connection, [QueueEntry(*row) for row in waiting])
            self.context.notify(connection, PENDING)


_REMOVE = delete(ready).where(*[column == bindparam(f"b_{column.name}") for column in ready.c])
# Each entry is looked up by its key, whatever the statistics say.
_REMOVE_AT_ONCE = text(
    """DELETE FROM fusee_ready WHERE ctid = ANY (ARRAY (
         SELECT place FROM unnest(:lane_id, :rank, :due_at, :run_id) AS gone (lane_id, rank, due_at, run_id)
         CROSS JOIN LATERAL (
           SELECT ctid AS place FROM fusee_ready AS l
           WHERE l.lane_id = gone.lane_id AND l.rank = gone.rank AND l.due_at = gone.due_at
             AND l.run_id = gone.run_id LIMIT 1) AS found))"""
).bindparams(*[bindparam(column.name, type_=ARRAY(BigInteger)) for column in ready.c])
_REMOVE_DELAYED = delete(delayed).where(
    delayed.c.due_at == bindparam("b_due_at"), delayed.c.run_id == bindparam("b_run_id")
)
