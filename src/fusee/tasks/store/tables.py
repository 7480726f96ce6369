"""The tables of tasks: what shall fire, what was decided about each fire, and what waits for what.

`next_fire_at` is null for a task that does not fire by itself, so the scan reads the due ones and no other.
A fire's row is found by its task and time; `open_task` repeats the task's number until the fire has ended,
so what is under way is found without reading history.
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
    "callbacks",
    "edges",
    "ended",
    "fires",
    "gates",
    "task_edges",
    "tasks",
    "turns",
    "waits",
    "workflow_nodes",
    "workflow_runs",
    "workflows",
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

ended = Table(
    "fusee_ended",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("kind", String(12), nullable=False),
    Column("run_id", BigInteger, nullable=False),  # of kind `after`: the task; of kind `batch`: the batch
    Column("fire_time", BigInteger),
    Column("many", Integer, nullable=False, server_default=text("1")),
    Index("fusee_ended_kind", "kind", "id"),
    **NUMBERED,
)
"""Work for the aggregator, written in the transaction in which it arose."""

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
"""That run waits for this task's fire; a negative time: for any fire that ends after that (negated) time."""

edges = Table(
    "fusee_edges",
    metadata,
    Column("upstream_run", BigInteger, primary_key=True, autoincrement=False),
    Column("downstream_run", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
    **TABLE,
)
"""Inside one workflow run: who waits for whom."""

workflows = Table(
    "fusee_workflows",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("live_name", String(128)),
    Column("version", Integer, nullable=False),
    Column("description", String(512), nullable=False),
    Column("nodes", Integer, nullable=False),  # how many, for lists
    Column("definition", Long, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger),
    UniqueConstraint("namespace", "live_name", name="fusee_workflows_name"),
    **NUMBERED,
)

workflow_runs = Table(
    "fusee_workflow_runs",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("workflow_id", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", String(500)),
    Column("shape", Long, nullable=False),  # which node is after which, by position
    Column("given", Long, nullable=False),  # the parameters as the caller wrote them
    Column("params", Long, nullable=False),  # and with the defaults of the others
    Column("total", Integer, nullable=False),
    Column("ended", Integer, nullable=False),
    Column("succeeded", Integer, nullable=False),
    Column("skipped", Integer, nullable=False),
    Column("canceled", Integer, nullable=False),
    Column("waiter", BigInteger),  # the run that started this workflow run and waits for it
    Column("origin_id", BigInteger),
    Column("idempotency_key", String(200)),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("cancel_requested_at", BigInteger),
    Column("request_digest", String(100)),  # what the idempotency key is bound to
    UniqueConstraint("namespace", "idempotency_key", name="fusee_workflow_runs_key"),
    UniqueConstraint("waiter", name="fusee_workflow_runs_waiter"),
    Index("fusee_workflow_runs_of", "workflow_id", "id"),
    Index("fusee_workflow_runs_finished", "finished_at"),
    CheckConstraint("ended <= total", name="fusee_workflow_runs_counts"),
    CheckConstraint("(status = 'running') = (finished_at IS NULL)", name="fusee_workflow_runs_ended"),
    **NUMBERED,
)

workflow_nodes = Table(
    "fusee_workflow_nodes",
    metadata,
    Column("workflow_run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("node", String(128), nullable=False),
    Column("run_id", BigInteger, nullable=False),
    Column("status", String(16)),  # how it ended; null until it was counted
    Index("fusee_workflow_nodes_run", "run_id"),
    sqlite_with_rowid=False,
    **TABLE,
)

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

turns = Table(
    "fusee_turns",
    metadata,
    Column("name", String(200), primary_key=True),
    **TABLE,
)
"""Rows to lock: edits that must be seen by each other take turns."""
