"""What the store's tests share: a world of stores over one database, a clock to move, and the invariants."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, func, select, text

from fusee.clock import MICROSECONDS, ManualClock
from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.model.outcome import decide as judge
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, Run, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.contract import Finished, Order, Settlement
from fusee.engine.store.runs import RunFilter
from fusee.engine.store.settle import RARE
from fusee.engine.store.tables import (
    assigned,
    attempts,
    callbacks,
    delayed,
    lanes,
    metadata,
    ready,
    receipts,
    runs,
    tickets,
)
from fusee.stores import Store, open_store
from tests.store.records import broken_records, every
from tests.store.tallies import broken_batches

START = 1_800_000_000 * MICROSECONDS
DATABASE_NOW = "(SELECT us FROM test_clock)"


# --- a clock that the test moves --------------------------------------------------------------------


class MovableClock(Protocol):
    async def now(self) -> int: ...

    async def tick(self, seconds: float) -> int: ...


class ProcessClock:
    """For SQLite, whose clock is the process's."""

    def __init__(self) -> None:
        self.manual = ManualClock(START)

    async def now(self) -> int:
        return self.manual.now_us()

    async def tick(self, seconds: float) -> int:
        return self.manual.tick(seconds=seconds)


class ManualDatabaseClock:
    """For the servers: a table that holds the time, which the store reads in place of the server's clock."""

    def __init__(self) -> None:
        self.store: Store | None = None

    async def _sql(self, statement: str) -> int | None:
        assert self.store is not None

        def work(connection: Connection) -> int:
            connection.execute(text(statement))
            return int(connection.execute(text("SELECT us FROM test_clock")).scalar_one())

        return await self.store.database.write(work)

    async def now(self) -> int:
        return await self._sql("SELECT 1") or 0

    async def tick(self, seconds: float) -> int:
        return await self._sql(f"UPDATE test_clock SET us = us + {round(seconds * MICROSECONDS)}") or 0


# --- a world ----------------------------------------------------------------------------------------


