"""The tables between two measurements: emptied, and tidied as a server would in a quiet minute."""

from __future__ import annotations

from sqlalchemy import Connection, text

from fusee.stores import Store

__all__ = ["empty", "settle"]

TABLES = ("fusee_runs", "fusee_ready", "fusee_delayed", "fusee_receipts", "fusee_attempts", "fusee_sessions")


async def empty(store: Store) -> None:
    def work(connection: Connection) -> None:
        truncate = "DELETE FROM" if connection.dialect.name == "sqlite" else "TRUNCATE TABLE"
        for table in TABLES:
            connection.execute(text(f"{truncate} {table}"))

    await store.database.write(work)


async def settle(store: Store) -> None:
    """The planner knows the tables; neither autovacuum nor a checkpoint falls due while the clock runs."""
    engine = getattr(store.database, "engine", None)
    if engine is None or engine.dialect.name != "postgresql":
        return
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(text("VACUUM (ANALYZE) fusee_runs, fusee_ready"))
        await connection.execute(text("CHECKPOINT"))
