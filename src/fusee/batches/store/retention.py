"""Forgetting batches: old ones, and uploads whose caller went away. A million targets go bit by bit."""

from __future__ import annotations

from sqlalchemy import Connection, null, select, update

from fusee.batches.model.batch import BatchPhase
from fusee.batches.store.intake import DISCARDED, BatchIntake
from fusee.batches.store.tables import batches
from fusee.engine.store.context import StoreContext
from fusee.events import Bus
from fusee.service import Service

__all__ = ["BatchRetention", "Sweep"]

ABANDONED_AFTER = 3_600_000_000
"""Microseconds without a new portion after which an upload counts as given up."""
MOST_AT_ONCE = 100


class BatchRetention:
    def __init__(self, context: StoreContext, intake: BatchIntake) -> None:
        self.context = context
        self.intake = intake

    async def sweep_batches(self) -> int:
        """Give up uploads that nobody continues, and delete some of what was discarded. Returns how many
        batches and targets were touched; 0 means that nothing is left to do."""

        def work(connection: Connection) -> int:
            given_up = (
                batches.c.phase == BatchPhase.UPLOADING,
                batches.c.updated_at < self.context.now(connection) - ABANDONED_AFTER,
            )
            touched = self._hide(connection, *given_up)
            query = select(batches.c.id).where(batches.c.phase == BatchPhase.DISCARDED)
            locked = query.limit(1).with_for_update(
                skip_locked=self.context.database.capabilities.skip_locked
            )
            for batch_id in connection.execute(locked).scalars().all():
                touched += 1 + self.intake.delete_some(connection, batch_id)
            return touched

        return await self.context.database.write(work)

    async def forget_batches(self, older_than: float) -> int:
        """Delete batches that ended more than `older_than` seconds ago, and write on the others until when
        they are kept; 0 keeps them all. Returns how many were deleted."""

        def work(connection: Connection) -> int:
            done = batches.c.phase == BatchPhase.DONE
            until = batches.c.finished_at + round(older_than * 1_000_000) if older_than else null()
            stale = batches.c.kept_until.is_distinct_from(until)
            connection.execute(update(batches).where(done, stale).values(kept_until=until))
            return self._hide(connection, done, batches.c.kept_until < self.context.now(connection))

        return await self.context.database.write(work)

    def _hide(self, connection: Connection, *conditions: object) -> int:
        skip_locked = self.context.database.capabilities.skip_locked
        query = select(batches.c.id).where(*conditions).limit(MOST_AT_ONCE)  # type: ignore[arg-type]
        found = connection.execute(query.with_for_update(skip_locked=skip_locked)).scalars().all()
        if found:
            connection.execute(update(batches).where(batches.c.id.in_(found)).values(DISCARDED))
        return len(found)


class Sweep(Service):
    """Gives up uploads that nobody continues, and deletes what is left of discarded batches.

    It runs also where nothing is pruned by age: an upload that was given up is no history to keep.
    """

    def __init__(self, retention: BatchRetention, bus: Bus, interval: float = 60.0) -> None:
        super().__init__("sweep", interval, bus)
        self.retention = retention

    async def run_once(self) -> int:
        return await self.retention.sweep_batches()
