"""A worker's own lane: it holds the runs that a strategy assigned. Its number is the session's, negated.

Only the entry in the ready queue moves there and back. The run keeps its home lane, which says what it is, so
it waits there again when it is retried, handed back or lost, and a version that knows no strategies never
claims from a lane that it has not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Row, delete, insert, select

from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import assigned, ready, runs, sessions
from fusee.engine.store.wakes import PENDING
from fusee.values.chunks import ROWS_A_STATEMENT, chunks

if TYPE_CHECKING:
    from fusee.engine.store.ready_queue import ReadyQueue

__all__ = [
    "Assignment",
    "OwnLanes",
    "assigned_by_lane",
    "entries_in",
    "homes",
    "own_lane",
    "own_lanes",
]


def own_lane(session: int) -> int:
    return -session


def own_lanes(connection: Connection) -> list[int]:
    """The workers' lanes that are not empty: one step of the index for each, whatever else waits."""
    found: list[int] = []
    first = select(ready.c.lane_id).where(ready.c.lane_id < 0).order_by(ready.c.lane_id).limit(1)
    lane = connection.execute(first).scalar_one_or_none()
    while lane is not None:
        found.append(lane)
        lane = connection.execute(first.where(ready.c.lane_id > lane)).scalar_one_or_none()
    return found


def entries_in(connection: Connection, lane_ids: Sequence[int]) -> list[Any]:
    """The entries of these lanes."""
    found: list[Any] = []
    for part in chunks(lane_ids):
        mine = ready.c.lane_id.in_(part)
        found += connection.execute(select(ready).where(mine)).all()
    return found


def assigned_by_lane(connection: Connection, lane_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """(home lane, number of runs, the earliest due time) of the runs in these workers' lanes.

    Not by a join: with stale statistics PostgreSQL would read all runs there ever were.
    """
    entries = entries_in(connection, lane_ids)
    home = homes(connection, [entry.run_id for entry in entries])
    found: dict[int, list[int]] = {}
    for entry in entries:
        if entry.run_id in home:
            found.setdefault(home[entry.run_id], []).append(entry.due_at)
    return [(lane, len(due), min(due)) for lane, due in found.items()]


class Assignment(NamedTuple):
    """A worker for a pending run: the run's entry in the ready queue, locked, and what it will need there."""

    entry: Row[Any]
    session: int
    cpu: float
    memory: int


class OwnLanes:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue) -> None:
        self.context = context
        self.ready_queue = ready_queue

    def assign(self, connection: Connection, chosen: Sequence[Assignment], now: int) -> None:
        """Move each entry to its worker's own lane, and remember what the worker has been given."""
        if not chosen:
            return
        to = [own_lane(one.session) for one in chosen]
        self.ready_queue.move(connection, [one.entry for one in chosen], to)
        self.forget(connection, [one.entry.run_id for one in chosen])
        connection.execute(
            insert(assigned),
            [
                {
                    "run_id": one.entry.run_id,
                    "session_id": one.session,
                    "assigned_at": now,
                    "cpu": one.cpu,
                    "memory": one.memory,
                }
                for one in chosen
            ],
        )

    def forget(self, connection: Connection, run_ids: Sequence[int]) -> None:
        """These runs no longer count as assigned to a worker."""
        for part in chunks(run_ids):
            connection.execute(delete(assigned).where(assigned.c.run_id.in_(part)))

    def return_orphans(self, connection: Connection) -> int:
        """Return runs that are assigned to workers which are no longer alive to their home lanes; returns
        how many.

        It looks at the lanes, not at who has just died: a run that was assigned to a worker while the worker
        died is found too.
        """
        lane_ids = own_lanes(connection)
        if not lane_ids:
            return 0
        own = [own_lane(lane) for lane in lane_ids]
        alive = select(sessions.c.id).where(sessions.c.id.in_(own), sessions.c.state == SessionState.ALIVE)
        gone = set(own) - set(connection.execute(alive).scalars())
        return sum(self.return_all(connection, session) for session in sorted(gone))

    def return_all(self, connection: Connection, session: int) -> int:
        """Return every run in this session's own lane to its home lane."""
        back = 0
        while back_now := self.return_some(connection, ready.c.lane_id == own_lane(session)):
            back += back_now
        connection.execute(delete(assigned).where(assigned.c.session_id == session))
        if back:
            self.context.notify(connection, PENDING)
        return back

    def return_some(self, connection: Connection, *which: Any) -> int:
        query = (
            select(ready)
            .where(*which)
            .limit(ROWS_A_STATEMENT)
            .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        )
        entries = connection.execute(query).all()
        home = homes(connection, [row.run_id for row in entries])
        # An entry whose run is gone or not pending was left behind by a cancel: it is removed.
        self.ready_queue.move(
            connection,
            [r for r in entries if r.run_id in home],
            [home[r.run_id] for r in entries if r.run_id in home],
        )
        self.ready_queue.remove(connection, [row for row in entries if row.run_id not in home])
        return len(entries)


def homes(connection: Connection, run_ids: Sequence[int]) -> dict[int, int]:
    """Run → its home lane, of those that are pending."""
    found: dict[int, int] = {}
    for part in chunks(run_ids):
        mine = (runs.c.id.in_(part), runs.c.status == RunStatus.PENDING)
        found |= {
            row.id: row.lane_id for row in connection.execute(select(runs.c.id, runs.c.lane_id).where(*mine))
        }
    return found
