"""Handing pending runs to a message broker, a bounded number ahead, and taking them back.

A dispatched run has a row in `fusee_dispatched` as a pending one has an entry in the ready queue. The order
of locks is that of a claim: the queue's limits, the entry, the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from fusee.engine.model.queue import QueueLimits, Strategy, TokenBucket
from fusee.engine.model.run import HIGH, LOW, NORMAL, Dispatched, Lane, level_of
from fusee.engine.model.states import RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import lane_from
from fusee.engine.store.queues import limits_of
from fusee.engine.store.ready_queue import QueueEntry, ReadyQueue
from fusee.engine.store.tables import lanes, queues, ready, runs, tickets
from fusee.engine.store.wakes import PENDING
from fusee.values.chunks import ROWS_A_STATEMENT, chunks

__all__ = ["Dispatches", "Overdue"]

_MESSAGE = (
    runs.c.id,
    runs.c.attempt,
    runs.c.spent,
    runs.c.lane_id,
    runs.c.priority,
    runs.c.payload,
    runs.c.options,
    runs.c.kind,
    runs.c.owner_id,
)


@dataclass(frozen=True, slots=True)
class Overdue:
    """Runs of one lane and level that were published long ago and have not started."""

    lane_id: int
    level: int
    standing: int
    """All that are dispatched there and not held."""
    late: int


class Dispatches:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue) -> None:
        self.context = context
        self.ready_queue = ready_queue

    async def dispatch(self, ahead: Mapping[int, int]) -> list[Dispatched]:
        """Take pending runs of these lanes out of the ready queue; at each level, no more than `ahead[lane]`
        are dispatched at once.

        The caller must publish what is returned; should that never happen, `republish` finds them.
        """

        def work(connection: Connection) -> list[Dispatched]:
            now = self.context.now(connection)
            room = self._dispatch_room(connection, list(ahead), now)
            taken: list[Dispatched] = []
            for lane_id in sorted(ahead):
                if lane_id < 0 or room.of(lane_id) > 0:
                    taken += self._take_pending(connection, lane_id, ahead[lane_id], room, now)
            return taken

        return await self.context.database.write(work)

    def _dispatch_room(self, connection: Connection, lane_ids: Sequence[int], now: int) -> _Room:
        """How much more may be dispatched. The limits are only looked at: they are kept when a run starts."""
        many = func.count().label("many")
        count = (
            select(dispatched.c.lane_id, dispatched.c.level, many)
            .where(dispatched.c.lane_id.in_(lane_ids))
            .group_by(dispatched.c.lane_id, dispatched.c.level)
        )
        standing = Counter({(row.lane_id, row.level): row.many for row in connection.execute(count)})
        known = select(lanes.c.id, queues).join(
            queues, (queues.c.namespace == lanes.c.namespace) & (queues.c.name == lanes.c.queue)
        )
        if min(lane_ids, default=0) > 0:  # in a worker's own lane, runs of any other may stand
            known = known.where(lanes.c.id.in_(lane_ids))
        queue_of: dict[int, tuple[str, str]] = {}
        left: dict[tuple[str, str], int] = {}
        for row in connection.execute(known):
            limits = limits_of(row)
            if limits.limited:
                queue = queue_of[row.id] = (row.namespace, row.name)
                if queue not in left:
                    left[queue] = self._unreserved(connection, queue, limits, row, now)
        return _Room(standing, queue_of, left)

    def _unreserved(
        self, connection: Connection, queue: tuple[str, str], limits: QueueLimits, row: Any, now: int
    ) -> int:
        if limits.paused:
            return 0
        of_queue = select(lanes.c.id).where(lanes.c.namespace == queue[0], lanes.c.queue == queue[1])
        sent = select(func.count()).select_from(dispatched).join(runs, runs.c.id == dispatched.c.run_id)
        on_the_way = connection.execute(sent.where(runs.c.lane_id.in_(of_queue))).scalar_one()
        room: list[int] = []
        if limits.concurrency is not None:
            room.append(limits.concurrency - count_tickets(connection, queue))
        if limits.rate is not None:
            room.append(int(TokenBucket(row.tokens, row.tokens_at).filled(limits, now).tokens))
        return min(room, default=1_000_000) - int(on_the_way)

    def _take_pending(
        self, connection: Connection, lane_id: int, ahead: int, room: _Room, now: int
    ) -> list[Dispatched]:
        """Level by level, as many as there is room for: what is lower must not overtake."""
        taken: list[Dispatched] = []
        while (rank := connection.execute(_FIRST, {"lane_id": lane_id}).scalar_one_or_none()) is not None:
            many = ahead - room.standing[lane_id, level_of(-rank)]
            if many <= 0:
                break
            chosen = self._choose_pending(connection, lane_id, many, ahead, room)
            taken += self._send_away(connection, lane_id, chosen, now)
            if len(chosen) < many:
                break
        return taken

    def _choose_pending(
        self, connection: Connection, lane_id: int, many: int, ahead: int, room: _Room
    ) -> list[Any]:
        entries = self.ready_queue.lock_first(connection, lane_id, many)
        home = self._homes(connection, [row.run_id for row in entries]) if lane_id < 0 else {}
        chosen: list[Any] = []
        for row in entries:
            level = level_of(-row.rank)
            if room.standing[lane_id, level] >= ahead:
                break  # nor anything behind it
            if room.take(home.get(row.run_id, lane_id)):
                room.standing[lane_id, level] += 1
                chosen.append(row)
        return chosen

    def _send_away(
        self, connection: Connection, lane_id: int, chosen: Sequence[Any], now: int
    ) -> list[Dispatched]:
        """Make the runs of these entries dispatched."""
        if not chosen:
            return []
        ids = [row.run_id for row in chosen]
        self.ready_queue.remove(connection, chosen)
        pending = (self.context.among(runs.c.id, ids), runs.c.status == RunStatus.PENDING)
        rows = {r.id: r for r in connection.execute(select(*_MESSAGE).where(*pending).with_for_update())}
        connection.execute(
            update(runs).where(*pending).values(status=RunStatus.DISPATCHED, attempt=runs.c.attempt + 1)
        )
        found = [rows[run_id] for run_id in ids if run_id in rows]
        if found:
            places = select(
                runs.c.id, runs.c.attempt, literal(lane_id), _LEVEL, literal(now, BigInteger)
            ).where(self.context.among(runs.c.id, list(rows)))
            connection.execute(insert(dispatched).from_select(_PLACE, places))
        return [_message(row, row.attempt + 1, lane_id, level_of(row.priority)) for row in found]

    async def shared_lanes(self) -> tuple[dict[int, Lane], bool]:
        """The lanes, of all namespaces, whose runs any worker may take; and whether there are others."""
        query = select(lanes, queues.c.strategy).outerjoin(
            queues, (queues.c.namespace == lanes.c.namespace) & (queues.c.name == lanes.c.queue)
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        known = {row.id: (lane_from(row), row.strategy) for row in rows}
        shared = {
            lane_id: lane
            for lane_id, (lane, strategy) in known.items()
            if (lane.strategy or strategy or Strategy.SHARED) == Strategy.SHARED
        }
        return shared, len(shared) < len(known)

    async def recall(self, attempts: Iterable[tuple[int, int]]) -> int:
        """Make these (run, attempt) pending again where they are still dispatched; returns how many."""
        wanted = dict(attempts)

        def work(connection: Connection) -> int:
            places = self.locked_places(connection, list(wanted))
            return self.recall_within(connection, [p for p in places if wanted[p.run_id] == p.attempt])

        recalled = await self.context.database.write(work) if wanted else 0
        if recalled:
            self.context.wakes.fire(PENDING)
        return recalled

    async def recall_unserved(self, served: Iterable[int], older_than: float) -> int:
        """Make runs pending again that were published before that, in lanes that no worker consumes now."""
        lanes_served = list(served)

        def work(connection: Connection) -> int:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            query = (
                select(dispatched)
                .where(dispatched.c.lane_id.not_in(lanes_served), dispatched.c.published_at < cutoff)
                .order_by(dispatched.c.run_id)
                .limit(ROWS_A_STATEMENT)
                .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
            )
            return self.recall_within(connection, connection.execute(query).all())

        recalled = await self.context.database.write(work)
        if recalled:
            self.context.wakes.fire(PENDING)
        return recalled

    async def overdue(self, older_than: float) -> list[Overdue]:
        """Where something was published that long ago and has not started."""

        def work(connection: Connection) -> list[Overdue]:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            where = (dispatched.c.held.is_(False),)
            late = func.sum((dispatched.c.published_at < cutoff).cast(dispatched.c.deaths.type))
            query = (
                select(dispatched.c.lane_id, dispatched.c.level, func.count(), late)
                .where(*where)
                .group_by(dispatched.c.lane_id, dispatched.c.level)
            )
            return [Overdue(*row) for row in connection.execute(query) if row[3]]

        return await self.context.database.read(work)

    async def republish(self, lane_id: int, level: int, older_than: float, most: int) -> list[Dispatched]:
        """The oldest of those published before that, to be published again under the same attempt."""

        def work(connection: Connection) -> list[Dispatched]:
            now = self.context.now(connection)
            query = (
                select(dispatched)
                .where(
                    dispatched.c.lane_id == lane_id,
                    dispatched.c.level == level,
                    dispatched.c.published_at < now - round(older_than * 1_000_000),
                    dispatched.c.held.is_(False),
                )
                .order_by(dispatched.c.published_at, dispatched.c.run_id)
                .limit(min(most, ROWS_A_STATEMENT))
                .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
            )
            places = {row.run_id: row for row in connection.execute(query)}
            if not places:
                return []
            ids = sorted(places)
            connection.execute(
                update(dispatched)
                .where(self.context.among(dispatched.c.run_id, ids))
                .values(published_at=now)
            )
            rows = connection.execute(
                select(*_MESSAGE).where(self.context.among(runs.c.id, ids)).order_by(runs.c.id)
            )
            return [_message(row, places[row.id].attempt, lane_id, level) for row in rows]

        return await self.context.database.write(work)

    # -- parts of it

    def _homes(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, int]:
        """Run → the lane that says what it is."""
        found: dict[int, int] = {}
        for chunk in chunks(run_ids):
            part = self.context.among(runs.c.id, chunk)
            query = select(runs.c.id, runs.c.lane_id).where(part)
            found |= {row.id: row.lane_id for row in connection.execute(query)}
        return found

    def locked_places(self, connection: Connection, run_ids: Sequence[int]) -> list[Any]:
        """The dispatch rows of these runs, locked: a change of a dispatched run locks its row first."""
        found: list[Any] = []
        ids = sorted(set(run_ids))
        for chunk in chunks(ids):
            part = self.context.among(dispatched.c.run_id, chunk)
            query = select(dispatched).where(part).order_by(dispatched.c.run_id).with_for_update()
            found += connection.execute(query).all()
        return found

    def recall_within(self, connection: Connection, places: Sequence[Any]) -> int:
        """Make the runs of these rows of `fusee_dispatched`, which are locked, pending again."""
        recalled = 0
        for part in chunks(places):
            ids = [place.run_id for place in part]
            mine = (self.context.among(runs.c.id, ids), runs.c.status == RunStatus.DISPATCHED)
            query = select(runs.c.id, runs.c.lane_id, runs.c.priority, runs.c.due_at).where(*mine)
            rows = connection.execute(query.order_by(runs.c.id).with_for_update()).all()
            connection.execute(delete(dispatched).where(self.context.among(dispatched.c.run_id, ids)))
            if not rows:
                continue
            connection.execute(update(runs).where(*mine).values(status=RunStatus.PENDING))
            self.ready_queue.add(connection, [QueueEntry(*row) for row in rows])
            recalled += len(rows)
        if recalled:
            self.context.notify(connection, PENDING)
        return recalled


@dataclass(slots=True)
class _Room:
    standing: Counter[tuple[int, int]]
    """(lane, level) → dispatched and not started."""
    queue_of: Mapping[int, tuple[str, str]]
    """Lane → its queue, where that has limits."""
    left: dict[tuple[str, str], int]

    def of(self, lane_id: int) -> int:
        queue = self.queue_of.get(lane_id)
        return 1 if queue is None else self.left[queue]

    def take(self, lane_id: int) -> bool:
        """Whether one more of that lane may be sent."""
        queue = self.queue_of.get(lane_id)
        if queue is None:
            return True
        self.left[queue] -= 1
        return self.left[queue] >= 0


def count_tickets(connection: Connection, queue: tuple[str, str]) -> int:
    """Runs of this queue in the hands of any worker."""
    mine = (tickets.c.namespace == queue[0], tickets.c.queue == queue[1])
    return int(connection.execute(select(func.count()).select_from(tickets).where(*mine)).scalar_one())


def _message(row: Any, attempt: int, stands: int, level: int) -> Dispatched:
    return Dispatched(
        row.id,
        attempt,
        row.spent,
        row.lane_id,
        stands,
        level,
        row.payload,
        row.options,
        row.kind,
        row.owner_id,
    )


_PLACE = ("run_id", "attempt", "lane_id", "level", "published_at")
_LEVEL = case((runs.c.priority > 0, HIGH), (runs.c.priority < 0, LOW), else_=NORMAL)
_FIRST = (
    select(ready.c.rank)
    .where(ready.c.lane_id == bindparam("lane_id"))
    .order_by(ready.c.rank, ready.c.due_at, ready.c.run_id)
    .limit(1)
)
