"""What dispatchers do for everyone: return the runs of dead sessions, promote what is due, prune what is old.

These look at all namespaces: a lease, a due time and an age belong to the platform, not to a tenant.
Any number of dispatchers may call them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, or_, select, text, update

from fusee.model import Effect, End, Ended, RetryPolicy, RunStatus, SessionState, decide
from fusee.store.contract import Settlement
from fusee.store.rows import decode
from fusee.store.schema import attempts, lanes, runs, sessions, status_is
from fusee.store.sessions import LIVE
from fusee.store.settle import RULED_BY, Settle
from fusee.store.wakes import PENDING

__all__ = ["Promoted", "Pruned", "Recovered", "Upkeep"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """Sessions found dead and what became of their runs."""

    sessions: tuple[tuple[int, str], ...] = ()
    requeued: int = 0
    failed: int = 0
    canceled: int = 0

    def __bool__(self) -> bool:
        return bool(self.sessions or self.requeued or self.failed or self.canceled)


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many became pending, and in how many seconds the next one will."""

    count: int
    next_in: float | None

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many finished runs were deleted, and where to go on."""

    count: int
    cursor: int

    def __bool__(self) -> bool:
        return self.count > 0 or self.cursor > 0


class Upkeep(Settle):
    def _locked(self, query: Select[Any]) -> Select[Any]:
        return query.with_for_update(of=runs, skip_locked=self.database.capabilities.skip_locked)

    async def recover(self, limit: int = 500) -> Recovered:
        """Take sessions whose lease has expired, then return up to `limit` runs that no live session owns."""
        taken = await self.database.write(self._take_expired)
        requeued, failed, canceled = await self.database.write(
            lambda connection: self._return(connection, limit)
        )
        if requeued:
            self.wakes.fire(PENDING)
        return Recovered(tuple(taken), requeued, failed, canceled)

    def _take_expired(self, connection: Connection) -> list[tuple[int, str]]:
        now = self.database.now
        expired = (sessions.c.state.in_(LIVE), sessions.c.expires_at < now)
        taken: list[tuple[int, str]] = []
        for row in connection.execute(select(sessions.c.id, sessions.c.worker).where(*expired)).all():
            # Compare and set: only one dispatcher takes it, and not if it was renewed just now.
            change = (
                update(sessions)
                .where(sessions.c.id == row.id, *expired)
                .values(state=SessionState.LOST, ended_at=now, running=0)
            )
            if connection.execute(change).rowcount == 1:
                taken.append((row.id, row.worker))
        return taken

    def _return(self, connection: Connection, limit: int) -> tuple[int, int, int]:
        orphan = or_(sessions.c.id.is_(None), sessions.c.state.not_in(LIVE))
        query = (
            select(*RULED_BY, runs.c.spent, runs.c.options, lanes.c.handler, sessions.c.abilities)
            .join(lanes, lanes.c.id == runs.c.lane_id)
            .outerjoin(sessions, sessions.c.id == runs.c.session_id)
            .where(status_is(RunStatus.RUNNING), orphan)
            .order_by(runs.c.id)
            .limit(limit)
        )
        rows = connection.execute(self._locked(query)).all()
        if not rows:
            return 0, 0, 0
        now = self._now(connection)
        by_session: dict[int, list[tuple[Settlement, Any]]] = {}
        tally = {RunStatus.PENDING: 0, RunStatus.FAILED: 0, RunStatus.CANCELED: 0}
        for row in rows:
            ended = Ended(End.LOST, error="its worker's lease expired", effect=Effect.UNKNOWN)
            verdict = decide(ended, _policy(row), row.spent)
            by_session.setdefault(row.session_id, []).append(
                (Settlement(row.id, row.attempt, ended, verdict), row)
            )
            tally[RunStatus.CANCELED if row.cancel_requested_at is not None else verdict.status] += 1
        for session, owned in by_session.items():
            self._apply(connection, owned, now, session)
        if self.database.capabilities.notify:
            connection.execute(text("SELECT pg_notify('fusee', 'pending')"))
        return tally[RunStatus.PENDING], tally[RunStatus.FAILED], tally[RunStatus.CANCELED]

    async def promote(self, limit: int = 1000) -> Promoted:
        """Make delayed runs whose time has come claimable; earliest first."""

        def work(connection: Connection) -> Promoted:
            now = self._now(connection)
            due = (
                select(runs.c.id)
                .where(status_is(RunStatus.DELAYED), runs.c.due_at <= now)
                .order_by(runs.c.due_at, runs.c.id)
                .limit(limit)
            )
            ids = connection.execute(self._locked(due)).scalars().all()
            if ids:
                connection.execute(
                    update(runs)
                    .where(runs.c.id.in_(ids), status_is(RunStatus.DELAYED))
                    .values(status=RunStatus.PENDING)
                )
                if self.database.capabilities.notify:
                    connection.execute(text("SELECT pg_notify('fusee', 'pending')"))
            later = select(runs.c.due_at).where(status_is(RunStatus.DELAYED)).order_by(runs.c.due_at).limit(1)
            next_at: int | None = connection.execute(later).scalar_one_or_none()
            return Promoted(len(ids), None if next_at is None else max(0.0, (next_at - now) / 1_000_000))

        promoted = await self.database.write(work)
        if promoted.count:
            self.wakes.fire(PENDING)
        return promoted

    async def prune(self, older_than: float, cursor: int, batch: int) -> Pruned:
        """Delete one small batch of runs that finished more than `older_than` seconds ago.

        Walks the primary key from `cursor`, so no index on the finish time burdens every run. Ids grow with
        time: a run created after the cutoff ends the walk. The answer's cursor is 0 at the end.
        """

        def work(connection: Connection) -> Pruned:
            cutoff = self._now(connection) - round(older_than * 1_000_000)
            query = (
                select(runs.c.id, runs.c.created_at, runs.c.finished_at)
                .where(runs.c.id > cursor)
                .order_by(runs.c.id)
                .limit(batch)
            )
            rows = connection.execute(query).all()
            old = [r.id for r in rows if r.finished_at is not None and r.finished_at < cutoff]
            if old:
                connection.execute(delete(attempts).where(attempts.c.run_id.in_(old)))
                connection.execute(delete(runs).where(runs.c.id.in_(old), runs.c.finished_at < cutoff))
            over = len(rows) < batch or rows[-1].created_at > cutoff
            if over:
                gone = (sessions.c.state.in_(("ended", "lost")), sessions.c.ended_at < cutoff)
                connection.execute(delete(sessions).where(*gone))
            return Pruned(len(old), 0 if over else rows[-1].id)

        return await self.database.write(work)


def _policy(row: Any) -> RetryPolicy:
    """The run's own policy, else what its worker said of the handler, else the default."""
    retry = (decode(row.options) or {}).get("retry")
    if retry is None:
        retry = (decode(row.abilities) or {}).get("policies", {}).get(row.handler, {})
    return RetryPolicy.from_dict(retry)
