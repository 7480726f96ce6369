"""The tables of batches. A batch's row holds how many of its targets stand where: progress is one row.

A target's own row never says where it stands: its runs do.
"""

from __future__ import annotations

from typing import Literal, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from fusee.engine.store.tables import NUMBERED, TABLE, Id, Long, metadata, partial_index

__all__ = ["COUNTED", "Stands", "batch_tasks", "batches"]

Stands = Literal[
    "pending",
    "running",
    "success",
    "fail",
    "cancel",
    "retry_pending",
    "rollback_pending",
    "rollback_running",
    "rollback_success",
    "rollback_fail",
]
"""Where a target can stand; a column each."""
COUNTED: tuple[Stands, ...] = get_args(Stands)

batches = Table(
    "fusee_batches",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("batch_name", String(200), nullable=False),
    Column("batch_type", String(128), nullable=False),
    Column("target_type", String(128), nullable=False),
    Column("creator", String(128), nullable=False),
    Column("env", String(128), nullable=False),
    Column("region", String(128), nullable=False),
    Column("az", String(128), nullable=False),
    Column("definition", Long, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(500)),
    Column("version", Integer, nullable=False),
    Column("total", BigInteger, nullable=False),
    *(Column(name, BigInteger, nullable=False, server_default=text("0")) for name in COUNTED),
    Column("reached", BigInteger, nullable=False, server_default=text("0")),  # targets below this had a run
    Column("stopped", Boolean(create_constraint=False), nullable=False),
    Column("undo_next", Boolean(create_constraint=False), nullable=False),
    Column("force", Boolean(create_constraint=False), nullable=False),
    Column("window", Integer, nullable=False, server_default=text("0")),
    Column("round_left", BigInteger, nullable=False, server_default=text("0")),
    Column("parent_run", BigInteger),  # the run that started this batch and waits for its end
    Column("idempotency_key", String(200)),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("request_digest", String(100)),  # what the idempotency key is bound to
    Column("left_applied", BigInteger),  # after a rollback: targets that are applied and were not undone
    Column("kept_until", BigInteger),  # as the dispatcher that deletes old batches says
    Column("parked", BigInteger, nullable=False, server_default=text("0")),  # passed over: a rival has them
    Column("waits_for", BigInteger),  # a batch that has a target which this one wants
    Column("entered_at", BigInteger),  # since when it is under way: who began earlier has the target first
    CheckConstraint(
        "phase IN ('uploading', 'planned', 'applying', 'stopping', 'rolling_back', 'done', 'discarded')",
        name="fusee_batches_phase",
    ),
    CheckConstraint(
        f"phase = 'uploading' OR total = {' + '.join(COUNTED)}",
        name="fusee_batches_counts",
    ),
    CheckConstraint(
        " AND ".join(f"{name} >= 0" for name in COUNTED),
        name="fusee_batches_no_less_than_none",
    ),
    UniqueConstraint("namespace", "idempotency_key", name="fusee_batches_key"),
    UniqueConstraint("parent_run", name="fusee_batches_parent_run"),
    Index("fusee_batches_phase_id", "phase", "id"),
    Index("fusee_batches_finished", "finished_at"),
    **NUMBERED,
)

batch_tasks = Table(
    "fusee_batch_tasks",
    metadata,
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("target_id", String(128), nullable=False),
    Column("target_name", String(200), nullable=False),
    Column("target_env", String(128), nullable=False),
    Column("payload", Long, nullable=False),
    Column("image", Long),
    Column("run_id", BigInteger),
    Column("rollback_run_id", BigInteger),
    Column("retry_time", Integer, nullable=False, server_default=text("0")),
    Column("todo", String(8)),  # retry, undo or parked, waiting for its turn; left: its rollback was canceled
    Column("turn", BigInteger),
    Column("info", Text),
    UniqueConstraint("batch_id", "target_id", name="fusee_batch_tasks_target"),
    # No index mentions what changes when a target starts, and each page has room for that change.
    postgresql_with={"fillfactor": 50},
    sqlite_with_rowid=False,
    **TABLE,
)

# Those that started together have one turn: the last of them goes first.
partial_index(
    "fusee_batch_tasks_todo",
    batch_tasks.c.batch_id,
    batch_tasks.c.todo,
    batch_tasks.c.turn,
    batch_tasks.c.position.desc(),
    where="todo IS NOT NULL",
)
