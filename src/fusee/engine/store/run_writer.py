"""The run writer: every run is inserted here, one or many, with or without a key, in any transaction.

What needs no key and no larger transaction goes by the hot statements of each database; all else through
`insert_runs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, Select, bindparam, insert, literal, select, text, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Enqueued, NewRunIds
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.ready_queue import QueueEntry, ReadyQueue
from fusee.engine.store.request_keys import check_same
from fusee.engine.store.rows import Bulk, NewRun, new_run, portions
from fusee.engine.store.tables import runs
from fusee.engine.store.wakes import DELAYED, PENDING
from fusee.values.chunks import chunks

__all__ = ["RunWriter"]

Used = tuple[int, str | None]
"""The run that a key was used for, and the digest of the request."""

_DRAW = "SELECT min(n), max(n) FROM (SELECT {number} AS n FROM generate_series(1, :count)) AS drawn"
_LAST = text("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'fusee_runs'")


class RunWriter:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue, lanes: Lanes) -> None:
        self.context = context
        self.ready_queue = ready_queue
        self.lanes = lanes

    # -- accepting what was submitted

    async def enqueue(self, specs: Sequence[RunSpec]) -> Sequence[Enqueued]:
        """Accept all of them or none; returns them in the same order."""
        if not specs:
            return []
        lane_ids = await self._lanes_of(specs)
        if all(s.idempotency_key is None and s.due_at is None and s.delay == 0 for s in specs):
            ids = await self.context.database.insert_bulk(self.context.namespace, Bulk.of(specs, lane_ids))
            self.context.wakes.fire(PENDING)
            return NewRunIds(ids)
        rows = [new_run(spec, lane_id) for spec, lane_id in zip(specs, lane_ids, strict=True)]
        accepted: Sequence[Enqueued]
        if any(row.idempotency_key is not None for row in rows):
            accepted = await self._enqueue_keyed(rows)
        else:
            accepted = NewRunIds(await self.context.database.insert(self.context.namespace, rows))
        for kind in _hints(rows):
            self.context.wakes.fire(kind)
        return accepted

    async def enqueue_each(
        self, template: RunSpec, payloads: Sequence[Mapping[str, Any] | None]
    ) -> Sequence[Enqueued]:
        """Accept a run like the template for each payload, all or none; returns them in the same order.

        They are due at once and have no key. Nothing is made for a single run but its row: 1.8x as many are
        accepted in a second as by `enqueue` (PostgreSQL, 5,000 a call).
        """
        if not payloads:
            return []
        lane = template.lane(self.context.namespace)
        lane_id = (await self.lanes.lane_ids([lane]))[lane]
        ids = await self.context.database.insert_bulk(
            self.context.namespace, Bulk.each(template, lane_id, payloads)
        )
        self.context.wakes.fire(PENDING)
        return NewRunIds(ids)

    def enqueue_within(self, connection: Connection, specs: Sequence[RunSpec]) -> list[Enqueued]:
        """Accept runs as part of a transaction the caller holds on this same database."""
        self.context.database.join(connection)
        lane_ids = {
            lane: self.lanes.lane_id(connection, lane)
            for lane in {s.lane(self.context.namespace) for s in specs}
        }
        rows = [new_run(spec, lane_ids[spec.lane(self.context.namespace)]) for spec in specs]
        with connection.begin_nested():
            return self._insert_keyed(connection, rows)

    async def _lanes_of(self, specs: Sequence[RunSpec]) -> list[int]:
        # By plain tuples: a million specs share a handful of lanes, and hashing a Lane each would show.
        keys = [
            (spec.queue, spec.executor, spec.handler, spec.region, spec.strategy, str(spec.requires))
            for spec in specs
        ]
        by_key = {key: Lane(self.context.namespace, *key) for key in set(keys)}
        known = await self.lanes.lane_ids(by_key.values())
        ids = {key: known[lane] for key, lane in by_key.items()}
        return [ids[key] for key in keys]

    async def _enqueue_keyed(self, rows: Sequence[NewRun]) -> list[Enqueued]:
        for again in range(5):
            try:
                return await self.context.database.write(
                    lambda connection: self._insert_keyed(connection, rows)
                )
            except IntegrityError:  # another caller used one of the keys just now: look again
                if again == 4:
                    raise
        raise AssertionError("unreachable")

    def _insert_keyed(self, connection: Connection, rows: Sequence[NewRun]) -> list[Enqueued]:
        """Insert those whose key is new or that have none; returns the earlier run for the others."""
        now = self.context.now(connection)
        used = self._used_keys(connection, rows)
        _refuse_mixed(rows, used)
        seen: set[str] = set(used)
        new: list[NewRun] = []
        for row in rows:
            if row.idempotency_key is None or row.idempotency_key not in seen:
                new.append(row)
            if row.idempotency_key is not None:
                seen.add(row.idempotency_key)
        ids = iter(self.insert_runs(connection, new, now))
        accepted: list[Enqueued] = []
        for row in rows:
            before = used.get(row.idempotency_key) if row.idempotency_key is not None else None
            if before is not None:
                check_same(row.idempotency_key, before[1], str(row.request_digest), f"run {before[0]}")
                accepted.append(Enqueued(before[0], created=False))
                continue
            run_id = next(ids)
            if row.idempotency_key is not None:
                used[row.idempotency_key] = (run_id, row.request_digest)
            accepted.append(Enqueued(run_id))
        return accepted

    def _used_keys(self, connection: Connection, rows: Sequence[NewRun]) -> dict[str, Used]:
        """Key → (run, digest), of the keys of these rows and of those that would be in their way."""
        keyed = [row for row in rows if row.idempotency_key is not None]
        keys = list({key for row in keyed for key in (row.idempotency_key, _counterpart(row)) if key})
        used: dict[str, Used] = {}
        for part in chunks(keys):
            query = select(runs.c.idempotency_key, runs.c.id, runs.c.request_digest).where(
                runs.c.namespace == self.context.namespace, runs.c.idempotency_key.in_(part)
            )
            used |= {row[0]: (row[1], row[2]) for row in connection.execute(query)}
        return used

    def run_under_key(self, connection: Connection, key: str, digest: str) -> int | None:
        """The run that was accepted for this request under that idempotency key."""
        query = select(runs.c.id, runs.c.request_digest).where(
            runs.c.namespace == self.context.namespace, runs.c.idempotency_key == key
        )
        found = connection.execute(query).one_or_none()
        if found is None:
            return None
        check_same(key, found.request_digest, digest, f"run {found.id}")
        return int(found.id)

    # -- inside a larger transaction

    def insert_runs(
        self, connection: Connection, new: Sequence[NewRun], now: int, namespace: str | None = None
    ) -> list[int]:
        """Insert the runs and their entries in the ready queue; returns their numbers in the same order."""
        ids: list[int] = []
        hints: set[str] = set()
        for part in portions(new):
            rows = [run.row(namespace or self.context.namespace, now) for run in part]
            added = self._insert_rows(connection, rows)
            entries = [
                QueueEntry(run_id, row["lane_id"], row["priority"], row["due_at"], row["status"])
                for run_id, row in zip(added, rows, strict=True)
            ]
            hints |= self.ready_queue.add(connection, entries)
            ids += added
        for hint in sorted(hints):
            self.context.notify(connection, hint)
        return ids

    def _insert_rows(self, connection: Connection, rows: list[dict[str, Any]]) -> list[int]:
        """One statement for many rows; how their numbers are learnt differs."""
        capabilities = self.context.database.capabilities
        if len(rows) == 1:
            key = connection.execute(insert(runs), rows[0]).inserted_primary_key
            assert key is not None
            return [int(key[0])]
        if capabilities.sequence is not None:
            query = text(f"SELECT {capabilities.sequence} FROM generate_series(1, :count)")
            ids = sorted(connection.execute(query, {"count": len(rows)}).scalars())
        elif capabilities.skip_locked:
            # The numbers of one multi-row INSERT are consecutive in every autoinc lock mode.
            step = connection.execute(text("SELECT @@auto_increment_increment")).scalar_one()
            # Written here: SQLAlchemy takes longer to compile 500 rows than the database to insert them.
            mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"  # of the caller's driver
            row = "(" + ", ".join([mark] * len(rows[0])) + ")"
            statement = f"INSERT INTO fusee_runs ({', '.join(rows[0])}) VALUES {', '.join([row] * len(rows))}"
            values = tuple(value for row in rows for value in row.values())
            first = connection.exec_driver_sql(statement, values).lastrowid
            return list(range(first, first + len(rows) * step, step))
        else:  # one writer
            last = connection.execute(_LAST).scalar_one()
            ids = list(range(last + 1, last + 1 + len(rows)))
        connection.execute(
            insert(runs), [{"id": run_id, **row} for run_id, row in zip(ids, rows, strict=True)]
        )
        return ids

    def reserve(self, connection: Connection, count: int) -> int | None:
        """Reserve that many run numbers in a row, for `insert_selected`; returns the first. None when they
        have gaps (somebody else drew from the sequence at the same moment), or when the database numbers
        rows only as it inserts them."""
        capabilities = self.context.database.capabilities
        if capabilities.sequence is not None:
            query = text(_DRAW.format(number=capabilities.sequence))
            query = query.bindparams(bindparam("count", type_=Integer))
            lowest, highest = connection.execute(query, {"count": count}).one()
            return int(lowest) if highest - lowest == count - 1 else None
        if capabilities.skip_locked:
            return None
        return int(connection.execute(_LAST).scalar_one()) + 1

    def insert_selected(
        self, connection: Connection, source: Select[Any], alike: NewRun, now: int, namespace: str
    ) -> None:
        """Insert a pending run like `alike` for each (`run_id`, `payload`) of the query: what is already in
        the database does not travel to us and back."""
        found = source.subquery()
        row = alike.row(namespace, now)
        shared = {name: value for name, value in row.items() if value is not None and name != "payload"}
        values = [literal(value, runs.c[name].type) for name, value in shared.items()]
        query = select(found.c.run_id, found.c.payload, *values)
        connection.execute(insert(runs).from_select(["id", "payload", *shared], query))
        self.ready_queue.add_selected(
            connection, select(found.c.run_id), alike.lane_id, alike.priority, row["due_at"]
        )
        self.context.notify(connection, PENDING)

    def set_options(self, connection: Connection, run_id: int, options: str) -> None:
        """Replace the options of a pending run, whose entry in the ready queue is locked."""
        connection.execute(update(runs).where(runs.c.id == run_id).values(options=options))


def _hints(rows: Sequence[NewRun]) -> list[str]:
    """Whom to wake; a due time may have passed already, which the database's clock alone knows."""
    claimable = any(row.immediate or row.due_at is not None for row in rows)
    return [PENDING] * claimable + [DELAYED] * any(not row.immediate for row in rows)


def _is_one_of_many(digest: str | None) -> bool:
    return digest is not None and digest.startswith(("runs/", "lines:"))


def _counterpart(row: NewRun) -> str:
    """A run of many under KEY has `KEY/index`. The key of one and the key of many may not be the same."""
    assert row.idempotency_key is not None
    if _is_one_of_many(row.request_digest):
        return row.idempotency_key.rpartition("/")[0]
    return f"{row.idempotency_key}/0"


def _refuse_mixed(rows: Sequence[NewRun], used: Mapping[str, Used]) -> None:
    for row in rows:
        if row.idempotency_key is None or (other := used.get(_counterpart(row))) is None:
            continue
        run_id, digest = other
        if digest is not None and _is_one_of_many(digest) != _is_one_of_many(row.request_digest):
            key = min(row.idempotency_key, _counterpart(row), key=len)
            check_same(key, digest, str(row.request_digest), f"run {run_id}")
