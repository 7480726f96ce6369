"""A SQLAlchemy engine whose every statement has a deadline on the client's side."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as NoneFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fusee.engine.store.conditions import LOCKED, unavailable
from fusee.engine.store.database import Work, is_victim, unavailable_on
from fusee.errors import StoreUnavailable
from fusee.facts import facts

__all__ = ["CONNECT_WITHIN", "ConnectionLimits", "Watch", "WatchedEngine"]

T = TypeVar("T")

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


class Watch:
    """Closes a connection when the server has not answered in time.

    Closing makes the driver raise for the caller that waits, and keeps the connection out of its pool. A
    cancel would do neither for sure: before Python 3.12 it can be lost in `asyncio.wait_for`, which drivers
    use, and a driver that was cancelled waits for the server to confirm it.
    """

    __slots__ = ("_close", "_due", "_loop", "_seconds", "_timer", "missed")

    def __init__(self, seconds: float, close: Callable[[], None]) -> None:
        self._seconds = seconds
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + seconds
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due, self._look)
        self.missed = False

    def statement(self) -> None:
        """The next statement begins: it has the whole time for itself."""
        self._due = self._loop.time() + self._seconds

    def error(self) -> StoreUnavailable:
        """What a caller is told whose statement missed its deadline."""
        return StoreUnavailable(
            f"the database did not answer within {self._seconds:g} s: the connection was closed"
        )

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self._timer = None
        self.missed = True
        self._close()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The time that a statement may take, and the connections that this process may hold."""

    statement_timeout: float
    max_connections: int
    listener: bool = False
    """Whether one connection listens for hints."""

    @property
    def deadline(self) -> float:
        """Seconds in which the server answers a statement, one way or the other."""
        return self.statement_timeout + SLACK

    @property
    def ping_within(self) -> float:
        return min(PING_WITHIN, self.deadline)

    @property
    def hot_connections(self) -> int:
        """How many serve hot statements."""
        return max(1, min(4, (self.max_connections - self.listener) // 2))

    @property
    def other_connections(self) -> int:
        """How many serve everything else: with the hot ones and the listener, no more than allowed."""
        return max(1, self.max_connections - self.listener - self.hot_connections)


class WatchedEngine:
    """Runs units of work on a SQLAlchemy async engine. A connection that misses the deadline of a statement
    is closed, and a dead connection is never taken from the pool."""

    def __init__(
        self,
        engine: AsyncEngine,
        limits: ConnectionLimits,
        abort: Callable[[Any], None],
        allow: Callable[[Connection, float], None] | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.abort = abort
        """Closes a connection of the driver at once, without a word to the server."""
        self.allow = allow
        """Lets the server work on a statement of this transaction for longer than usual (seconds)."""
        self._told_at = 0.0
        self._watch_engine()

    def _watch_engine(self) -> None:
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
            watch = Watch(self.limits.ping_within, lambda: self.abort(connection.driver_connection))
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
                        if self.allow and within is not None and within > self.limits.statement_timeout:
                            await connection.run_sync(self.allow, within)
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
                watch = Watch(self.limits.deadline if within is None else within, lambda: self.abort(driver))
                raw.info[_WATCH] = watch
                yield connection
        except NoneFree as error:
            busy = (
                f"no connection came free within {self.limits.deadline:g} s: all of database.max_connections"
                f" ({self.limits.max_connections}) are in use"
            )
            raise StoreUnavailable(busy, public=busy) from error
        except Exception as error:
            if watch is None or not watch.missed:
                raise
            raise watch.error() from error
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
                extra=facts(max_connections=self.limits.max_connections),
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
