"""PostgreSQL: hot statements through asyncpg, everything else through SQLAlchemy; wakes by LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from fusee.engine.model.run import Claimed
from fusee.engine.model.states import RUN_BIRTH
from fusee.engine.sockets import GONE_AFTER, IDLE, INTERVAL, PROBES, keep_alive
from fusee.engine.store.conditions import NO_ANSWER, condition_of, unavailable
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.database import CONNECT_WITHIN, Capabilities, EngineDatabase, share_out
from fusee.engine.store.hot import Hot
from fusee.engine.store.rows import Bulk, NewRun, claimed_from
from fusee.engine.store.sweeping import Sweeper
from fusee.engine.store.wakes import Wakes
from fusee.engine.store.watch import Watch
from fusee.errors import StoreUnavailable

__all__ = ["CHANNEL", "PostgresDatabase"]

log = logging.getLogger("fusee.store")

CHANNEL = "fusee"
FROZEN_AFTER = 10
LISTENER_ASKED_EVERY = 10.0

CLOCK = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

# From here on rows go in by COPY, which is faster: the two cross between 50 rows and 100.
COPY_FROM = 100
# A claim over many lanes reads at most about this many index entries.
MOST_PEEKED = 4096

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

# Who owns a run hears of its end in the same transaction, and of no end that the fence refused.
_TELL = f"""
told AS (
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


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """The kernel watches its peer, and it knows since when it is known to be alive."""

    __slots__ = ("alive_at",)

    def __init__(self, protocol: Any, transport: Any, *others: Any) -> None:
        super().__init__(protocol, transport, *others)
        self.alive_at = time.monotonic()
        keep_alive(transport)

    def answered(self) -> None:
        self.alive_at = time.monotonic()


class _Watched:
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


class PostgresDatabase(EngineDatabase, Hot):
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
        self.dsn = "postgresql://" + url.split("://", 1)[1]
        self.statement_timeout = statement_timeout
        self.max_connections = max_connections
        self.hot_connections, others = share_out(max_connections, listener=True)
        self.engine = create_async_engine(
            "postgresql+asyncpg://" + url.split("://", 1)[1],
            pool_size=others,
            max_overflow=0,
            pool_timeout=self.deadline,
            connect_args={
                "server_settings": self._settings(),
                "connection_class": _Connection,
                "timeout": CONNECT_WITHIN,
            },
        )
        self.watch_engine()
        self._pool: asyncpg.Pool[Any] | None = None
        self._doubted_at = 0.0
        """When a hot connection last missed its deadline: those that are older are pinged before use."""
        self._sweeper = Sweeper(self._acquired)
        self._listener: asyncio.Task[None] | None = None
        self._insert = _INSERT.format(now=now, channel=CHANNEL)
        clock = f"WITH RECURSIVE clock AS MATERIALIZED (SELECT {now} AS us)"
        self._statements = {
            (any_result, lanes, tell): f"{clock}, {finish}, {_TELL if tell else ''}{rest}"
            for any_result, finish in ((False, _FINISH_BARE), (True, _FINISH_WITH_RESULTS))
            for lanes, rest in (
                ("none", f"{_USED_UP} SELECT count(*) FROM done"),
                ("one", f"{_PICK_ONE_LANE}, {_CLAIM} {_ANSWER}"),
                ("many", f"{_PICK_LANES}, {_CLAIM} {_ANSWER}"),
            )
            for tell in (False, True)
        }

    def _settings(self) -> dict[str, str]:
        return {
            "application_name": "fusee",
            "statement_timeout": str(round(self.statement_timeout * 1000)),
            # Ours are never idle inside a transaction; one that is was stopped there, and holds locks.
            "idle_in_transaction_session_timeout": str(FROZEN_AFTER * 1000),
            # The server, too, shall notice that we are gone: what it keeps for us is a connection slot.
            "tcp_keepalives_idle": str(IDLE),
            "tcp_keepalives_interval": str(INTERVAL),
            "tcp_keepalives_count": str(PROBES),
            "tcp_user_timeout": str(GONE_AFTER * 1000),
        }

    def abort(self, connection: Any) -> None:
        connection.terminate()

    def _allow(self, connection: Connection, seconds: float) -> None:
        connection.execute(text(f"SET LOCAL statement_timeout = {round(seconds * 1000)}"))

    async def open(self) -> None:
        with _unavailable():
            self._pool = await asyncpg.create_pool(
                self.dsn,
                min_size=1,
                max_size=self.hot_connections,
                timeout=CONNECT_WITHIN,
                connection_class=_Connection,
                server_settings={**self._settings(), **_PLAN},
                reset=_leave_as_it_is,
            )

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        await self._sweeper.close()
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), 5)
            except TimeoutError:
                self._pool.terminate()
            self._pool = None
        await self.dispose()

    @property
    def pool(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            raise StoreUnavailable("the store is not open: call open() first")
        return self._pool

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[_Watched]:
        """A connection for hot statements, closed when one is not answered in time. Those that were open by
        then must show that they are alive before they are used again."""
        while True:
            async with self.pool.acquire(timeout=self.deadline) as connection:
                if connection.alive_at < self._doubted_at and not await self._answers(connection):
                    continue  # closed: the pool makes another
                watch = Watch(self.deadline, connection.terminate)
                try:
                    yield _Watched(connection, watch)
                except Exception as error:
                    if not watch.missed:
                        raise
                    self._doubted_at = time.monotonic()
                    raise StoreUnavailable(
                        f"the database did not answer within {watch.seconds:g} s: the connection was closed"
                    ) from error
                finally:
                    watch.end()
                return

    async def _answers(self, connection: Any) -> bool:
        watch = Watch(self.ping_within, connection.terminate)
        try:
            await connection.execute("SELECT 1")
        except Exception:
            with suppress(
                asyncpg.InterfaceError
            ):  # the watch has closed it, and the pool has taken its place
                connection.terminate()
            return False
        finally:
            watch.end()
        connection.answered()
        return True

    async def insert(self, namespace: str, rows: Sequence[NewRun]) -> list[int]:
        with _unavailable():
            async with self._acquired() as connection:
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
        """Two COPYs in one transaction; 5,000 at a time, making the line's entries from the copied rows was
        0.98x as fast, from a list of their ids 0.91x, and one statement for everything 0.86x."""
        if len(bulk.lane_ids) < COPY_FROM:
            return await super().insert_bulk(namespace, bulk)
        with _unavailable():
            async with self._acquired() as connection, connection.transaction():
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
        with _unavailable():
            async with self._acquired() as connection:
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
        if self.hot_connections > 1:  # a sweep would hold up all claims
            self._sweeper.claimed(len(claimed))
        return Exchanged(claimed, refused)

    async def _exchange(
        self, connection: Any, session: int, finished: Finished, order: Order
    ) -> tuple[list[Claimed], int]:
        any_result = any(result is not None for result in finished.results)
        results = finished.results if any_result else None
        done = (session, _numbers(finished.ids), _numbers(finished.attempts), results)
        told = bool(finished.told)
        if not order.want or not order.lanes:
            statement = self._statements[any_result, "none", told]
            return [], await connection.fetchval(statement, *done, order.used_up)
        lanes, which = (order.lanes[0], "one") if len(order.lanes) == 1 else (order.lanes, "many")
        statement = self._statements[any_result, which, told]
        rows = await connection.fetch(statement, *done, order.want, lanes, order.receipt, order.used_up)
        written: int = rows.pop()[0]
        return [claimed_from(row, order.receipt) for row in rows], written

    def listen(self, wakes: Wakes) -> None:
        """Fire each hint that another process gives, for as long as the database is open."""
        self._listener = asyncio.get_running_loop().create_task(self._listen(wakes), name="fusee-listen")

    async def _listen(self, wakes: Wakes) -> None:
        heard = True
        while True:
            try:
                connection = await asyncpg.connect(
                    self.dsn,
                    timeout=CONNECT_WITHIN,
                    connection_class=_Connection,
                    server_settings={**self._settings(), "application_name": "fusee-listen"},
                )
                try:
                    await connection.add_listener(CHANNEL, lambda _c, _pid, _channel, kind: wakes.fire(kind))
                    if not heard:
                        log.info("listening for hints again")
                    heard = True
                    wakes.fire_all()  # something may have come while nobody listened
                    while True:
                        await asyncio.sleep(LISTENER_ASKED_EVERY)
                        await connection.execute("SELECT 1", timeout=self.ping_within)
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


def _numbers(values: Sequence[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


async def _leave_as_it_is(connection: Any) -> None:
    """Hot statements change no setting, take no advisory lock and leave no cursor: the trip to undo such
    things after each of them is saved (1.3x as many exchanges of one run, 1.1x of 500). What is open is still
    rolled back."""


@contextmanager
def _unavailable() -> Iterator[None]:
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
