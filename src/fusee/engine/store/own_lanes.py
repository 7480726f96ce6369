"""A worker's own lane: where the runs stand that a strategy gave to it. Its number is the session's, negated.

Only the entry in the line moves there and back. The run keeps the lane that says what it is, so it stands in
line at home again when it is retried, handed back or lost, and a version that knows no strategies never
claims from a lane that it has not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.context import StoreContext
from fusee.engine.store.leaving import leave_line
from fusee.engine.store.tables import assigned, line, runs, sessions
from fusee.engine.store.wakes import PENDING
from fusee.values.chunks import ROWS_A_STATEMENT, chunks

__all__ = [
    "OwnLanes",
    "given_by_lane",
    "homes",
    "leave_own_lanes",
    "move",
    "own_lane",
    "own_lanes",
    "standing_in",
]


def own_lane(session: int) -> int:
    return -session


def own_lanes(connection: Connection) -> list[int]:
    """The workers' lanes in which something stands: a step of the index for each, whatever else waits."""
    found: list[int] = []
    first = select(line.c.lane_id).where(line.c.lane_id < 0).order_by(line.c.lane_id).limit(1)
    lane = connection.execute(first).scalar_one_or_none()
    while lane is not None:
        found.append(lane)
        lane = connection.execute(first.where(line.c.lane_id > lane)).scalar_one_or_none()
    return found


def standing_in(connection: Connection, lane_ids: Sequence[int]) -> list[Any]:
    """The entries of these lanes."""
    found: list[Any] = []
    for part in chunks(lane_ids):
        mine = line.c.lane_id.in_(part)
        found += connection.execute(select(line).where(mine)).all()
    return found


def given_by_lane(connection: Connection, lane_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """(home lane, how many, the earliest due) of what stands in these lanes of workers.

    Not by a join: with stale statistics PostgreSQL would read all runs there ever were.
    """
    entries = standing_in(connection, lane_ids)
    home = homes(connection, [entry.run_id for entry in entries])
    found: dict[int, list[int]] = {}
    for entry in entries:
        if entry.run_id in home:
            found.setdefault(home[entry.run_id], []).append(entry.due_at)
    return [(lane, len(due), min(due)) for lane, due in found.items()]


def leave_own_lanes(connection: Connection, run_ids: Sequence[int]) -> None:
    """Take runs that were given to workers out of the line."""
    for part in chunks(run_ids):
        mine = assigned.c.run_id.in_(part)
        given = connection.execute(select(assigned.c.run_id, assigned.c.session_id).where(mine)).all()
        by_session: dict[int, list[int]] = {}
        for row in given:
            by_session.setdefault(row.session_id, []).append(row.run_id)
        for session, ids in by_session.items():
            place = (line.c.lane_id == own_lane(session), line.c.run_id.in_(ids))
            connection.execute(delete(line).where(*place))


def move(connection: Connection, entries: Sequence[Any], to: Sequence[int]) -> None:
    """Stand these entries of the line, locked in this transaction, in those lanes."""
    if not entries:
        return
    leave_line(connection, entries)
    connection.execute(
        insert(line),
        [
            {"lane_id": lane, "rank": row.rank, "due_at": row.due_at, "run_id": row.run_id}
            for row, lane in zip(entries, to, strict=True)
        ],
    )


class OwnLanes:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def return_orphans(self, connection: Connection) -> int:
        """Back home with what was given to workers that are not alive any more; answers how many.

        Looks at the lanes, not at who has just died: what was given to a worker while it died is found too.
        """
        lane_ids = own_lanes(connection)
        if not lane_ids:
            return 0
        own = [own_lane(lane) for lane in lane_ids]
        alive = select(sessions.c.id).where(sessions.c.id.in_(own), sessions.c.state == SessionState.ALIVE)
        gone = set(own) - set(connection.execute(alive).scalars())
        return sum(self.return_all(connection, session) for session in sorted(gone))

    def return_all(self, connection: Connection, session: int) -> int:
        """Everything that waits in this session's own lane goes home."""
        back = 0
        while back_now := self.return_some(connection, line.c.lane_id == own_lane(session)):
            back += back_now
        connection.execute(delete(assigned).where(assigned.c.session_id == session))
        if back:
            self.context.notify(connection, PENDING)
        return back

    def return_some(self, connection: Connection, *which: Any) -> int:
        query = (
            select(line)
            .where(*which)
            .limit(ROWS_A_STATEMENT)
            .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        )
        entries = connection.execute(query).all()
        home = homes(connection, [row.run_id for row in entries])
        # What has no run, or one that does not wait, was left behind by a cancel: nobody misses it.
        move(
            connection,
            [r for r in entries if r.run_id in home],
            [home[r.run_id] for r in entries if r.run_id in home],
        )
        left = [row for row in entries if row.run_id not in home]
        if left:
            leave_line(connection, left)
        return len(entries)


def homes(connection: Connection, run_ids: Sequence[int]) -> dict[int, int]:
    """Run → the lane that says what it is, of those that wait."""
    found: dict[int, int] = {}
    for part in chunks(run_ids):
        mine = (runs.c.id.in_(part), runs.c.status == RunStatus.PENDING)
        found |= {
            row.id: row.lane_id for row in connection.execute(select(runs.c.id, runs.c.lane_id).where(*mine))
        }
    return found
