"""The tables of tasks: the definitions, the fire history, backfills and dependencies.

`next_fire_at` is null for a task that does not fire by itself, so the scan reads only tasks that are due.
A fire's row is found by its task and time. `open_task` repeats the task's id until the fire has ended, so
open fires are found without reading the history.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    UniqueConstraint,
    text,
)

from fusee.engine.store.tables import NUMBERED, TABLE, Id, Long, metadata, partial_index

__all__ = [
    "backfills",
    "fires",
    "task_edges",
    "task_templates",
    "tasks",
    "waits",
]

tasks = Table(
    "fusee_tasks",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("live_name", String(128)),  # the name until it is deleted: another may then take it
    Column("status", String(16), nullable=False),
    Column("reason", String(500)),
    Column("version", Integer, nullable=False),
    Column("definition", Long, nullable=False),
    Column("next_fire_at", BigInteger),
    Column("anchor", BigInteger, nullable=False),  # from when on it fires: made, resumed or changed
    Column("last_fire_at", BigInteger),
    Column("last_run_id", BigInteger),
    Column("last_status", String(16)),
    Column("last_attempt", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),  # in a row
    Column("failure_skipped", Boolean(create_constraint=False), nullable=False),
    Column("rate_at", BigInteger, nullable=False, server_default=text("0")),
    Column("late_alert_at", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger),
    Column("region", String(128)),  # as in the definition; null when an older version wrote it
    UniqueConstraint("namespace", "live_name", name="fusee_tasks_name"),
    CheckConstraint(
        "status IN ('enabled', 'paused', 'disabled', 'deleted')",
        name="fusee_tasks_status",
    ),
    CheckConstraint(
        "next_fire_at IS NULL OR status = 'enabled'",
        name="fusee_tasks_only_enabled_fire",
    ),
    CheckConstraint(
        "(status = 'deleted') = (live_name IS NULL)",
        name="fusee_tasks_deleted_has_no_name",
    ),
    **NUMBERED,
)
partial_index("fusee_tasks_due", tasks.c.next_fire_at, tasks.c.id, where="next_fire_at IS NOT NULL")

fires = Table(
    "fusee_fires",
    metadata,
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fire_time", BigInteger, primary_key=True, autoincrement=False),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("namespace", String(128), nullable=False),
    Column("cause", String(12), nullable=False),
    Column("decision", String(12), nullable=False),
    Column("code", String(16), nullable=False),
    Column("rule", String(500), nullable=False),
    Column("run_id", BigInteger, nullable=False),
    Column("decided_at", BigInteger, nullable=False),
    Column("admitted_at", BigInteger),
    Column("through", BigInteger),  # a row about many missed fires: all from fire_time to here
    Column("open_task", BigInteger),
    Column("held", String(12)),  # why it is blocked: queue, previous, upstream, backfill
    Column("backfill_id", BigInteger),
    Column("superseded", Boolean(create_constraint=False), nullable=False),
    CheckConstraint("held IS NULL OR open_task IS NOT NULL", name="fusee_fires_held_is_open"),
    Index("fusee_fires_run", "run_id"),
    sqlite_with_rowid=False,
    **TABLE,
)
partial_index(
    "fusee_fires_open", fires.c.open_task, fires.c.held, fires.c.fire_time, where="open_task IS NOT NULL"
)

backfills = Table(
    "fusee_backfills",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("task_id", BigInteger, nullable=False),
    Column("from_time", BigInteger, nullable=False),
    Column("to_time", BigInteger, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("idempotency_key", String(200)),
    Column("created_at", BigInteger, nullable=False),
    Column("request_digest", String(100)),  # what the idempotency key is bound to
    UniqueConstraint("namespace", "idempotency_key", name="fusee_backfills_key"),
    **NUMBERED,
)

task_edges = Table(
    "fusee_task_edges",
    metadata,
    Column("upstream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("downstream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", String(128), nullable=False),
    Index("fusee_task_edges_down", "downstream_id"),
    sqlite_with_rowid=False,
    **TABLE,
)

waits = Table(
    "fusee_waits",
    metadata,
    Column("task_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fire_time", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Index("fusee_waits_run", "run_id"),
    sqlite_with_rowid=False,
    **TABLE,
)
"""This run waits for this fire of a task; a negative time means any fire later than that (negated) time."""

task_templates = Table(
    "fusee_task_templates",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("definition", Long, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
    **TABLE,
)
"""Named sets of defaults and parameters from which tasks are made."""
