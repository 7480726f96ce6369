"""One unit of work on any database: a function of a connection, run in one transaction.

Cold statements are written once, in SQLAlchemy Core, as such functions. PostgreSQL and MySQL run them
on an async engine; SQLite runs them in its one writer thread, one hop for the whole unit.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, literal_column, select
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from fusee.errors import StoreUnavailable

__all__ = ["Capabilities", "Database", "EngineDatabase", "unavailable_on"]

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

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def write(self, work: Work[T]) -> T:
        """Run `work` in one transaction; run it again when the database made it a deadlock's victim."""

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run `work`, which only reads."""


class EngineDatabase(Database):
    """A database behind a SQLAlchemy async engine."""

    engine: AsyncEngine

    async def write(self, work: Work[T]) -> T:
        for again in range(6):
            try:
                with unavailable_on():
                    async with self.engine.begin() as connection:
                        return await connection.run_sync(work)
            except DBAPIError as error:
                if again == 5 or not is_victim(error):
                    raise
                await asyncio.sleep(random.uniform(0.005, 0.02) * 2**again)
        raise AssertionError("unreachable")

    async def read(self, work: Work[T]) -> T:
        with unavailable_on():
            async with self.engine.connect() as connection:
                return await connection.run_sync(work)


def is_victim(error: DBAPIError) -> bool:
    """Whether the database chose this transaction to fail so that another could go on."""
    original: Any = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    code = original.args[0] if original is not None and original.args else None
    return state in _AGAIN_STATES or code in _AGAIN_CODES


@contextmanager
def unavailable_on() -> Iterator[None]:
    """A lost or refused connection becomes `StoreUnavailable`; everything else stays what it is."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not _busy(error):
            raise
        raise StoreUnavailable(f"the database did not answer: {error}") from error
    except (ConnectionError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"the database did not answer: {error or type(error).__name__}") from error
    except (InterfaceError, OperationalError) as error:
        if error.connection_invalidated or isinstance(error, InterfaceError) or _refused(error):
            raise StoreUnavailable(f"the database did not answer: {error.orig}") from error
        raise
    except DBAPIError as error:
        if error.connection_invalidated or _refused(error):
            raise StoreUnavailable(f"the database did not answer: {error.orig}") from error
        raise


def _busy(error: BaseException | None) -> bool:
    """SQLite's file is locked by someone else, or cannot be reached just now."""
    text = str(error)
    return isinstance(error, sqlite3.OperationalError) and any(
        sign in text for sign in ("locked", "busy", "disk I/O error", "unable to open", "disk is full")
    )


def _refused(error: DBAPIError) -> bool:
    original: Any = error.orig
    if _busy(original):
        return True
    state = str(getattr(original, "sqlstate", "") or "")
    code = original.args[0] if original is not None and original.args else None
    return state.startswith(("08", "57P")) or code in (2002, 2003, 2006, 2013, 1053)
