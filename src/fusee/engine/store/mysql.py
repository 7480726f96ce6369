"""MySQL and MariaDB: the same steps as PostgreSQL in a few short statements of one transaction.

MariaDB has no `UPDATE … RETURNING`, so a claim selects with SKIP LOCKED and updates by primary key.
Rows are counted as matched, not as changed. READ COMMITTED keeps the claim from locking gaps.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncmy
from asyncmy.constants.CLIENT import FOUND_ROWS
from asyncmy.errors import InterfaceError, OperationalError
from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from fusee.engine.model.run import Claimed
from fusee.engine.sockets import keep_alive
from fusee.engine.store.conditions import LOCKED, NO_ANSWER, condition_of, unavailable
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.database import CONNECT_WITHIN, Capabilities, EngineDatabase, share_out
from fusee.engine.store.hot import Hot
from fusee.engine.store.rows import NewRun, claimed_from, encode_rows, portions
from fusee.engine.store.watch import Watch
from fusee.errors import StoreUnavailable

__all__ = ["MysqlDatabase"]

T = TypeVar("T")

CLOCK = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

FROZEN_AFTER = 10
"""Seconds without a word after which the server ends a connection and frees its locks: a process that was
stopped in the middle of a transaction must not keep others from its runs."""
RECYCLE_AFTER = 5
ROWS_A_STATEMENT = 1000
# 1213: we are the deadlock's victim, rolled back. 1205: a lock wait timed out, *not* rolled back.
AGAIN = {1213, 1205}

_LINE = """
SELECT `rank`, due_at, run_id, lane_id FROM fusee_ready WHERE lane_id = %s
ORDER BY `rank`, due_at, run_id LIMIT %s FOR UPDATE SKIP LOCKED
"""
_ACTIVE_LANES = "SELECT DISTINCT lane_id FROM fusee_ready WHERE lane_id IN ({lanes})"
# Joined, because MariaDB finds no row of a list of row values by the primary key.
_LEAVE = """
DELETE l FROM JSON_TABLE(%s, '$[*]' COLUMNS (
  `rank` INT PATH '$[0]', due_at BIGINT PATH '$[1]', run_id BIGINT PATH '$[2]', lane_id INT PATH '$[3]')) d
STRAIGHT_JOIN fusee_ready l
  ON l.lane_id = d.lane_id AND l.`rank` = d.`rank` AND l.due_at = d.due_at AND l.run_id = d.run_id
