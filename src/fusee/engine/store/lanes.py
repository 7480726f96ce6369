"""Lanes: read often, written once each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.run import Lane
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import lanes

__all__ = ["Lanes", "lane_from"]


class Lanes:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def lane_ids(self, wanted: Iterable[Lane]) -> dict[Lane, int]:
        """The number of each lane; those that are new are created."""
        known = {lane: lane_id for lane_id, lane in self.context.lane_map.lanes.items()}
        missing = {lane for lane in wanted if lane not in known}
        for lane in sorted(missing, key=str):
            lane_id = await self.context.database.write(
                lambda connection, lane=lane: self.lane_id(connection, lane)  # type: ignore[misc]
            )
            self.context.lane_map.lanes[lane_id] = lane
            known[lane] = lane_id
        return known

    async def read_new_lanes(self) -> bool:
        """Look for lanes that other processes created; true when there were any."""
        # By count, not above the newest known: a smaller number may show up later, when another process made
        # it, or when the transaction that made it took longer.
        mine = lanes.c.namespace == self.context.namespace

        def work(connection: Connection) -> Sequence[Any]:
            many = connection.execute(select(func.count()).select_from(lanes).where(mine)).scalar_one()
            if many == len(self.context.lane_map.lanes):
                return ()
            return connection.execute(select(lanes).where(mine)).all()

        found = {row.id: lane_from(row) for row in await self.context.database.read(work)}
        new = found.keys() - self.context.lane_map.lanes.keys()
        self.context.lane_map.lanes |= found
        return bool(new)

    async def all_lanes(self) -> dict[int, Lane]:
        """The lanes of all namespaces, by number."""
        rows = await self.context.database.read(lambda connection: connection.execute(select(lanes)).all())
        return {row.id: lane_from(row) for row in rows}

    def lane_id(self, connection: Connection, lane: Lane) -> int:
        """Find or create it, in the transaction of `connection`."""
        same = [
            *(lanes.c[name] == getattr(lane, name) for name in ("namespace", "queue", "executor", "handler")),
            lanes.c.region == lane.place,
        ]
        query = select(lanes.c.id).where(*same)
        found = connection.execute(query).scalar_one_or_none()
        if found is not None:
            return int(found)
        try:
            with connection.begin_nested():
                added = connection.execute(
                    insert(lanes).values(
                        namespace=lane.namespace,
                        queue=lane.queue,
                        executor=lane.executor,
                        handler=lane.handler,
                        region=lane.place,
                    )
                )
                key = added.inserted_primary_key
                assert key is not None
                return int(key[0])
        except IntegrityError:  # someone else was first
            # Read with a lock: the snapshot of a caller's own transaction may be older than that lane.
            return int(connection.execute(query.with_for_update(read=True)).scalar_one())

    def set_turn(self, connection: Connection, lane_id: int, turn: str | None) -> None:
        """Remember the worker from which a strategy that takes turns continues."""
        connection.execute(update(lanes).where(lanes.c.id == lane_id).values(turn=turn))


def lane_from(row: Any) -> Lane:
    return Lane.at(row.namespace, row.queue, row.executor, row.handler, row.region)
