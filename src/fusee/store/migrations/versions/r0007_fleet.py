"""Registry of workers, strategies, regions. Frozen: later changes are later revisions. Expands only."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Index, MetaData, String, Table, text

revision = "0007"
down_revision = "0006"

metadata = MetaData()

TABLE: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

Table(
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


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.add_column("fusee_sessions", Column("address", String(255)))
    op.add_column("fusee_sessions", Column("cpu", Float(53)))
    op.add_column("fusee_sessions", Column("memory", BigInteger))
    op.add_column("fusee_sessions", Column("drain_asked_at", BigInteger))
    op.add_column("fusee_queues", Column("strategy", String(16)))
    op.add_column("fusee_lanes", Column("turn", String(128)))
    op.add_column("fusee_tasks", Column("region", String(128)))
