"""The tables. Times are microseconds since the epoch: one integer on every database, no time zone anywhere.

A run's row is written three times: accepted, claimed, finished. No index mentions a column that a claim or
a success changes, so PostgreSQL updates the row in place (HOT) and InnoDB touches no secondary index;
against indexes on `status` this drained 1.5x (PostgreSQL) and 3x (MariaDB) as many runs a second.
What is waiting is found in two narrow tables instead: `ready` (claimable) and `delayed`, each one
tree in the order in which it is read. What is running is found through `receipts`, one row for each trip
that claimed something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import mysql

from fusee.engine.model.states import ACTIVE, TERMINAL, RunStatus

__all__ = [
    "LONGEST_REASON",
    "RARE",
    "assigned",
    "attempts",
    "callbacks",
    "delayed",
    "edit_locks",
    "gates",
    "lanes",
    "metadata",
    "outbox",
    "partial_index",
    "queues",
    "ready",
    "receipts",
    "runs",
    "sessions",
    "tickets",
    "totals",
]

metadata = MetaData()

LONGEST_REASON = 500
RARE = frozenset(RunStatus) - {
    RunStatus.PENDING,
    RunStatus.DELAYED,
    RunStatus.DISPATCHED,
    RunStatus.RUNNING,
    RunStatus.SUCCEEDED,
}
"""Found through an index of their own; the others by where they wait, or by the primary key."""

# SQLite numbers rows by itself only when the column is spelled INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")
# MySQL's TEXT ends at 64 KiB.
Long = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")

TABLE: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}
NUMBERED: dict[str, Any] = {**TABLE, "sqlite_autoincrement": True}


def _is_one_of(statuses: Iterable[str]) -> str:
    """Spelled out, the common ones first: it is checked at every write.

    SQLite would build a table for each IN (…) at each statement, a third of a finish's time.
    """
    common = ("running", "succeeded", "pending")
    ordered = sorted(statuses, key=lambda status: (status not in common, status))
    return " OR ".join(f"status = '{status}'" for status in ordered)


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> None:
    """An index over part of a table, where the database has such a thing."""
    for dialect in ("postgresql", "sqlite"):
        condition: dict[str, Any] = {f"{dialect}_where": text(where)}
        Index(name, *columns, unique=unique, **condition).ddl_if(dialect=dialect)
    Index(name, *columns, unique=unique).ddl_if(callable_=cast(Any, _has_no_partial_indexes))


def _has_no_partial_indexes(ddl: Any, target: Any, bind: Any, dialect: Any, **_: Any) -> bool:
    return dialect.name in ("mysql", "mariadb")


runs = Table(
    "fusee_runs",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("lane_id", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("spent", Integer, nullable=False, server_default=text("0")),
    Column("session_id", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("cancel_requested_at", BigInteger),
    Column("origin_id", BigInteger),
    Column("effect", String(8)),
    Column("rare", String(16)),
    Column("reason", String(500)),
    Column("idempotency_key", String(200)),
    Column("payload", Long),
    Column("options", Text),
    Column("result", Long),
    Column("error", Text),
    Column("output", Long),
    Column("kind", String(12)),  # whose it is, and who is told when it ends: task, workflow, batch, bulk
    Column("owner_id", BigInteger),  # of kind batch: the batch, which counts its runs
    Column("request_digest", String(100)),  # what the idempotency key is bound to
    CheckConstraint(
        f"CASE WHEN finished_at IS NULL THEN {_is_one_of(ACTIVE)} ELSE {_is_one_of(TERMINAL)} END",
        name="fusee_runs_ended_iff_finished",
    ),
    CheckConstraint("status <> 'running' OR session_id IS NOT NULL", name="fusee_runs_running_has_session"),
    CheckConstraint("attempt >= 0 AND spent >= 0 AND spent <= attempt", name="fusee_runs_attempts"),
    # Room in each page for the two updates of each row, which then need no new index entry: 99 of 100 times,
    # and 85 with half of the page.
    postgresql_with={"fillfactor": 40},
    **NUMBERED,
)

request_keys = Table(
    "fusee_request_keys",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("idempotency_key", String(200), primary_key=True),
    Column("request_digest", String(100), nullable=False),
    Column("made", String(128), nullable=False),  # what the request made: a number or a name
    Column("created_at", BigInteger, nullable=False),
    Index("fusee_request_keys_created", "created_at"),
    sqlite_with_rowid=False,
    **TABLE,
)
"""Idempotency keys of requests whose things have no column for a key."""

partial_index(
    "fusee_runs_key",
    runs.c.namespace,
    runs.c.idempotency_key,
    where="idempotency_key IS NOT NULL",
    unique=True,
)
# `rare` repeats the status of a run that did not simply succeed: what people look for, and few.
partial_index("fusee_runs_rare", runs.c.namespace, runs.c.rare, runs.c.id, where="rare IS NOT NULL")

ready = Table(
    "fusee_ready",
    metadata,
    Column("lane_id", Integer, primary_key=True, autoincrement=False),
    Column("rank", SmallInteger, primary_key=True, autoincrement=False),  # the priority, negated
    Column("due_at", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
    **TABLE,
)

delayed = Table(
    "fusee_delayed",
    metadata,
    Column("due_at", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("lane_id", Integer, nullable=False),
    sqlite_with_rowid=False,
    **TABLE,
)

receipts = Table(
    "fusee_receipts",
    metadata,
    Column("session_id", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("run_ids", Long, nullable=False),  # "17,18,19"
    sqlite_with_rowid=False,
    **TABLE,
)

tickets = Table(
    "fusee_tickets",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("queue", String(128), primary_key=True),
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Index("fusee_tickets_run", "run_id"),
    sqlite_with_rowid=False,
    **TABLE,
)

lanes = Table(
    "fusee_lanes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("queue", String(128), nullable=False),
    Column("executor", String(16), nullable=False),
    Column("handler", String(128), nullable=False),
    Column("region", String(128), nullable=False),  # and, behind a `!`, the strategy of work that is placed
    Column("turn", String(128)),  # the worker that was given something last, by turns
    UniqueConstraint("namespace", "queue", "executor", "handler", "region", name="fusee_lanes_unique"),
    **NUMBERED,
)

attempts = Table(
    "fusee_attempts",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("namespace", String(128), nullable=False),
    Column("session_id", BigInteger),
    Column("ended", String(16), nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger, nullable=False),
    Column("effect", String(8)),
    Column("error", Text),
    Column("output", Long),
    Column("late_end", String(16)),
    Column("late_at", BigInteger),
    **TABLE,
)

sessions = Table(
    "fusee_sessions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("worker", String(128), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("running", Integer, nullable=False, server_default=text("0")),
    Column("abilities", Long, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("address", String(255)),
    Column("cpu", Float(53)),  # what it declares to have; null declares nothing
    Column("memory", BigInteger),
    Column("drain_asked_at", BigInteger),  # someone asked this worker to leave
    CheckConstraint("state IN ('alive', 'draining', 'ended', 'lost')", name="fusee_sessions_state"),
    Index("fusee_sessions_expiry", "state", "expires_at"),
    **NUMBERED,
)

queues = Table(
    "fusee_queues",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("paused", Boolean(create_constraint=False), nullable=False),
    Column("concurrency", Integer),
    Column("rate", Float(53)),
    Column("burst", Integer),
    Column("tokens", Float(53), nullable=False, server_default=text("0")),
    Column("tokens_at", BigInteger, nullable=False, server_default=text("0")),
    Column("strategy", String(16)),  # how its runs find their worker; null is shared
    **TABLE,
)

assigned = Table(
    "fusee_assigned",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", BigInteger, nullable=False),
    Column("assigned_at", BigInteger, nullable=False),
    Column("cpu", Float(53), nullable=False, server_default=text("0")),
    Column("memory", BigInteger, nullable=False, server_default=text("0")),
    Index("fusee_assigned_session", "session_id"),
    sqlite_with_rowid=False,
    **TABLE,
)

totals = Table(
    "fusee_totals",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("name", String(32), primary_key=True),
    Column("label", String(160), primary_key=True),
    Column("value", BigInteger, nullable=False),  # it only grows
    sqlite_with_rowid=False,
    **TABLE,
)

outbox = Table(
    "fusee_outbox",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("kind", String(12), nullable=False),
    Column("run_id", BigInteger, nullable=False),  # of kind `after`: the task; of kind `batch`: the batch
    Column("fire_time", BigInteger),
    Column("many", Integer, nullable=False, server_default=text("1")),
    Index("fusee_outbox_kind", "kind", "id"),
    **NUMBERED,
)
"""Work for the aggregator, written in the transaction in which it arose."""

gates = Table(
    "fusee_gates",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("rule", String(16), nullable=False),
    Column("needs", Integer, nullable=False),
    Column("succeeded", Integer, nullable=False),
    Column("ended", Integer, nullable=False),
    CheckConstraint("succeeded <= ended AND ended <= needs", name="fusee_gates_counts"),
    sqlite_with_rowid=False,
    **TABLE,
)
"""One row for each run that waits for others: how many, and how many of them have ended."""

callbacks = Table(
    "fusee_callbacks",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("namespace", String(128), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("signed", Boolean(create_constraint=False), nullable=False),
    Column("timeout", BigInteger, nullable=False),
    Column("deadline", BigInteger),  # null until the run waits, and again when it was answered
    Column("used_at", BigInteger),
    Column("outcome", Long),
    sqlite_with_rowid=False,
    **TABLE,
)
"""An outside service may end this attempt, once, with a token whose digest this is."""
partial_index("fusee_callbacks_due", callbacks.c.deadline, where="deadline IS NOT NULL")

edit_locks = Table(
    "fusee_edit_locks",
    metadata,
    Column("name", String(200), primary_key=True),
    **TABLE,
)
"""Rows to lock: edits that must be seen by each other take turns."""
