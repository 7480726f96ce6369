"""Which database a URL names."""

from __future__ import annotations

from typing import Any

from fusee.clock import Clock, SystemClock
from fusee.engine.store.database import Database
from fusee.errors import ConfigError

__all__ = ["open_database"]


def open_database(
    url: str,
    *,
    clock: Clock | None = None,
    max_connections: int = 10,
    statement_timeout: float = 10.0,
    now: str | None = None,
) -> Database:
    """The database behind a URL, not opened yet. `now` replaces the database's clock, for tests."""
    scheme, _, rest = url.partition("://")
    kind = scheme.split("+")[0]
    extra: dict[str, Any] = {"now": now} if now else {}
    options = {"max_connections": max_connections, "statement_timeout": statement_timeout, **extra}
    if kind == "sqlite":
        from fusee.engine.store.sqlite import SqliteDatabase

        path = rest[1:] if rest.startswith("/") else rest
        return SqliteDatabase(path, clock or SystemClock())
    try:
        if kind in ("postgresql", "postgres"):
            from fusee.engine.store.postgres import PostgresDatabase

            return PostgresDatabase(url, **options)
        if kind in ("mysql", "mariadb"):
            from fusee.engine.store.mysql import MysqlDatabase

            return MysqlDatabase(url, **options)
    except ModuleNotFoundError as error:
        extra_name = "mysql" if kind in ("mysql", "mariadb") else "postgres"
        raise ConfigError(
            f"{kind} needs the driver {error.name}: pip install 'fusee[{extra_name}]'"
        ) from None
    raise ConfigError(f"database.url must begin with sqlite, postgresql or mysql, not {scheme!r}")
