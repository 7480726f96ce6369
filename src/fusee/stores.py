"""The store: the only truth. One contract over SQLite, PostgreSQL and MySQL/MariaDB."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from fusee.access.store import ApiKeys
from fusee.batches.store.owner import BATCH_RUNS
from fusee.batches.store.store import BatchStore
from fusee.bulk.store.owner import BULK_RUNS
from fusee.bulk.store.store import BulkStore
from fusee.clock import Clock
from fusee.engine.store import migrate
from fusee.engine.store.context import Decisions, StoreContext
from fusee.engine.store.database import Database, open_database
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.set_aside import SetAside
from fusee.engine.store.wakes import Wakes
from fusee.placement.assign import Assignments
from fusee.placement.broadcasts import Broadcasts
from fusee.tasks.store.owner import TASK_RUNS
from fusee.tasks.store.store import TaskStore
from fusee.workflows.store.store import WorkflowStore

__all__ = ["RUN_KINDS", "Store", "open_store"]

RUN_KINDS = {kind.name: kind for kind in (TASK_RUNS, BATCH_RUNS, BULK_RUNS)}
"""The kinds of work that workers and logs know more about than their name."""

MIGRATED_WITHIN = 3600.0
"""Seconds for each statement of a migration, and for the turn of another process."""


class Store(EngineStore):
    """Everything that can be asked of the database, for one namespace."""

    def __init__(
        self,
        database: Database,
        namespace: str = "default",
        *,
        wakes: Wakes | None = None,
        set_aside: SetAside | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        super().__init__(
            StoreContext(
                database,
                namespace,
                wakes=wakes or Wakes(),
                set_aside=set_aside or SetAside(),
                decisions=decisions or Decisions(),
            )
        )
        self.tasks = TaskStore(self.context, self)
        self.workflows = WorkflowStore(self.context, self, self.tasks.definitions)
        self.batches = BatchStore(self.context, self)
        self.bulk = BulkStore(self.context, self)
        self.api_keys = ApiKeys(self.context)
        self.broadcasts = Broadcasts(
            self.context, self.run_writer, self.cancels, {TASK_RUNS.name: self.tasks.writer.add_shards}
        )
        self.assignments = Assignments(
            self.context, self.ready_queue, self.lanes, self.own_lanes, self.edit_lock, self.broadcasts
        )
        for noun in (self.tasks, self.workflows, self.batches, self.bulk):
            self.owners.register(noun.owner)

    def for_namespace(self, namespace: str) -> Store:
        """The same database seen as another tenant; opened and closed with this one."""
        shared = self.context
        return Store(
            shared.database,
            namespace,
            wakes=shared.wakes,
            set_aside=shared.set_aside,
            decisions=shared.decisions,
        )

    async def open(self) -> None:
        await self.database.open()
        listen: Any = getattr(self.database, "listen", None)
        if listen is not None:
            listen(self.wakes)

    async def close(self) -> None:
        await self.database.close()

    async def upgrade(self) -> str:
        """Bring the schema to this version; answers the revision."""
        return await self.database.write(migrate.upgrade, within=MIGRATED_WITHIN)

    async def upgrade_and_tell(self) -> migrate.Upgraded:
        """The same, and what that added."""
        return await self.database.write(migrate.upgrade_and_tell, within=MIGRATED_WITHIN)

    async def revision(self) -> tuple[str | None, str]:
        """(the schema's revision, the one this version wants)."""
        return await self.database.read(migrate.revision)

    async def ping(self) -> None:
        await self.database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())


def open_store(
    url: str,
    *,
    namespace: str = "default",
    clock: Clock | None = None,
    max_connections: int = 10,
    statement_timeout: float = 10.0,
    now: str | None = None,
) -> Store:
    """The store behind a URL, not opened yet. `now` replaces the database's clock, for tests."""
    database = open_database(
        url, clock=clock, max_connections=max_connections, statement_timeout=statement_timeout, now=now
    )
    return Store(database, namespace)