class World:
    """One database, the stores of any number of processes on it, and short ways to say what they do."""

    def __init__(
        self, url: str, clock: ProcessClock | ManualDatabaseClock, store: Store | None = None
    ) -> None:
        self.url = url
        self.clock = clock
        self.stores: list[Store] = []
        self._opened: list[Store] = []
        if store is not None:
            self._add(store)
        self._receipts = itertools.count(1)

    @property
    def store(self) -> Store:
        return self.stores[0]

    async def another(self, namespace: str = "default") -> Store:
        """The store of one more process."""
        if isinstance(self.clock, ProcessClock):
            store = open_store(self.url, clock=self.clock.manual, namespace=namespace)
        else:
            store = open_store(self.url, now=DATABASE_NOW, namespace=namespace, max_connections=6)
        self._add(store)
        self._opened.append(store)
        await store.open()
        return store

    def _add(self, store: Store) -> None:
        self.stores.append(store)
        if isinstance(self.clock, ManualDatabaseClock):
            self.clock.store = self.clock.store or store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    # -- what processes do

    async def session(
        self,
        name: str = "worker-1",
        *,
        ttl: float = 30.0,
        store: Store | None = None,
        policies: Mapping[str, RetryPolicy] | None = None,
        handlers: tuple[str, ...] = ("work",),
        **more: Any,
    ) -> int:
        said: dict[str, Any] = {
            "host": "here",
            "pid": 4711,
            "version": "1.0",
            "capacity": 10,
            "executors": ("python",),
            "queues": ("default",),
            "region": "",
            "labels": {"disk": "fast"},
            "policies": policies or {},
            **more,
        }
        info = WorkerInfo(name=name, handlers=handlers, **said)
        return await (store or self.store).sessions.open_session(info, ttl)

    async def enqueue(self, count: int = 1, *, store: Store | None = None, **fields: Any) -> list[int]:
        spec = RunSpec(**{"handler": "work", **fields})
        return [run.id for run in await (store or self.store).run_writer.enqueue([spec] * count)]

    async def enqueue_one(self, *, store: Store | None = None, **fields: Any) -> int:
        (run_id,) = await self.enqueue(store=store, **fields)
        return run_id

    async def lane_ids(self, *, store: Store | None = None, **wanted: str) -> list[int]:
        """The lanes of the store's namespace, read afresh."""
        store = store or self.store
        query = select(lanes.c.id).where(lanes.c.namespace == store.namespace).order_by(lanes.c.id)
        for name, value in wanted.items():
            query = query.where(lanes.c[name] == value)
        return list(await store.database.read(lambda connection: connection.execute(query).scalars().all()))

    async def claim(
        self,
        session: int,
        want: int = 1000,
        *,
        lanes: Sequence[int] | None = None,
        store: Store | None = None,
    ) -> list[Claimed]:
        store = store or self.store
        if lanes is None:
            lanes = await self.lane_ids(store=store)
        order = Order(want, lanes, next(self._receipts))
        return (await store.claims.exchange(session, Finished(), order)).claimed

    async def claim_limited(
        self, session: int, want: int = 1000, *, queue: str = "default", store: Store | None = None
    ) -> list[Claimed]:
        store = store or self.store
        order = Order(want, await self.lane_ids(store=store, queue=queue), next(self._receipts))
        return await store.queues.claim_limited(session, queue, order)

    async def claim_one(self, session: int) -> Claimed:
        (claimed,) = await self.claim(session, 1)
        return claimed

    async def enqueue_and_claim(self, session: int, **fields: Any) -> Claimed:
        await self.enqueue(**fields)
        return await self.claim_one(session)

    async def finish(
        self, session: int, *claimed: Claimed, result: str | None = None, store: Store | None = None
    ) -> list[tuple[int, int]]:
        """Answers what the fence refused."""
        finished = finished_of(claimed, result)
        return (await (store or self.store).claims.exchange(session, finished, Order())).refused

    async def settle(
        self,
        session: int,
        *claimed: Claimed,
        end: End,
        policy: RetryPolicy | None = None,
        store: Store | None = None,
        **ended: Any,
    ) -> list[tuple[int, int]]:
        """Judge each end and write it down; answers what the fence refused."""
        settlements = [settlement(run, end, policy, **ended) for run in claimed]
        return await (store or self.store).outcomes.settle(session, settlements)

    # -- what there is to see

    async def run(self, run_id: int) -> Run:
        return await self.store.runs.run(run_id)

    async def statuses(self, run_ids: Iterable[int]) -> list[str]:
        return [str((await self.run(run_id)).status) for run_id in run_ids]

    async def tally(self) -> dict[str, int]:
        """status → how many, of this namespace."""
        listed = await self.store.runs.runs(RunFilter(limit=100_000))
        return dict(Counter(str(run.status) for run in listed))

    async def rows(self, table: Any) -> list[Any]:
        return list(
            await self.store.database.read(lambda connection: connection.execute(select(table)).all())
        )

    async def sql(self, statement: str, **values: Any) -> None:
        """Something done to the database behind the store's back."""
        await self.store.database.write(
            lambda connection: connection.execute(text(statement), values).close()
        )


def finished_of(claimed: Iterable[Claimed], result: str | None = None) -> Finished:
    finished = Finished()
    for run in claimed:
        finished.add(run.id, run.attempt, result, run.receipt, run.kind)
    return finished


def settlement(run: Claimed, end: End, policy: RetryPolicy | None = None, **fields: Any) -> Settlement:
    ended = Ended(end, **fields)
    return Settlement(
        run.id, run.attempt, ended, judge(ended, policy or RetryPolicy(), run.spent), run.receipt, run.ticket
    )


# --- what must hold at any moment -------------------------------------------------------------------