"""
_TAKEN = """
SELECT id, attempt + 1, spent, lane_id, payload, options, kind, owner_id FROM fusee_runs WHERE id IN ({ids})
"""
_COLUMNS = "namespace, lane_id, status, priority, created_at, due_at, origin_id, payload, options"


class MysqlDatabase(EngineDatabase, Hot):
    """MySQL 8 or MariaDB 10.8 and later (descending indexes)."""

    def __init__(
        self, url: str, *, max_connections: int = 10, statement_timeout: float = 10.0, now: str = CLOCK
    ) -> None:
        self.capabilities = Capabilities(skip_locked=True, returning=False, notify=False, now=now)
        self.url = make_url("mysql+asyncmy://" + url.split("://", 1)[1])
        self.statement_timeout = statement_timeout
        self.max_connections = max_connections
        self.hot_connections, others = share_out(max_connections, listener=False)
        self.engine = create_async_engine(
            self.url,
            pool_size=others,
            max_overflow=0,
            pool_timeout=self.deadline,
            pool_recycle=RECYCLE_AFTER,
            connect_args={
                "charset": "utf8mb4",
                "connect_timeout": CONNECT_WITHIN,
                "async_creator_fn": _connect,
            },
        )
        self._session = ""

        @event.listens_for(self.engine.sync_engine, "connect")
        def on_connect(connection: Any, _record: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(self._session)
            cursor.close()

        self.watch_engine()
        self._pool: Any = None
        self._alive_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        """When each hot connection was first used, or last known to be alive."""
        self._doubted_at = 0.0
        """When one of them last missed its deadline: those that are older are pinged before use."""

    def abort(self, connection: Any) -> None:
        if connection._transport is not None:
            connection._transport.abort()
        connection._connected = False  # or the driver's pool would take it back

    def _address(self) -> dict[str, Any]:
        return {
            "host": self.url.host or "127.0.0.1",
            "port": self.url.port or 3306,
            "user": self.url.username or "root",
            "password": self.url.password or "",
            "db": self.url.database,
            "connect_timeout": CONNECT_WITHIN,
            "read_timeout": self.deadline,
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
        with _unavailable():
            isolation = "tx_isolation" if "MariaDB" in await self._ask_version() else "transaction_isolation"
            self._session = (
                f"SET SESSION wait_timeout = {FROZEN_AFTER}, SESSION {isolation} = 'READ-COMMITTED'"
            )
            self._pool = await asyncmy.create_pool(
                **self._address(),
                minsize=1,
                maxsize=self.hot_connections,
                charset="utf8mb4",
                autocommit=True,
                init_command=self._session,
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
        await self.dispose()

    @asynccontextmanager
    async def _hot(self) -> AsyncIterator[Any]:
        """A connection for hot statements, with the watch that closes it when one is not answered in time."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open: call open() first")
        connection = await self._acquire()
        watch = Watch(self.deadline, lambda: self.abort(connection))
        try:
            yield connection, watch
        except _Again:
            raise  # rolled back: as good as new
        except BaseException as error:
            # Whatever state it is in, nobody shall use it again.
            self.abort(connection)
            if watch.missed and isinstance(error, Exception):
                self._doubted_at = time.monotonic()
                raise StoreUnavailable(
                    f"the database did not answer within {watch.seconds:g} s: the connection was closed"
                ) from error
            raise
        finally:
            watch.end()
            self._pool.release(connection)

    async def _acquire(self) -> Any:
        """One that is alive, as far as there is reason to doubt it."""
        while True:
            async with asyncio.timeout(self.deadline):
                connection = await self._pool.acquire()
            if connection not in self._alive_at:
                keep_alive(connection._transport)
                self._alive_at[connection] = time.monotonic()
            if self._alive_at[connection] >= self._doubted_at:
                return connection
            watch = Watch(self.ping_within, partial(self.abort, connection))
            try:
                await connection.ping(reconnect=False)
            except BaseException as error:
                self.abort(connection)
                self._pool.release(connection)
                if not isinstance(error, Exception):
                    raise
            else:
                self._alive_at[connection] = time.monotonic()
                return connection
            finally:
                watch.end()

    async def _transaction(self, unit: Callable[[Any], Awaitable[T]]) -> T:
        for again in range(8):
            try:
                with _unavailable():
                    async with self._hot() as (connection, watch), connection.cursor() as bare:
                        cursor = _Watched(bare, watch)
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

    async def insert(self, namespace: str, rows: Sequence[NewRun]) -> list[int]:
        async def unit(cursor: Any) -> list[int]:
            await cursor.execute(f"SELECT {self.capabilities.now}, @@auto_increment_increment")
            now, step = await cursor.fetchone()
            ids: list[int] = []
            for part in portions(rows, ROWS_A_STATEMENT):
                await cursor.execute(
                    f"INSERT INTO fusee_runs ({_COLUMNS}) VALUES {_places(9, len(part))}",
                    [value for row in part for value in row.values(namespace, now)],
                )
                # The numbers of one multi-row INSERT are consecutive in every autoinc lock mode.
                first = cursor.lastrowid
                added = range(first, first + len(part) * step, step)
                ids.extend(added)
                entries = [row.entry(run_id, now) for row, run_id in zip(part, added, strict=True)]
                await _insert(cursor, "fusee_ready", [e.line for e in entries if e.line])
                await _insert(cursor, "fusee_delayed", [e.later for e in entries if e.later])
            return ids

        return await self._transaction(unit)

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        async def unit(cursor: Any) -> Exchanged:
            refused: list[tuple[int, int]] = []
            if finished.told:
                await _tell(cursor, session, finished)
            if finished.ids and await self._finish(cursor, session, finished) != len(finished.ids):
                refused = await _refused(cursor, session, finished)
            if order.used_up:
                await cursor.execute(
                    f"DELETE FROM fusee_receipts WHERE session_id = {session}"
                    f" AND number IN ({_numbers(order.used_up)})"
                )
            claimed = await self._claim(cursor, session, order) if order.want and order.lanes else []
            return Exchanged(claimed, refused)

        return await self._transaction(unit)

    async def _finish(self, cursor: Any, session: int, finished: Finished) -> int:
        """Grouped by attempt number, which is nearly always 1: one statement, found by primary key."""
        changed = 0
        by_attempt: dict[int, list[int]] = {}
        for run_id, attempt, result in zip(finished.ids, finished.attempts, finished.results, strict=True):
            if result is None:
                by_attempt.setdefault(attempt, []).append(run_id)
            else:
                await cursor.execute(
                    f"UPDATE fusee_runs SET status = 'succeeded', finished_at = {self.capabilities.now},"
                    " effect = 'applied', result = %s, reason = NULL, error = NULL, output = NULL"
                    " WHERE id = %s AND attempt = %s AND session_id = %s AND status = 'running'",
                    (result, run_id, attempt, session),
                )
                changed += cursor.rowcount
        for attempt, ids in by_attempt.items():
            await cursor.execute(
                f"UPDATE fusee_runs SET status = 'succeeded', finished_at = {self.capabilities.now},"
                " effect = 'applied', reason = NULL, error = NULL, output = NULL"
                f" WHERE id IN ({_numbers(ids)}) AND attempt = {attempt}"
                f" AND session_id = {session} AND status = 'running'"
            )
            changed += cursor.rowcount
        return changed

    async def _claim(self, cursor: Any, session: int, order: Order) -> list[Claimed]:
        await cursor.execute(f"SELECT 1 FROM fusee_sessions WHERE id = {session} AND state = 'alive'")
        if await cursor.fetchone() is None:
            return []
        lanes = order.lanes
        if len(lanes) > 1:
            await cursor.execute(_ACTIVE_LANES.format(lanes=_numbers(lanes)))
            lanes = [row[0] for row in await cursor.fetchall()]
        found: list[Any] = []
        for lane in lanes:
            await cursor.execute(_LINE, (lane, order.want))
            found += await cursor.fetchall()
        if len(lanes) > 1:
            found.sort()
            del found[order.want :]
        if not found:
            return []
        await cursor.execute(_LEAVE, (encode_rows([list(row) for row in found]),))
        ids = _numbers(row[2] for row in found)
        await cursor.execute(_TAKEN.format(ids=ids) + " AND status = 'pending'")
        rows = {row[0]: row for row in await cursor.fetchall()}
        await cursor.execute(
            "UPDATE fusee_runs SET status = 'running', attempt = attempt + 1,"
            f" session_id = {session}, started_at = {self.capabilities.now}"
            f" WHERE id IN ({ids}) AND status = 'pending'"
        )
        await cursor.execute(
            "INSERT INTO fusee_receipts (session_id, number, run_ids) VALUES (%s, %s, %s)",
            (session, order.receipt, ids),
        )
        return [claimed_from(rows[row[2]], order.receipt) for row in found if row[2] in rows]


