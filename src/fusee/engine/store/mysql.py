"""MySQL and MariaDB: the same steps as PostgreSQL in a few short statements of one transaction.

MariaDB has no `UPDATE … RETURNING`, so a claim selects with SKIP LOCKED and updates by primary key.
Rows are counted as matched, not as changed. READ COMMITTED keeps the claim from locking gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from fusee.engine.model.run import Claimed
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.database import Capabilities, Database, Work
from fusee.engine.store.mysql_connections import RECYCLE_AFTER, MysqlPool, abort, connect
from fusee.engine.store.rows import NewRun, claimed_from, encode_rows, portions
from fusee.engine.store.watched_engine import CONNECT_WITHIN, ConnectionLimits, WatchedEngine

__all__ = ["MysqlDatabase"]

T = TypeVar("T")

CLOCK = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

ROWS_A_STATEMENT = 1000

_FIRST_READY = """
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


class MysqlDatabase(Database):
    """MySQL 8 or MariaDB 10.8 and later (descending indexes)."""

    def __init__(
        self, url: str, *, max_connections: int = 10, statement_timeout: float = 10.0, now: str = CLOCK
    ) -> None:
        self.capabilities = Capabilities(skip_locked=True, returning=False, notify=False, now=now)
        self.url = make_url("mysql+asyncmy://" + url.split("://", 1)[1])
        self.limits = ConnectionLimits(statement_timeout, max_connections)
        self.engine = create_async_engine(
            self.url,
            pool_size=self.limits.other_connections,
            max_overflow=0,
            pool_timeout=self.limits.deadline,
            pool_recycle=RECYCLE_AFTER,
            connect_args={
                "charset": "utf8mb4",
                "connect_timeout": CONNECT_WITHIN,
                "async_creator_fn": connect,
            },
        )
        self.hot_pool = MysqlPool(self.url, self.limits)

        @event.listens_for(self.engine.sync_engine, "connect")
        def on_connect(connection: Any, _record: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(self.hot_pool.session_settings)
            cursor.close()

        self._units = WatchedEngine(self.engine, self.limits, abort)

    async def open(self) -> None:
        await self.hot_pool.open()

    async def close(self) -> None:
        await self.hot_pool.close()
        await self._units.dispose()

    async def write(self, work: Work[T], *, within: float | None = None) -> T:
        return await self._units.write(work, within=within)

    async def read(self, work: Work[T]) -> T:
        return await self._units.read(work)

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
                await _insert(cursor, "fusee_ready", [e.ready for e in entries if e.ready])
                await _insert(cursor, "fusee_delayed", [e.delayed for e in entries if e.delayed])
            return ids

        return await self.hot_pool.transaction(unit)

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        async def unit(cursor: Any) -> Exchanged:
            refused: list[tuple[int, int]] = []
            if finished.for_outbox:
                await _add_to_outbox(cursor, session, finished)
            if finished.ids and await self._finish(cursor, session, finished) != len(finished.ids):
                refused = await _refused(cursor, session, finished)
            if order.used_up:
                await cursor.execute(
                    f"DELETE FROM fusee_receipts WHERE session_id = {session}"
                    f" AND number IN ({_numbers(order.used_up)})"
                )
            claimed = await self._claim(cursor, session, order) if order.want and order.lanes else []
            return Exchanged(claimed, refused)

        return await self.hot_pool.transaction(unit)

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
            await cursor.execute(_FIRST_READY, (lane, order.want))
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


async def _add_to_outbox(cursor: Any, session: int, finished: Finished) -> None:
    """Write the ends of owned runs to the outbox. Their rows are locked first, so that an end which the fence
    will refuse is not among them."""
    attempts = dict(zip(finished.ids, finished.attempts, strict=True))
    await cursor.execute(
        "SELECT id, attempt, kind, coalesce(owner_id, id) FROM fusee_runs"
        f" WHERE id IN ({_numbers(finished.for_outbox)}) AND session_id = {session} AND status = 'running'"
        " FOR UPDATE"
    )
    ends = Counter((row[2], row[3]) for row in await cursor.fetchall() if attempts[row[0]] == row[1])
    if ends:
        await cursor.execute(
            f"INSERT INTO fusee_outbox (kind, run_id, many) VALUES {_places(3, len(ends))}",
            [value for owner, count in ends.items() for value in (*owner, count)],
        )


async def _refused(cursor: Any, session: int, finished: Finished) -> list[tuple[int, int]]:
    await cursor.execute(
        f"SELECT id, attempt FROM fusee_runs WHERE id IN ({_numbers(finished.ids)})"
        f" AND session_id = {session} AND status = 'succeeded'"
    )
    mine = {(row[0], row[1]) for row in await cursor.fetchall()}
    return [pair for pair in zip(finished.ids, finished.attempts, strict=True) if pair not in mine]
