"""The store: the only truth. One contract over SQLite, PostgreSQL and MySQL/MariaDB."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from fusee.access.store import Keys
from fusee.clock import Clock, SystemClock
from fusee.engine.store import migrate
from fusee.engine.store.aggregate import Aggregate
from fusee.engine.store.aging import Aging
from fusee.engine.store.assigned_claims import Given
from fusee.engine.store.callbacks import Callbacks
from fusee.engine.store.contract import Exchanged, Finished, LaneMap, Order
from fusee.engine.store.database import Database
from fusee.engine.store.dead_letters import Letters
from fusee.engine.store.enqueue import Enqueue
from fusee.engine.store.hot import Hot
from fusee.engine.store.parts import Decisions
from fusee.engine.store.set_aside import SetAside
from fusee.engine.store.starting import Starting
from fusee.engine.store.totals import Totals
from fusee.engine.store.upkeep import Upkeep
from fusee.engine.store.wakes import ENDED, Wakes
from fusee.errors import ConfigError
from fusee.placement.store.assign import Placement
from fusee.tasks.store.history import Record

__all__ = ["Store", "open_store"]

MIGRATED_WITHIN = 3600.0
"""Seconds for each statement of a migration, and for the turn of another process."""


class Store(
    Aggregate, Record, Enqueue, Given, Placement, Starting, Letters, Callbacks, Upkeep, Aging, Keys, Totals
):
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
        assert isinstance(database, Hot)
        self.database = database
        self.hot = database
        self.namespace = namespace
        self.wakes = wakes or Wakes()
        self.lane_map = LaneMap()
        self.set_aside = set_aside or SetAside()
        self.decisions = decisions or Decisions()

    def for_namespace(self, namespace: str) -> Store:
        """The same database seen as another tenant; opened and closed with this one."""
        return Store(
            self.database,
            namespace,
            wakes=self.wakes,
            set_aside=self.set_aside,
            decisions=self.decisions,
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

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """Hand in successes, take new runs: one round trip for both, for hundreds of each."""
        exchanged = await self.hot.exchange(session, finished, order)
        if finished.told:
            self.wakes.fire(ENDED)
        return exchanged


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
    scheme, _, rest = url.partition("://")
    kind = scheme.split("+")[0]
    extra: dict[str, Any] = {"now": now} if now else {}
    options = {"max_connections": max_connections, "statement_timeout": statement_timeout, **extra}
    if kind == "sqlite":
        from fusee.engine.store.sqlite import SqliteDatabase

        path = rest[1:] if rest.startswith("/") else rest
        return Store(SqliteDatabase(path, clock or SystemClock()), namespace)
    try:
        if kind in ("postgresql", "postgres"):
            from fusee.engine.store.postgres import PostgresDatabase

            return Store(PostgresDatabase(url, **options), namespace)
        if kind in ("mysql", "mariadb"):
            from fusee.engine.store.mysql import MysqlDatabase

            return Store(MysqlDatabase(url, **options), namespace)
    except ModuleNotFoundError as error:
        extra_name = "mysql" if kind in ("mysql", "mariadb") else "postgres"
        raise ConfigError(
            f"{kind} needs the driver {error.name}: pip install 'fusee[{extra_name}]'"
        ) from None
    raise ConfigError(f"database.url must begin with sqlite, postgresql or mysql, not {scheme!r}")
