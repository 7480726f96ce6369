"""Protection from starvation: a run that has waited too long behind higher priorities moves to the head.

Each pass lifts only one run of each lane and priority: starved work always makes progress, and a backlog of
old work never delays something urgent.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from fusee.engine.model.run_fields import HIGHEST_PRIORITY
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.own_lanes import assigned_by_lane
from fusee.engine.store.ready_queue import QueueEntry, ReadyQueue
from fusee.engine.store.tables import lanes, queues, ready, runs

__all__ = ["Aging"]

TOP = -HIGHEST_PRIORITY


class Aging:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue) -> None:
        self.context = context
        self.ready_queue = ready_queue

    async def lift(self, older_than: float) -> int:
        """Give the oldest run of each starved group the highest priority; returns how many."""

        def work(connection: Connection) -> int:
            cutoff = self.context.now(connection) - round(older_than * 1_000_000)
            groups = self._groups(connection)
            best = min((rank for _, rank, _ in groups), default=TOP)
            starved = [
                (lane, rank)
                for lane, rank, oldest in groups
                if rank > best and oldest < cutoff and rank > TOP
            ]
            return sum(self._lift_one(connection, lane, rank, cutoff) for lane, rank in starved)

        return await self.context.database.write(work)

    async def stalled(self, older_than: float) -> dict[tuple[str, str], float]:
        """(namespace, queue) → seconds that its oldest run has waited, where that is too long and the queue
        is not paused."""

        def work(connection: Connection) -> dict[tuple[str, str], float]:
            now = self.context.now(connection)
            oldest: dict[int, int] = {}
            for lane_id, _, due_at in self._groups(connection):
                oldest[lane_id] = min(due_at, oldest.get(lane_id, due_at))
            late = [lane_id for lane_id, due_at in oldest.items() if now - due_at > older_than * 1_000_000]
            if not late:
                return {}
            paused = select(queues.c.namespace, queues.c.name).where(queues.c.paused)
            stopped = {(row.namespace, row.name) for row in connection.execute(paused)}
            for lane_id, _, due_at in assigned_by_lane(connection, [lane for lane in late if lane < 0]):
                oldest[lane_id] = min(due_at, oldest.get(lane_id, due_at))
                late.append(lane_id)
            found: dict[tuple[str, str], float] = {}
            for row in connection.execute(select(lanes).where(lanes.c.id.in_(late))):
                key = (row.namespace, row.queue)
                if key not in stopped:
                    found[key] = max(found.get(key, 0.0), (now - oldest[row.id]) / 1_000_000)
            return found

        return await self.context.database.read(work)

    def _groups(self, connection: Connection) -> list[tuple[int, int, int]]:
        """(lane, rank, oldest due time) of all entries: one step of the index for each group."""
        found: list[tuple[int, int, int]] = []
        first = select(ready.c.lane_id, ready.c.rank, ready.c.due_at).order_by(
            ready.c.lane_id, ready.c.rank, ready.c.due_at
        )
        row: Any = connection.execute(first.limit(1)).one_or_none()
        while row is not None:
            found.append((row.lane_id, row.rank, row.due_at))
            same_lane = first.where(ready.c.lane_id == row.lane_id, ready.c.rank > row.rank)
            following = connection.execute(same_lane.limit(1)).one_or_none()
            if following is None:
                following = connection.execute(
                    first.where(ready.c.lane_id > row.lane_id).limit(1)
                ).one_or_none()
            row = following
        return found

    def _lift_one(self, connection: Connection, lane_id: int, rank: int, cutoff: int) -> int:
        oldest = (
            select(ready)
            .where(ready.c.lane_id == lane_id, ready.c.rank == rank, ready.c.due_at < cutoff)
            .order_by(ready.c.due_at, ready.c.run_id)
            .limit(1)
            .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        )
        place = connection.execute(oldest).one_or_none()
        if place is None:
            return 0
        mine = (runs.c.id == place.run_id, runs.c.status == RunStatus.PENDING)
        self.ready_queue.remove(connection, [place])
        if connection.execute(update(runs).where(*mine).values(priority=HIGHEST_PRIORITY)).rowcount == 0:
            return 0
        self.ready_queue.add(connection, [QueueEntry(place.run_id, lane_id, HIGHEST_PRIORITY, place.due_at)])
        return 1