def broken_invariants(connection: Connection) -> list[str]:
    """What is wrong with the database as it stands, in words; nothing, one hopes."""
    wrong: list[str] = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    rows = {row.id: row for row in connection.execute(every(runs))}
    of_status: dict[str, set[int]] = {status: set() for status in RunStatus}
    for row in rows.values():
        of_status[row.status].add(row.id)

    given = {row.run_id: row.session_id for row in connection.execute(every(assigned))}
    waiting = connection.execute(every(ready)).all()
    must(len({row.run_id for row in waiting}) == len(waiting), "a run stands in line twice")
    must(
        {row.run_id for row in waiting} == of_status["pending"],
        f"line {sorted(row.run_id for row in waiting)} is not pending {sorted(of_status['pending'])}",
    )
    for row in waiting:
        if run := rows.get(row.run_id):
            lane = -given[run.id] if run.id in given and row.lane_id < 0 else run.lane_id
            where = (lane, -run.priority, run.due_at)
            must((row.lane_id, row.rank, row.due_at) == where, f"run {run.id} stands in the wrong place")

    delayed_rows = connection.execute(every(delayed)).all()
    must(len({row.run_id for row in delayed_rows}) == len(delayed_rows), "a run is due twice")
    must(
        {row.run_id for row in delayed_rows} == of_status["delayed"],
        f"later {sorted(row.run_id for row in delayed_rows)} is not delayed {sorted(of_status['delayed'])}",
    )
    for row in delayed_rows:
        if run := rows.get(row.run_id):
            must(
                (row.lane_id, row.due_at) == (run.lane_id, run.due_at), f"run {run.id} is due at another time"
            )

    sent = {row.run_id: row for row in connection.execute(every(dispatched))}
    must(set(sent) == of_status["dispatched"], f"places {sorted(sent)} are not those of dispatched runs")
    for row in sent.values():
        if run := rows.get(row.run_id):
            lane = -given.get(run.id, 0) if row.lane_id < 0 else run.lane_id
            must((row.lane_id, row.attempt) == (lane, run.attempt), f"run {run.id} was sent otherwise")

    on_receipts = {
        (row.session_id, int(run_id))
        for row in connection.execute(every(receipts))
        for run_id in row.run_ids.split(",")
    }
    for run_id in of_status["running"]:
        must((rows[run_id].session_id, run_id) in on_receipts, f"running run {run_id} is on no receipt")
    for row in connection.execute(every(tickets)):
        holds = row.run_id in of_status["running"] | of_status["waiting"]
        must(holds, f"run {row.run_id} has a ticket and neither runs nor waits")
    for row in connection.execute(every(callbacks)):
        run, what = rows.get(row.run_id), f"callback {row.run_id}/{row.attempt}"
        must(run is not None and 1 <= row.attempt <= run.attempt, f"{what} is of no attempt")
        if run is not None:
            status = run.status if run.attempt == row.attempt else "over"
            must((row.deadline is not None) == (status == "waiting"), f"{what}: {status}, {row.deadline=}")
            must(row.outcome is None or status == "running", f"{what}: {status}, and an answer is kept")
            must(row.used_at is None or status != "waiting", f"{what} was used, and its run waits")

    for run in rows.values():
        terminal = RunStatus(run.status) in TERMINAL
        must(terminal == (run.finished_at is not None), f"run {run.id} is {run.status}: {run.finished_at=}")
        must(0 <= run.spent <= run.attempt, f"run {run.id}: {run.spent=} {run.attempt=}")
        must(run.status != "running" or run.session_id is not None, f"run {run.id} runs nowhere")
        rare = run.status if RunStatus(run.status) in RARE else None
        must(run.rare == rare, f"run {run.id} is {run.status}: {run.rare=}")
    for row in connection.execute(every(attempts)):
        run = rows.get(row.run_id)
        must(run is not None and 1 <= row.attempt <= run.attempt, f"attempt {row.attempt} of {row.run_id}?")
    return wrong + broken_records(connection, rows) + broken_batches(connection, rows)


def sweep_clean(connection: Connection) -> None:
    deletes = [f"DELETE FROM {table.name}" for table in metadata.sorted_tables]
    few = connection.execute(select(func.count()).select_from(runs)).scalar_one() < 1000
    if few and connection.dialect.name == "postgresql":  # one trip instead of forty
        deletes = [f"DO $$ BEGIN {'; '.join(deletes)}; END $$"]
    for statement in deletes:
        connection.exec_driver_sql(statement)


__all__ = [
    "DATABASE_NOW",
    "START",
    "Effect",
    "End",
    "ManualDatabaseClock",
    "MovableClock",
    "ProcessClock",
    "World",
    "broken_invariants",
    "finished_of",
    "settlement",
    "sweep_clean",
]