class _Watched:
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


async def _connect(*args: Any, **kwargs: Any) -> Any:
    """The driver's own limit on connecting ends where the server accepts, before it has said who it is."""
    async with asyncio.timeout(CONNECT_WITHIN):
        connection: Any = await asyncmy.connect(*args, **kwargs)
    keep_alive(connection._transport)
    return connection


class _Again(Exception):
    """The database rolled back, or must be rolled back; the unit runs again from its start."""


def _numbers(ids: Any) -> str:
    return ",".join([str(int(i)) for i in ids])


def _places(columns: int, rows: int) -> str:
    row = "(" + ", ".join(["%s"] * columns) + ")"
    return ", ".join([row] * rows)


async def _insert(cursor: Any, table: str, rows: Sequence[Sequence[int]]) -> None:
    """Numbers only, so they may stand in the statement as they are."""
    if rows:
        values = ",".join([f"({_numbers(row)})" for row in rows])
        await cursor.execute(f"INSERT INTO {table} VALUES {values}")


async def _tell(cursor: Any, session: int, finished: Finished) -> None:
    """Who owns a run hears of its end, and of none that the fence will refuse: its row is locked first."""
    attempts = dict(zip(finished.ids, finished.attempts, strict=True))
    await cursor.execute(
        "SELECT id, attempt, kind, coalesce(owner_id, id) FROM fusee_runs"
        f" WHERE id IN ({_numbers(finished.told)}) AND session_id = {session} AND status = 'running'"
        " FOR UPDATE"
    )
    told = Counter((row[2], row[3]) for row in await cursor.fetchall() if attempts[row[0]] == row[1])
    if told:
        await cursor.execute(
            f"INSERT INTO fusee_outbox (kind, run_id, many) VALUES {_places(3, len(told))}",
            [value for owner, count in told.items() for value in (*owner, count)],
        )


async def _refused(cursor: Any, session: int, finished: Finished) -> list[tuple[int, int]]:
    await cursor.execute(
        f"SELECT id, attempt FROM fusee_runs WHERE id IN ({_numbers(finished.ids)})"
        f" AND session_id = {session} AND status = 'succeeded'"
    )
    mine = {(row[0], row[1]) for row in await cursor.fetchall()}
    return [pair for pair in zip(finished.ids, finished.attempts, strict=True) if pair not in mine]


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (InterfaceError, asyncio.IncompleteReadError) as error:
        raise unavailable(NO_ANSWER, error) from error
    except Exception as error:
        condition = condition_of(error)
        if condition is None:
            raise
        raise unavailable(condition, error) from error
