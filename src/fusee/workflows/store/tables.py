"""The tables of workflows: definitions, and one row for each start, each node and each edge of a start."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    UniqueConstraint,
)

from fusee.engine.store.tables import NUMBERED, TABLE, Id, Long, metadata

__all__ = ["edges", "workflow_nodes", "workflow_runs", "workflows"]

edges = Table(
    "fusee_edges",
    metadata,
    Column("upstream_run", BigInteger, primary_key=True, autoincrement=False),
    Column("downstream_run", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
    **TABLE,
)
"""The edges between the runs of one workflow run; an edge is deleted when its upstream ends."""

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
    Column("parent_run", BigInteger),  # the run that started this workflow run and waits for it
    Column("origin_id", BigInteger),
    Column("idempotency_key", String(200)),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("cancel_requested_at", BigInteger),
    Column("request_digest", String(100)),  # what the idempotency key is bound to
    UniqueConstraint("namespace", "idempotency_key", name="fusee_workflow_runs_key"),
    UniqueConstraint("parent_run", name="fusee_workflow_runs_parent_run"),
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
