"""PostgreSQL: hot statements through asyncpg, everything else through SQLAlchemy; wakes by LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TypeVar

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from fusee.engine.model.run import Claimed
from fusee.engine.model.states import RUN_BIRTH
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.database import Capabilities, Database, Work
from fusee.engine.store.postgres_connections import (
    CHANNEL,
    HintListener,
    KeptAlive,
    PostgresPool,
    Sweeper,
    WatchedConnection,
    server_settings,
    unavailable_postgres,
)
from fusee.engine.store.rows import Bulk, NewRun, claimed_from
from fusee.engine.store.wakes import Wakes
from fusee.engine.store.watched_engine import CONNECT_WITHIN, ConnectionLimits, WatchedEngine

__all__ = ["PostgresDatabase"]

T = TypeVar("T")

CLOCK = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

# From here on rows go in by COPY, which is faster: the two cross between 50 rows and 100.
COPY_FROM = 100
# A claim over many lanes reads at most about this many index entries.
MOST_PEEKED = 4096

# `id = ANY (ARRAY[…])` instead of `id = …`: the reason is beside the settings of these connections.
# Numbers travel as one text: asyncpg's array encoder is slow for each element (profiled).
_FINISH = """
done AS (
  UPDATE fusee_runs r
  SET status = 'succeeded', finished_at = (SELECT us FROM clock), effect = 'applied', result = {result},
      reason = NULL, error = NULL, output = NULL
  FROM unnest($2::text::bigint[], $3::text::int[]{results}) AS d (id, attempt{column})
  WHERE r.id = ANY (ARRAY[d.id]) AND r.attempt = d.attempt AND r.session_id = $1 AND r.status = 'running'
  RETURNING r.id, r.kind, r.owner_id
)"""
_FINISH_BARE = _FINISH.format(result="$4::text", results="", column="")
_FINISH_WITH_RESULTS = _FINISH.format(result="d.result", results=", $4::text[]", column=", result")

_USED_UP = """
used_up AS (DELETE FROM fusee_receipts WHERE session_id = $1 AND number = ANY ($5::bigint[]))"""

_IS_ALIVE = "EXISTS (SELECT 1 FROM fusee_sessions WHERE id = $1 AND state = 'alive')"

_PICK_ONE_LANE = f"""
taken AS (
  DELETE FROM fusee_ready WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM fusee_ready WHERE lane_id = $6 AND {_IS_ALIVE}
    ORDER BY lane_id, rank, due_at, run_id LIMIT $5 FOR UPDATE SKIP LOCKED))
  RETURNING rank, due_at, run_id
)"""

# Walks from one lane that has someone waiting to the next: the cost is the number of such lanes,
# whatever the number of runs behind each and of lanes this worker serves.
_PICK_LANES = f"""
active AS (
  (SELECT lane_id FROM fusee_ready ORDER BY lane_id LIMIT 1)
  UNION ALL
  SELECT (SELECT l.lane_id FROM fusee_ready l WHERE l.lane_id > a.lane_id ORDER BY l.lane_id LIMIT 1)
  FROM active a WHERE a.lane_id IS NOT NULL
), mine AS (
  SELECT lane_id, count(*) OVER () AS lanes FROM active WHERE lane_id = ANY ($6::int[])
), taken AS (
  DELETE FROM fusee_ready WHERE ctid = ANY (ARRAY (
    SELECT p.place FROM mine CROSS JOIN LATERAL (
      SELECT ctid AS place, rank, due_at, run_id FROM fusee_ready WHERE lane_id = mine.lane_id AND {_IS_ALIVE}
      ORDER BY lane_id, rank, due_at, run_id
      LIMIT least($5, greatest(1, {MOST_PEEKED} / mine.lanes)) FOR UPDATE SKIP LOCKED
    ) p
    ORDER BY p.rank, p.due_at, p.run_id LIMIT $5))
  RETURNING rank, due_at, run_id
)"""

_CLAIM = """
claimed AS (
  UPDATE fusee_runs r
  SET status = 'running', attempt = r.attempt + 1, session_id = $1, started_at = (SELECT us FROM clock)
  FROM taken WHERE r.id = ANY (ARRAY[taken.run_id]) AND r.status = 'pending'
  RETURNING r.id, r.attempt, r.spent, r.lane_id, r.payload, r.options, r.kind, r.owner_id,
            taken.rank, taken.due_at
), receipt AS (
  INSERT INTO fusee_receipts (session_id, number, run_ids)
  SELECT $1, $7, string_agg(id::text, ',') FROM claimed HAVING count(*) > 0
), used_up AS (
  DELETE FROM fusee_receipts WHERE session_id = $1 AND number = ANY ($8::bigint[])
)"""

_ANSWER = """
(SELECT id, attempt, spent, lane_id, payload, options, kind, owner_id FROM claimed ORDER BY rank, due_at, id)
UNION ALL SELECT (SELECT count(*) FROM done), -1, 0, 0, NULL, NULL, NULL, NULL"""

# The ends of owned runs go to the outbox in the same transaction; an end that the fence refused does not.
_TO_OUTBOX = f"""
to_outbox AS (
  INSERT INTO fusee_outbox (kind, run_id, many)
  SELECT kind, coalesce(owner_id, id), count(*) FROM done WHERE kind IS NOT NULL GROUP BY 1, 2
  RETURNING pg_notify('{CHANNEL}', 'ended')
), """

_REFUSED = """
SELECT d.id, d.attempt FROM unnest($2::bigint[], $3::int[]) AS d (id, attempt)
WHERE NOT EXISTS (SELECT 1 FROM fusee_runs r WHERE r.id = d.id AND r.attempt = d.attempt
                  AND r.session_id = $1 AND r.status = 'succeeded')"""

_INSERT = """
WITH clock AS MATERIALIZED (SELECT {now} AS us), added AS (
  INSERT INTO fusee_runs
    (namespace, lane_id, status, priority, created_at, due_at, origin_id, payload, options)
  SELECT $1, n.lane_id, CASE WHEN coalesce(n.due_at, us + n.delay_us) > us THEN 'delayed' ELSE 'pending' END,
         n.priority, us, coalesce(n.due_at, us + n.delay_us), n.origin_id, n.payload, n.options
  FROM unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::bigint[])
       WITH ORDINALITY AS n (lane_id, priority, delay_us, due_at, payload, options, origin_id, nr), clock
  ORDER BY n.nr
  RETURNING id, lane_id, status, priority, due_at
), waiting AS (
  INSERT INTO fusee_ready (lane_id, rank, due_at, run_id)
  SELECT lane_id, -priority, due_at, id FROM added WHERE status = 'pending'
), delayed AS (
  INSERT INTO fusee_delayed (due_at, run_id, lane_id)
  SELECT due_at, id, lane_id FROM added WHERE status = 'delayed'
)
SELECT (SELECT array_agg(id ORDER BY id) FROM added),
       (SELECT count(pg_notify('{channel}', status)) FROM (SELECT DISTINCT status FROM added) AS kinds)"""

_PENDING = RUN_BIRTH["enqueue"].value
_COPIED = (
    "id",
    "namespace",
    "lane_id",
    "status",
    "priority",
    "created_at",
    "due_at",
    "origin_id",
    "payload",
    "options",
)


class PostgresDatabase(Database):
    """The database most will run on."""

    def __init__(
        self, url: str, *, max_connections: int = 10, statement_timeout: float = 10.0, now: str = CLOCK
    ) -> None:
        self.capabilities = Capabilities(
            skip_locked=True,
            returning=True,
            notify=True,
            now=now,
            arrays=True,
            sequence="nextval('fusee_runs_id_seq')",
        )
        address = url.split("://", 1)[1]
        self.limits = ConnectionLimits(statement_timeout, max_connections, listener=True)
        self.engine = create_async_engine(
            f"postgresql+asyncpg://{address}",
            pool_size=self.limits.other_connections,
            max_overflow=0,
            pool_timeout=self.limits.deadline,
            connect_args={
                "server_settings": server_settings(self.limits),
                "connection_class": KeptAlive,
                "timeout": CONNECT_WITHIN,
            },
        )
        self._units = WatchedEngine(
            self.engine, self.limits, lambda connection: connection.terminate(), _allow
        )
        self.hot_pool = PostgresPool(f"postgresql://{address}", self.limits)
        self._listener = HintListener(f"postgresql://{address}", self.limits)
        self._sweeper = Sweeper(self.hot_pool.acquired)
        self._insert = _INSERT.format(now=now, channel=CHANNEL)
        clock = f"WITH RECURSIVE clock AS MATERIALIZED (SELECT {now} AS us)"
        self._statements = {
            (any_result, lanes, with_outbox): f"{clock}, {finish}, {_TO_OUTBOX if with_outbox else ''}{rest}"
            for any_result, finish in ((False, _FINISH_BARE), (True, _FINISH_WITH_RESULTS))
            for lanes, rest in (
                ("none", f"{_USED_UP} SELECT count(*) FROM done"),
                ("one", f"{_PICK_ONE_LANE}, {_CLAIM} {_ANSWER}"),
                ("many", f"{_PICK_LANES}, {_CLAIM} {_ANSWER}"),
            )
            for with_outbox in (False, True)
        }

    async def open(self) -> None:
        await self.hot_pool.open()

    async def close(self) -> None:
        await self._listener.close()
        await self._sweeper.close()
        await self.hot_pool.close()
        await self._units.dispose()

    async def write(self, work: Work[T], *, within: float | None = None) -> T:
        return await self._units.write(work, within=within)

    async def read(self, work: Work[T]) -> T:
        return await self._units.read(work)

    def listen(self, wakes: Wakes) -> None:
        """Fire each hint that another process gives, for as long as the database is open."""
        self._listener.start(wakes)

    async def insert(self, namespace: str, rows: Sequence[NewRun]) -> list[int]:
        with unavailable_postgres():
            async with self.hot_pool.acquired() as connection:
                answer = await connection.fetchrow(
                    self._insert,
                    namespace,
                    [row.lane_id for row in rows],
                    [row.priority for row in rows],
                    [row.delay_us for row in rows],
                    [row.due_at for row in rows],
                    [row.payload for row in rows],
                    [row.options for row in rows],
                    [row.origin_id for row in rows],
                )
            ids: list[int] = answer[0]
            return ids

    async def insert_bulk(self, namespace: str, bulk: Bulk) -> list[int]:
        """Two COPYs in one transaction. 5,000 runs at a time, making the entries of `fusee_ready` from the
        copied rows was 0.98x as fast, from a list of their ids 0.91x, and one statement for everything
        0.86x."""
        if len(bulk.lane_ids) < COPY_FROM:
            return await super().insert_bulk(namespace, bulk)
        with unavailable_postgres():
            async with self.hot_pool.acquired() as connection, connection.transaction():
                ids, now, _ = await connection.fetchrow(
                    f"SELECT array_agg(nextval('fusee_runs_id_seq')), {self.capabilities.now},"
                    f" pg_notify('{CHANNEL}', 'pending') FROM generate_series(1, $1)",
                    len(bulk.lane_ids),
                )
                # Generators: a row is encoded and gone before the next is made.
                await connection.copy_records_to_table(
                    "fusee_runs",
                    columns=_COPIED,
                    records=(
                        (run_id, namespace, lane, _PENDING, priority, now, now, origin, payload, options)
                        for run_id, lane, priority, payload, options, origin in zip(ids, *bulk, strict=True)
                    ),
                )
                await connection.copy_records_to_table(
                    "fusee_ready",
                    columns=("lane_id", "rank", "due_at", "run_id"),
                    records=(
                        (lane, -priority, now, run_id)
                        for run_id, lane, priority in zip(ids, bulk.lane_ids, bulk.priorities, strict=True)
                    ),
                )
                return list(ids)

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        with unavailable_postgres():
            async with self.hot_pool.acquired() as connection:
                for again in range(6):
                    try:
                        claimed, written = await self._exchange(connection, session, finished, order)
                        break
                    except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                        if again == 5:
                            raise
                        await asyncio.sleep(random.uniform(0.005, 0.02) * 2**again)
                refused: list[tuple[int, int]] = []
                if written != len(finished.ids):
                    rows = await connection.fetch(_REFUSED, session, finished.ids, finished.attempts)
                    refused = [(row[0], row[1]) for row in rows]
        if self.limits.hot_connections > 1:  # a sweep would hold up all claims
            self._sweeper.claimed(len(claimed))
        return Exchanged(claimed, refused)

    async def _exchange(
        self, connection: WatchedConnection, session: int, finished: Finished, order: Order
    ) -> tuple[list[Claimed], int]:
        any_result = any(result is not None for result in finished.results)
        results = finished.results if any_result else None
        done = (session, _numbers(finished.ids), _numbers(finished.attempts), results)
        with_outbox = bool(finished.for_outbox)
        if not order.want or not order.lanes:
            statement = self._statements[any_result, "none", with_outbox]
            return [], await connection.fetchval(statement, *done, order.used_up)
        lanes, which = (order.lanes[0], "one") if len(order.lanes) == 1 else (order.lanes, "many")
        statement = self._statements[any_result, which, with_outbox]
        rows = await connection.fetch(statement, *done, order.want, lanes, order.receipt, order.used_up)
        written: int = rows.pop()[0]
        return [claimed_from(row, order.receipt) for row in rows], written


def _allow(connection: Connection, seconds: float) -> None:
    """Let statements of this transaction take longer than usual."""
    connection.execute(text(f"SET LOCAL statement_timeout = {round(seconds * 1000)}"))


def _numbers(values: Sequence[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"
