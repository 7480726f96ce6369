"""Permission to start: where a dispatched run becomes a worker's, fenced by attempt and session.

However often a message about a run arrives, wherever and in whatever order, one session is told once that
this attempt may start. An order that is repeated (its answer was lost) is known by its receipt and answered
as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.queue import QueueLimits, TokenBucket
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.broker_tables import dispatched, openings
from fusee.engine.store.context import StoreContext
from fusee.engine.store.dispatches import Dispatches, count_tickets
from fusee.engine.store.queues import limits_of
from fusee.engine.store.sessions import LIVE, Sessions
from fusee.engine.store.tables import lanes, queues, receipts, runs, sessions, tickets
from fusee.engine.store.wakes import PENDING
from fusee.errors import LeaseLost

__all__ = ["Granted", "Starts"]

Granted = tuple[int, int, bool]
"""(run id, attempt, whether it holds a place in a queue with limits)."""


class Starts:
    def __init__(self, context: StoreContext, sessions: Sessions, dispatches: Dispatches) -> None:
        self.context = context
        self.sessions = sessions
        self.dispatches = dispatches

    async def open_session_once(self, request: str, info: WorkerInfo, ttl: float) -> int:
        """Begin a session; the same request, repeated, returns the same session."""

        def work(connection: Connection) -> int:
            query = select(openings.c.session_id).where(openings.c.request == request)
            found = connection.execute(query).scalar_one_or_none()
            if found is not None:
                return int(found)
            session = self.sessions.insert_session(connection, info, ttl)
            connection.execute(insert(openings).values(request=request, session_id=session))
            return session

        try:
            return await self.context.database.write(work)
        except IntegrityError:  # asked twice at once: the other was first
            return await self.context.database.write(work)

    async def start(self, session: int, receipt: int, accepted: Sequence[tuple[int, int]]) -> list[Granted]:
        """Which of these (run, attempt) this session may start: dispatched still, and within their limits.

        A run that the limits of its queue hold back is queued again. `LeaseLost` when the session is over.
        """
        wanted = dict(accepted)
        recalled: list[int] = []

        def work(connection: Connection) -> list[Granted]:
            recalled.clear()
            # Locked: the same order twice at once must not be answered differently.
            mine = select(sessions.c.state).where(sessions.c.id == session)
            state = connection.execute(mine.with_for_update()).scalar_one_or_none()
            if state not in LIVE:
                raise LeaseLost(f"session {session} is over: it starts nothing")
            same = (receipts.c.session_id == session, receipts.c.number == receipt)
            before = connection.execute(select(receipts.c.run_ids).where(*same)).scalar_one_or_none()
            if before is not None:
                return self._granted_before(connection, session, before, wanted)
            limited = self._limits_of(connection, list(wanted))
            locked = self.dispatches.locked_places(connection, list(wanted))
            places = [place for place in locked if wanted[place.run_id] == place.attempt]
            if state != SessionState.ALIVE:  # it drains: other workers take them
                recalled.append(self.dispatches.recall_within(connection, places))
                return []
            now = self.context.now(connection)
            granted = self._within_limits(connection, places, limited, now)
            if len(granted) < len(places):
                chosen = {place.run_id for place, _ in granted}
                recalled.append(
                    self.dispatches.recall_within(connection, [p for p in places if p.run_id not in chosen])
                )
            return self._begin(connection, session, receipt, granted, now)

        granted = await self.context.database.write(work) if wanted else []
        if any(recalled):
            self.context.wakes.fire(PENDING)
        return granted

    def _granted_before(
        self, connection: Connection, session: int, run_ids: str, wanted: dict[int, int]
    ) -> list[Granted]:
        ids = [int(run_id) for run_id in run_ids.split(",")]
        query = (
            select(runs.c.id, runs.c.attempt, tickets.c.run_id.label("ticket"))
            .outerjoin(tickets, tickets.c.run_id == runs.c.id)
            .where(
                self.context.among(runs.c.id, ids),
                runs.c.session_id == session,
                runs.c.status == RunStatus.RUNNING,
            )
        )
        rows = connection.execute(query).all()
        return [(r.id, r.attempt, r.ticket is not None) for r in rows if wanted.get(r.id) == r.attempt]

    def _limits_of(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, _Limited]:
        """Run → its queue's limits, where it has any; their rows stay locked until the commit."""
        of_runs = (
            select(runs.c.id, queues.c.namespace, queues.c.name)
            .join(lanes, lanes.c.id == runs.c.lane_id)
            .join(queues, (queues.c.namespace == lanes.c.namespace) & (queues.c.name == lanes.c.queue))
            .where(self.context.among(runs.c.id, run_ids), runs.c.status == RunStatus.DISPATCHED)
        )
        named = {row.id: (row.namespace, row.name) for row in connection.execute(of_runs)}
        locked: dict[tuple[str, str], _Limited] = {}
        for queue in sorted(set(named.values())):
            mine = (queues.c.namespace == queue[0], queues.c.name == queue[1])
            row = connection.execute(select(queues).where(*mine).with_for_update()).one_or_none()
            if row is not None and limits_of(row).limited:
                locked[queue] = _Limited(queue, limits_of(row), row)
        return {run_id: locked[queue] for run_id, queue in named.items() if queue in locked}

    def _within_limits(
        self, connection: Connection, places: Sequence[Any], limited: dict[int, _Limited], now: int
    ) -> list[tuple[Any, _Limited | None]]:
        chosen: list[tuple[Any, _Limited | None]] = []
        for place in places:
            limits = limited.get(place.run_id)
            if limits is None:
                chosen.append((place, None))
            elif limits.admits(connection, now):
                chosen.append((place, limits))
        for limits in set(limited.values()):
            limits.write(connection)
        return chosen

    def _begin(
        self,
        connection: Connection,
        session: int,
        receipt: int,
        chosen: Sequence[tuple[Any, _Limited | None]],
        now: int,
    ) -> list[Granted]:
        attempts = {place.run_id: place.attempt for place, _ in chosen}
        if not attempts:
            return []
        mine = (self.context.among(runs.c.id, list(attempts)), runs.c.status == RunStatus.DISPATCHED)
        query = select(runs.c.id, runs.c.attempt).where(*mine).order_by(runs.c.id).with_for_update()
        found = {r.id for r in connection.execute(query) if r.attempt == attempts[r.id]}
        connection.execute(delete(dispatched).where(self.context.among(dispatched.c.run_id, list(attempts))))
        if not found:
            return []
        connection.execute(
            update(runs)
            .where(self.context.among(runs.c.id, sorted(found)))
            .values(status=RunStatus.RUNNING, session_id=session, started_at=now)
        )
        connection.execute(
            insert(receipts).values(
                session_id=session, number=receipt, run_ids=",".join(map(str, sorted(found)))
            )
        )
        held = [(place.run_id, limits) for place, limits in chosen if limits and place.run_id in found]
        if held:
            connection.execute(
                insert(tickets),
                [{"namespace": of.queue[0], "queue": of.queue[1], "run_id": run_id} for run_id, of in held],
            )
        with_ticket = {run_id for run_id, _ in held}
        # In the order in which the worker took them: its own, by priority.
        return [
            (place.run_id, place.attempt, place.run_id in with_ticket)
            for place, _ in chosen
            if place.run_id in found
        ]


class _Limited:
    """A queue's limits under lock, counted down as runs start."""

    def __init__(self, queue: tuple[str, str], limits: QueueLimits, row: Any) -> None:
        self.queue = queue
        self.limits = limits
        self.row = row
        self._room: int | None = None
        self._bucket: TokenBucket | None = None
        self._started = 0

    def admits(self, connection: Connection, now: int) -> bool:
        if self._room is None:
            self._room = self._measure(connection, now)
        if self._started >= self._room:
            return False
        self._started += 1
        return True

    def _measure(self, connection: Connection, now: int) -> int:
        limits = self.limits
        if limits.paused:
            return 0
        room = 1_000_000
        if limits.concurrency is not None:
            room = limits.concurrency - count_tickets(connection, self.queue)
        if limits.rate is not None:
            self._bucket = TokenBucket(self.row.tokens, self.row.tokens_at).filled(limits, now)
            room = min(room, int(self._bucket.tokens))
        return room

    def write(self, connection: Connection) -> None:
        if self._bucket is not None and self._started:
            left = self._bucket.take(self._started)
            mine = (queues.c.namespace == self.queue[0], queues.c.name == self.queue[1])
            connection.execute(update(queues).where(*mine).values(tokens=left.tokens, tokens_at=left.at))
