"""The connections to MySQL and MariaDB for hot statements."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncmy
from asyncmy.constants.CLIENT import FOUND_ROWS
from asyncmy.errors import InterfaceError, OperationalError
from sqlalchemy import URL

from fusee.engine.sockets import keep_alive
from fusee.engine.store.conditions import LOCKED, NO_ANSWER, condition_of, unavailable
from fusee.engine.store.watched_engine import CONNECT_WITHIN, ConnectionLimits, Watch
from fusee.errors import StoreUnavailable

__all__ = ["RECYCLE_AFTER", "MysqlPool", "abort", "connect"]

T = TypeVar("T")

FROZEN_AFTER = 10
"""Seconds without a word after which the server ends a connection and frees its locks: a process that was
stopped in the middle of a transaction must not keep others from its runs."""
RECYCLE_AFTER = 5
# 1213: we are the deadlock's victim, rolled back. 1205: a lock wait timed out, *not* rolled back.
AGAIN = {1213, 1205}


def abort(connection: Any) -> None:
    """Close a connection at once, without a word to the server."""
    if connection._transport is not None:
        connection._transport.abort()
    connection._connected = False  # or the driver's pool would take it back


async def connect(*args: Any, **kwargs: Any) -> Any:
    """The driver's own limit on connecting ends where the server accepts, before it has said who it is."""
    async with asyncio.timeout(CONNECT_WITHIN):
        connection: Any = await asyncmy.connect(*args, **kwargs)
    keep_alive(connection._transport)
    return connection


class _WatchedCursor:
    """A cursor each of whose statements has the whole time for itself."""

    __slots__ = ("_cursor", "_watch")

    def __init__(self, cursor: Any, watch: Watch) -> None:
        self._cursor = cursor
        self._watch = watch

    async def execute(self, *statement: Any) -> Any:
        self._watch.statement()
        return await self._cursor.execute(*statement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class MysqlPool:
    """Connections for hot statements. One whose statement misses its deadline is closed, and those that were
    open by then are pinged before they are used again."""

    def __init__(self, url: URL, limits: ConnectionLimits) -> None:
        self._url = url
        self._limits = limits
        self.session_settings = ""
        """The statement that each connection begins with; known when the pool is open."""
        self._pool: Any = None
        self._alive_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        """When each connection was first used, or last known to be alive."""
        self._doubted_at = 0.0
        """When one of them last missed its deadline: those that are older are pinged before use."""

    def _address(self) -> dict[str, Any]:
        return {
            "host": self._url.host or "127.0.0.1",
            "port": self._url.port or 3306,
            "user": self._url.username or "root",
            "password": self._url.password or "",
            "db": self._url.database,
            "connect_timeout": CONNECT_WITHIN,
            "read_timeout": self._limits.deadline,
        }

    async def _ask_version(self) -> str:
        connection = await asyncmy.connect(**self._address())
        try:
            async with connection.cursor() as cursor:
                await cursor.execute("SELECT VERSION()")
                return str((await cursor.fetchone())[0])
        finally:
            connection.close()

    async def open(self) -> None:
        with unavailable_mysql():
            isolation = "tx_isolation" if "MariaDB" in await self._ask_version() else "transaction_isolation"
            self.session_settings = (
                f"SET SESSION wait_timeout = {FROZEN_AFTER}, SESSION {isolation} = 'READ-COMMITTED'"
            )
            self._pool = await asyncmy.create_pool(
                **self._address(),
                minsize=1,
                maxsize=self._limits.hot_connections,
                charset="utf8mb4",
                autocommit=True,
                init_command=self.session_settings,
                client_flag=FOUND_ROWS,
                pool_recycle=RECYCLE_AFTER,
            )

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_WITHIN):
                    await self._pool.wait_closed()
            self._pool = None

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[Any]:
        """A connection for hot statements, with the watch that closes it when one is not answered in time."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open: call open() first")
        connection = await self._acquire()
        watch = Watch(self._limits.deadline, lambda: abort(connection))
        try:
            yield connection, watch
        except _Again:
            raise  # rolled back: as good as new
        except BaseException as error:
            # Its state is unknown: it must not be used again.
            abort(connection)
            if watch.missed and isinstance(error, Exception):
                self._doubted_at = time.monotonic()
                raise watch.error() from error
            raise
        finally:
            watch.end()
            self._pool.release(connection)

    async def _acquire(self) -> Any:
        """One that is alive, as far as there is reason to doubt it."""
        while True:
            async with asyncio.timeout(self._limits.deadline):
                connection = await self._pool.acquire()
            if connection not in self._alive_at:
                keep_alive(connection._transport)
                self._alive_at[connection] = time.monotonic()
            if self._alive_at[connection] >= self._doubted_at:
                return connection
            watch = Watch(self._limits.ping_within, partial(abort, connection))
            try:
                await connection.ping(reconnect=False)
            except BaseException as error:
                abort(connection)
                self._pool.release(connection)
                if not isinstance(error, Exception):
                    raise
            else:
                self._alive_at[connection] = time.monotonic()
                return connection
            finally:
                watch.end()

    async def transaction(self, unit: Callable[[Any], Awaitable[T]]) -> T:
        for again in range(8):
            try:
                with unavailable_mysql():
                    async with self.acquired() as (connection, watch), connection.cursor() as bare:
                        cursor = _WatchedCursor(bare, watch)
                        await cursor.execute("START TRANSACTION")
                        try:
                            answer = await unit(cursor)
                        except OperationalError as error:
                            if error.args[0] in AGAIN:
                                await cursor.execute("ROLLBACK")  # 1205 leaves the transaction open
                                raise _Again from error
                            raise
                        await cursor.execute("COMMIT")
                        return answer
            except _Again as error:
                if again == 7:
                    raise unavailable(LOCKED, error.__cause__) from error
                await asyncio.sleep(random.uniform(0.002, 0.01) * 2**again)
        raise AssertionError("unreachable")


class _Again(Exception):
    """The database rolled back, or must be rolled back; the unit runs again from its start."""


@contextmanager
def unavailable_mysql() -> Iterator[None]:
    try:
        yield
    except (InterfaceError, asyncio.IncompleteReadError) as error:
        raise unavailable(NO_ANSWER, error) from error
    except Exception as error:
        condition = condition_of(error)
        if condition is None:
            raise
        raise unavailable(condition, error) from error
