"""One unit of work on any database: a function of a connection, run in one transaction.

Cold statements are written once, in SQLAlchemy Core, as such functions. PostgreSQL and MySQL run them
on an async engine; SQLite runs them in its one writer thread, one hop for the whole unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, literal_column, select
from sqlalchemy.exc import DBAPIError, InterfaceError

from fusee.clock import Clock, SystemClock
from fusee.engine.store.conditions import NO_ANSWER, condition_of, unavailable
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.rows import Bulk, NewRun
from fusee.errors import ConfigError, StoreUnavailable

__all__ = ["Capabilities", "Database", "Work", "is_victim", "open_database", "unavailable_on"]

T = TypeVar("T")
Work = Callable[[Connection], T]

# Deadlock and serialization victims: rolled back whole by the database, safe to run again.
_AGAIN_STATES = {"40001", "40P01", "55P03"}
# 1305: the deadlock's rollback took a savepoint with it, and going back to that is what failed.
_AGAIN_CODES = {1205, 1213, 1305}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this database can do; code asks for these, never for its name."""

    skip_locked: bool
    """Can lock rows and pass over those another transaction holds (else there is one writer)."""
    returning: bool
    notify: bool
    """Can tell other processes at commit."""
    now: str
    """The database's clock in microseconds, as SQL."""
    arrays: bool = False
    """Takes many numbers as one parameter."""
    sequence: str | None = None
    """How the next run's number is drawn, where numbers can be had before their rows."""


@cache
def _ask(clock: str) -> Select[Any]:
    return select(literal_column(clock, BigInteger))


class Database(ABC):
    """Opens, closes, reads and writes."""

    capabilities: Capabilities

    @property
    def now(self) -> ColumnElement[int]:
        return literal_column(self.capabilities.now, BigInteger)

    def read_clock(self, connection: Connection) -> int:
        """The database's clock, asked on a connection that may be the caller's own."""
        return int(connection.execute(_ask(self.capabilities.now)).scalar_one())

    def join(self, connection: Connection) -> None:
        """Make sure that the caller's connection is in a transaction before a savepoint is set in it."""
        return

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def write(self, work: Work[T], *, within: float | None = None) -> T:
        """Run `work` in one transaction; run it again when the database made it a deadlock's victim.

        Each statement must be answered within `within` seconds, else within the statement timeout.
        """

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run `work`, which only reads."""

    # -- the statements that every run passes through, each for many runs at once, in the database's own SQL:
    # -- a run's row is touched three times, when it is inserted, claimed and finished

    @abstractmethod
    async def insert(self, namespace: str, rows: Sequence[NewRun]) -> list[int]:
        """Insert runs without idempotency keys; their ids in the same order."""

    async def insert_bulk(self, namespace: str, bulk: Bulk) -> list[int]:
        """Insert many runs that are due at once; faster where the database has a way for that."""
        return await self.insert(namespace, list(bulk.rows()))

    @abstractmethod
    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """In one transaction: write the successes of this session, claim what is ordered.

        A success counts only where run, attempt and session still match a running row. A claim takes
        the highest priority first, then the earliest due, and nothing when the session is not alive;
        it leaves a receipt by which the runs are found should the session die.
        """


def is_victim(error: DBAPIError) -> bool:
    """Whether the database chose this transaction to fail so that another could continue."""
    original: Any = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    code = original.args[0] if original is not None and original.args else None
    return state in _AGAIN_STATES or code in _AGAIN_CODES


@contextmanager
def unavailable_on() -> Iterator[None]:
    """What keeps the database from storing anything becomes `StoreUnavailable`; all else stays what it is."""
    try:
        yield
    except StoreUnavailable:
        raise
    except DBAPIError as error:
        condition = condition_of(error.orig)
        if condition is None and (error.connection_invalidated or isinstance(error, InterfaceError)):
            condition = NO_ANSWER
        # The caller runs a deadlock's victim again.
        if condition is None or is_victim(error):
            raise
        raise unavailable(condition, error.orig) from error
    except Exception as error:
        # Errors of connecting come as the driver's own.
        condition = condition_of(error)
        if condition is None:
            raise
        raise unavailable(condition, error) from error


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
