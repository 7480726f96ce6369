"""One unit of work on any database: a function of a connection, run in one transaction.

Cold statements are written once, in SQLAlchemy Core, as such functions. PostgreSQL and MySQL run them
on an async engine; SQLite runs them in its one writer thread, one hop for the whole unit.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, event, literal_column, select
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as NoneFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fusee.engine.store.conditions import LOCKED, NO_ANSWER, condition_of, unavailable
from fusee.engine.store.watch import Watch
from fusee.errors import StoreUnavailable
from fusee.facts import facts

__all__ = ["Capabilities", "Database", "EngineDatabase", "share_out", "unavailable_on"]

T = TypeVar("T")
Work = Callable[[Connection], T]

log = logging.getLogger("fusee.store")

CONNECT_WITHIN = 5.0
"""Seconds for a connection to be made."""
PING_WITHIN = 3.0
"""Seconds in which a connection that comes from the pool must show that it is alive."""
SLACK = 2.0
"""Seconds beyond `statement_timeout` after which the server cannot be at work on a statement any more: it
cancels at that timeout, and its answer needs a moment."""
WAIT_QUIETLY = 2.0
"""Seconds that a unit of work waits for a free connection before the log says so."""
TELL_EVERY = 5.0
CLOSE_WITHIN = 5.0
_WATCH = "fusee-watch"
_FRESH = "fusee-fresh"

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


class EngineDatabase(Database):
    """A database behind a SQLAlchemy async engine. Every statement has a deadline on this side: a connection
    that misses it is closed, and none that is dead is taken from the pool."""

    engine: AsyncEngine
    statement_timeout: float
    max_connections: int
    _told_at = 0.0

    @property
    def deadline(self) -> float:
        """Seconds in which the server answers a statement, one way or the other."""
        return self.statement_timeout + SLACK

    @property
    def ping_within(self) -> float:
        return min(PING_WITHIN, self.deadline)

    @abstractmethod
    def abort(self, connection: Any) -> None:
        """Close a connection of the driver at once, without a word to the server."""

    def _allow(self, connection: Connection, seconds: float) -> None:
        """Have the server work on a statement of this transaction for longer than usual."""

    def watch_engine(self) -> None:
        """Ping what comes from the pool, and give each statement its time. SQLAlchemy's own ping waits for
        as long as the kernel does."""
        engine = self.engine.sync_engine
        # Any: the driver's connection as SQLAlchemy wraps it.

        @event.listens_for(engine, "connect")
        def on_connect(_connection: Any, record: Any) -> None:
            record.info[_FRESH] = True

        @event.listens_for(engine, "checkout")
        def on_checkout(connection: Any, record: Any, _proxy: Any) -> None:
            if record.info.pop(_FRESH, False):
                return
            watch = Watch(self.ping_within, lambda: self.abort(connection.driver_connection))
            try:
                engine.dialect.do_ping(connection)
            except Exception as error:
                # All others of its age are made anew, too: what ended it has ended them.
                raise InvalidatePoolError from error
            finally:
                watch.end()

        @event.listens_for(engine, "before_cursor_execute")
        def on_statement(connection: Connection, *_: Any) -> None:
            _next(connection)

        @event.listens_for(engine, "commit")
        @event.listens_for(engine, "rollback")
        def on_end(connection: Connection) -> None:
            _next(connection)

    async def write(self, work: Work[T], *, within: float | None = None) -> T:
        for again in range(6):
            try:
                with unavailable_on():
                    async with self._connection(within) as connection, connection.begin():
                        if within is not None and within > self.statement_timeout:
                            await connection.run_sync(self._allow, within)
                        return await connection.run_sync(work)
            except DBAPIError as error:
                if not is_victim(error):
                    raise
                if again == 5:
                    raise unavailable(LOCKED, error.orig) from error
                await asyncio.sleep(random.uniform(0.005, 0.02) * 2**again)
        raise AssertionError("unreachable")

    async def read(self, work: Work[T]) -> T:
        try:
            with unavailable_on():
                async with self._connection() as connection:
                    return await connection.run_sync(work)
        except DBAPIError as error:
            if not is_victim(error):
                raise
            raise unavailable(LOCKED, error.orig) from error

    @asynccontextmanager
    async def _connection(self, within: float | None = None) -> AsyncIterator[AsyncConnection]:
        """One of the pool, watched until it is back there."""
        loud = asyncio.get_running_loop().call_later(WAIT_QUIETLY, self._tell_of_waiting)
        watch: Watch | None = None
        try:
            async with self.engine.connect() as connection:
                loud.cancel()
                raw = await connection.get_raw_connection()
                driver = raw.driver_connection
                watch = Watch(self.deadline if within is None else within, lambda: self.abort(driver))
                raw.info[_WATCH] = watch
                yield connection
        except NoneFree as error:
            busy = (
                f"no connection came free within {self.deadline:g} s: all of database.max_connections"
                f" ({self.max_connections}) are in use"
            )
            raise StoreUnavailable(busy, public=busy) from error
        except Exception as error:
            if watch is None or not watch.missed:
                raise
            raise StoreUnavailable(
                f"the database did not answer within {watch.seconds:g} s: the connection was closed"
            ) from error
        finally:
            loud.cancel()
            if watch is not None:
                watch.end()

    def _tell_of_waiting(self) -> None:
        """Once for all that wait at the same time."""
        now = time.monotonic()
        if now - self._told_at > TELL_EVERY:
            self._told_at = now
            log.warning(
                "waiting for a database connection: all are in use, or the server does not answer",
                extra=facts(max_connections=self.max_connections),
            )

    async def dispose(self) -> None:
        """Close the engine's connections; those that do not answer are left to the kernel."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                await self.engine.dispose()


def _next(connection: Connection) -> None:
    if connection.invalidated:
        return
    watch: Watch | None = connection.info.get(_WATCH)
    if watch is not None:
        watch.statement()


def share_out(max_connections: int, *, listener: bool) -> tuple[int, int]:
    """(for hot statements, for all others): together with that of the listener, no more than allowed."""
    left = max_connections - listener
    hot = max(1, min(4, left // 2))
    return hot, max(1, left - hot)


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
