"""The connections to PostgreSQL for hot statements and for hints, and the vacuum beside the claims."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from math import sqrt
from typing import Any

import asyncpg

from fusee.engine.sockets import GONE_AFTER, IDLE, INTERVAL, PROBES, keep_alive
from fusee.engine.store.conditions import NO_ANSWER, condition_of, unavailable
from fusee.engine.store.wakes import Wakes
from fusee.engine.store.watched_engine import CONNECT_WITHIN, ConnectionLimits, Watch
from fusee.errors import StoreUnavailable

__all__ = [
    "CHANNEL",
    "HintListener",
    "KeptAlive",
    "PostgresPool",
    "Sweeper",
    "WatchedConnection",
    "server_settings",
    "unavailable_postgres",
]

log = logging.getLogger("fusee.store")

CHANNEL = "fusee"
"""Hints to other processes come over this channel of LISTEN and NOTIFY."""
FROZEN_AFTER = 10
"""Seconds after which the server ends a connection that is idle inside a transaction."""
LISTENER_ASKED_EVERY = 10.0
CLOSE_WITHIN = 5.0

# The plan must not depend on statistics: with a stale estimate the planner would sort a million
# pending rows instead of reading the first few hundred of the index. And a plan is kept for as long as nobody
# analyzes the table: one from when it was empty would walk all of it for each run that is claimed (20,000
# pending, a claim of 500: 2,400 ms instead of 6). Hence `id = ANY (ARRAY[…])` where runs are joined: it says
# the same as `id = …`, but cannot be had by walking the index in order, only by looking each one up.
_PLAN = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "enable_memoize": "off",
}


def server_settings(limits: ConnectionLimits) -> dict[str, str]:
    return {
        "application_name": "fusee",
        "statement_timeout": str(round(limits.statement_timeout * 1000)),
        # Ours are never idle inside a transaction; one that is was stopped there, and holds locks.
        "idle_in_transaction_session_timeout": str(FROZEN_AFTER * 1000),
        # The server must notice, too, that we are gone: it keeps a connection slot for us.
        "tcp_keepalives_idle": str(IDLE),
        "tcp_keepalives_interval": str(INTERVAL),
        "tcp_keepalives_count": str(PROBES),
        "tcp_user_timeout": str(GONE_AFTER * 1000),
    }


class KeptAlive(asyncpg.Connection):  # type: ignore[misc]
    """The kernel watches its peer, and it knows since when it is known to be alive."""

    __slots__ = ("alive_at",)

    def __init__(self, protocol: object, transport: Any, *others: Any) -> None:
        super().__init__(protocol, transport, *others)
        self.alive_at = time.monotonic()
        keep_alive(transport)

    def answered(self) -> None:
        self.alive_at = time.monotonic()


class WatchedConnection:
    """A connection each of whose statements has the whole time for itself."""

    __slots__ = ("_connection", "_watch")

    def __init__(self, connection: Any, watch: Watch) -> None:
        self._connection = connection
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, *statement: Any) -> Any:
        self._watch.statement()
        return await self._connection.execute(*statement)

    async def fetch(self, *statement: Any) -> Any:
        self._watch.statement()
        return await self._connection.fetch(*statement)

    async def fetchrow(self, *statement: Any) -> Any:
        self._watch.statement()
        return await self._connection.fetchrow(*statement)

    async def fetchval(self, *statement: Any) -> Any:
        self._watch.statement()
        return await self._connection.fetchval(*statement)

    async def copy_records_to_table(self, table: str, **rows: Any) -> Any:
        self._watch.statement()
        return await self._connection.copy_records_to_table(table, **rows)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._watch.statement()
        async with self._connection.transaction():
            try:
                yield
            finally:
                self._watch.statement()  # the end of the transaction is one, too


class PostgresPool:
    """Connections for hot statements. One whose statement misses its deadline is closed, and those that were
    open by then are pinged before they are used again."""

    def __init__(self, dsn: str, limits: ConnectionLimits) -> None:
        self._dsn = dsn
        self._limits = limits
        self._pool: asyncpg.Pool[Any] | None = None
        self._doubted_at = 0.0
        """When a connection last missed its deadline: those that are older are pinged before use."""

    async def open(self) -> None:
        with unavailable_postgres():
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=self._limits.hot_connections,
                timeout=CONNECT_WITHIN,
                connection_class=KeptAlive,
                server_settings={**server_settings(self._limits), **_PLAN},
                reset=_leave_as_it_is,
            )

    async def close(self) -> None:
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), CLOSE_WITHIN)
            except TimeoutError:
                self._pool.terminate()
            self._pool = None

    @property
    def pool(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            raise StoreUnavailable("the store is not open: call open() first")
        return self._pool

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[WatchedConnection]:
        """A connection for hot statements, closed when one is not answered in time. Those that were open by
        then must show that they are alive before they are used again."""
        while True:
            async with self.pool.acquire(timeout=self._limits.deadline) as connection:
                if connection.alive_at < self._doubted_at and not await self._answers(connection):
                    continue  # closed: the pool makes another
                watch = Watch(self._limits.deadline, connection.terminate)
                try:
                    yield WatchedConnection(connection, watch)
                except Exception as error:
                    if not watch.missed:
                        raise
                    self._doubted_at = time.monotonic()
                    raise watch.error() from error
                finally:
                    watch.end()
                return

    async def _answers(self, connection: Any) -> bool:
        watch = Watch(self._limits.ping_within, connection.terminate)
        try:
            await connection.execute("SELECT 1")
        except Exception:
            with suppress(asyncpg.InterfaceError):  # closed by the watch, and replaced by the pool
                connection.terminate()
            return False
        finally:
            watch.end()
        connection.answered()
        return True


class HintListener:
    """Fires each hint that another process gives, on a connection of its own, until it is closed."""

    def __init__(self, dsn: str, limits: ConnectionLimits) -> None:
        self._dsn = dsn
        self._limits = limits
        self._task: asyncio.Task[None] | None = None

    def start(self, wakes: Wakes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._listen(wakes), name="fusee-listen")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _listen(self, wakes: Wakes) -> None:
        heard = True
        while True:
            try:
                connection = await asyncpg.connect(
                    self._dsn,
                    timeout=CONNECT_WITHIN,
                    connection_class=KeptAlive,
                    server_settings={**server_settings(self._limits), "application_name": "fusee-listen"},
                )
                try:
                    await connection.add_listener(CHANNEL, lambda _c, _pid, _channel, kind: wakes.fire(kind))
                    if not heard:
                        log.info("listening for hints again")
                    heard = True
                    wakes.fire_all()  # something may have come while nobody listened
                    while True:
                        await asyncio.sleep(LISTENER_ASKED_EVERY)
                        await connection.execute("SELECT 1", timeout=self._limits.ping_within)
                finally:
                    connection.terminate()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # Polling is the floor: a lost listener costs latency, nothing else.
                if heard:
                    log.warning("hints are not heard just now: %s: %s", type(error).__name__, error)
                heard = False
                await asyncio.sleep(random.uniform(0.5, 2))


async def _leave_as_it_is(connection: Any) -> None:
    """Hot statements change no setting, take no advisory lock and leave no cursor: the trip to undo such
    things after each of them is saved (1.3x as many exchanges of one run, 1.1x of 500). What is open is still
    rolled back."""


@contextmanager
def unavailable_postgres() -> Iterator[None]:
    try:
        yield
    except asyncpg.InterfaceError as error:
        # Also raised for a wrong call, which waiting would not mend.
        if "clos" not in str(error):
            raise
        raise unavailable(NO_ANSWER, error) from error
    except Exception as error:
        condition = condition_of(error)
        if condition is None:
            raise
        raise unavailable(condition, error) from error


LEAST = 20_000
"""Entries that must have been claimed before the table is vacuumed."""
BALANCE = 50
"""A long queue waits for more than the least, in proportion to the root of its length: a claim takes longer
with the entries that have left, a vacuum with those that wait; at this factor they cost about the same."""

# Truncating would lock everyone out. Someone else's vacuum is as good as ours.
_SWEEP = "VACUUM (SKIP_LOCKED, TRUNCATE OFF, INDEX_CLEANUP ON) fusee_ready"
_STANDING = "SELECT reltuples FROM pg_class WHERE oid = 'fusee_ready'::regclass"


class Sweeper:
    """Vacuums `fusee_ready`, beside the claims, each time that enough entries were claimed here.

    PostgreSQL keeps a deleted row until a vacuum: a claim walks past all the entries that were claimed before
    to the first that still waits. Autovacuum looks once a minute, and in a minute a busy worker leaves
    millions behind. Towards the end of a queue of a million runs the server then spent 35 µs on each, where
    it had begun with 22; with this vacuum it stays at 19.
    """

    def __init__(self, acquire: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._acquire = acquire
        self._left = 0
        self._enough = LEAST
        self._sweeping: asyncio.Task[None] | None = None

    def claimed(self, many: int) -> None:
        self._left += many
        if self._left >= self._enough and self._sweeping is None:
            self._left = 0
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="fusee-sweep")

    async def _sweep(self) -> None:
        try:
            async with self._acquire() as connection:
                await connection.execute(_SWEEP)
                standing = await connection.fetchval(_STANDING)
            self._enough = max(LEAST, round(BALANCE * sqrt(max(standing, 0))))
        except Exception:
            # Autovacuum is the floor. It may have taken too long: not so soon again.
            self._enough *= 2
        finally:
            self._sweeping = None

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
