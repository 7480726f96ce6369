"""Runs that come into being inside a larger transaction: with a fire, with a workflow, with a caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select, text

from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.ready_queue import QueueEntry, ReadyQueue
from fusee.engine.store.request_keys import check_same
from fusee.engine.store.settle import LONGEST_REASON, RARE
from fusee.engine.store.tables import runs
from fusee.values.chunks import chunks

__all__ = ["Birth", "RunWriter"]


class Birth(NamedTuple):
    """A run to insert, in any state that a run can be born in."""

    lane_id: int
    status: RunStatus = RunStatus.PENDING
    """Pending becomes delayed when it is due later."""
    priority: int = 0
    due_at: int | None = None
    payload: str | None = None
    options: str | None = None
    kind: str | None = None
    reason: str | None = None
    attempt: int = 0
    """Attempts counted before its first."""
    origin_id: int | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None
    owner_id: int | None = None
    effect: str | None = None
    """What an earlier run did that this one takes the place of; it stays until this one does something."""

    def row(self, namespace: str, now: int) -> dict[str, Any]:
        due = now if self.due_at is None else self.due_at
        status = self.status
        if status is RunStatus.PENDING and due > now:
            status = RunStatus.DELAYED
        over = status in TERMINAL
        return {
            "namespace": namespace,
            "lane_id": self.lane_id,
            "status": status,
            "rare": status if status in RARE else None,
            "priority": self.priority,
            "attempt": self.attempt,
            "created_at": now,
            "due_at": due,
            "finished_at": now if over else None,
            "effect": Effect.NONE if over else self.effect,
            "reason": self.reason[:LONGEST_REASON] if self.reason else None,
            "origin_id": self.origin_id,
            "idempotency_key": self.idempotency_key,
            "request_digest": self.request_digest,
            "payload": self.payload,
            "options": self.options,
            "kind": self.kind,
            "owner_id": self.owner_id,
        }


class RunWriter:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue) -> None:
        self.context = context
        self.ready_queue = ready_queue

    def insert_runs(
        self, connection: Connection, births: Sequence[Birth], now: int, namespace: str | None = None
    ) -> list[int]:
        """Insert them, each into the line or among the later ones; their numbers in the same order."""
        ids: list[int] = []
        hints: set[str] = set()
        for part in chunks(births):
            rows = [b.row(namespace or self.context.namespace, now) for b in part]
            added = self._numbered(connection, rows)
            ids += added
            entries = [
                QueueEntry(run_id, row["lane_id"], row["priority"], row["due_at"], row["status"])
                for run_id, row in zip(added, rows, strict=True)
            ]
            hints |= self.ready_queue.add(connection, entries)
        for hint in sorted(hints):
            self.context.notify(connection, hint)
        return ids

    def _numbered(self, connection: Connection, rows: list[dict[str, Any]]) -> list[int]:
        """One statement for many rows; how their numbers are learnt differs."""
        if self.context.database.capabilities.sequence is not None:
            query = text(
                f"SELECT {self.context.database.capabilities.sequence} FROM generate_series(1, :count)"
            )
            ids = sorted(connection.execute(query, {"count": len(rows)}).scalars())
        elif self.context.database.capabilities.skip_locked:
            # The numbers of one multi-row INSERT are consecutive in every autoinc lock mode.
            step = connection.execute(text("SELECT @@auto_increment_increment")).scalar_one()
            # Written here: SQLAlchemy takes longer to compile 500 rows than the database to insert them.
            row = "(" + ", ".join(["%s"] * len(rows[0])) + ")"
            statement = f"INSERT INTO fusee_runs ({', '.join(rows[0])}) VALUES {', '.join([row] * len(rows))}"
            values = tuple(value for row in rows for value in row.values())
            first = connection.exec_driver_sql(statement, values).lastrowid
            return list(range(first, first + len(rows) * step, step))
        else:  # one writer
            query = text("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'fusee_runs'")
            last = connection.execute(query).scalar_one()
            ids = list(range(last + 1, last + 1 + len(rows)))
        connection.execute(
            insert(runs), [{"id": run_id, **row} for run_id, row in zip(ids, rows, strict=True)]
        )
        return ids

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
