"""One unit of work on any database: a function of a connection, run in one transaction.

Cold statements are written once, in SQLAlchemy Core, as such functions. PostgreSQL and MySQL run them
on an async engine; SQLite runs them in its one writer thread, one hop for the whole unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, literal_column, select
from sqlalchemy.exc import DBAPIError, InterfaceError

from fusee.engine.store.conditions import NO_ANSWER, condition_of, unavailable
from fusee.errors import StoreUnavailable

__all__ = ["Capabilities", "Database", "Work", "is_victim", "unavailable_on"]

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


def is_victim(error: DBAPIError) -> bool:
    """Whether the database chose this transaction to fail so that another could go on."""
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
        # A deadlock's victim is run again by whoever called.
        if condition is None or is_victim(error):
            raise
        raise unavailable(condition, error.orig) from error
    except Exception as error:
        # Errors of connecting come as the driver's own.
        condition = condition_of(error)
        if condition is None:
            raise
        raise unavailable(condition, error) from error
