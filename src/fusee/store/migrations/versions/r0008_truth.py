"""What the second round of corrections needs. Frozen: later changes are later revisions. Expands only."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text, text
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"

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
    "fusee_request_keys",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("idempotency_key", String(200), primary_key=True),
    Column("request_digest", String(100), nullable=False),
    Column("made", String(128), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("fusee_request_keys_created", "created_at"),
    sqlite_with_rowid=False,
    **TABLE,
)

Table(
    "fusee_totals",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("name", String(32), primary_key=True),
    Column("label", String(160), primary_key=True),
    Column("value", BigInteger, nullable=False),
    sqlite_with_rowid=False,
    **TABLE,
)

Table(
    "fusee_task_templates",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("definition", Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
    **TABLE,
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    # What an idempotency key is bound to.
    for table in ("runs", "batches", "bulk_jobs", "workflow_runs", "backfills"):
        op.add_column(f"fusee_{table}", Column("request_digest", String(100)))
    op.add_column("fusee_batches", Column("left_applied", BigInteger))
    op.add_column("fusee_batches", Column("kept_until", BigInteger))
    # Batches that wait for each other.
    op.add_column("fusee_batches", Column("parked", BigInteger, nullable=False, server_default=text("0")))
    op.add_column("fusee_batches", Column("waits_for", BigInteger))
    op.add_column("fusee_batches", Column("entered_at", BigInteger))
    # Parts of a bulk job's rate.
    op.add_column("fusee_bulk_jobs", Column("window", Integer))
    op.add_column("fusee_bulk_jobs", Column("held_by", String(16)))
    op.add_column("fusee_bulk_jobs", Column("checking", String(8)))
    op.add_column("fusee_bulk_jobs", Column("checker", BigInteger))
    op.add_column("fusee_bulk_jobs", Column("fingerprint", Text))
    op.add_column(
        "fusee_bulk_jobs", Column("progressed_at", BigInteger, nullable=False, server_default=text("0"))
    )
    op.add_column("fusee_bulk_jobs", Column("stalled_at", BigInteger))
    op.add_column("fusee_bulk_jobs", Column("item_timeout", Float(53)))
    op.add_column("fusee_bulk_jobs", Column("item_count", BigInteger))
    op.add_column("fusee_bulk_segments", Column("pace", Float(53), nullable=False, server_default=text("0")))
    op.add_column(
        "fusee_bulk_segments", Column("pace_until", BigInteger, nullable=False, server_default=text("0"))
    )
    op.add_column("fusee_bulk_segments", Column("wants", Float(53)))
    op.add_column("fusee_bulk_segments", Column("held_by", String(16)))
    op.add_column(
        "fusee_bulk_segments", Column("taken_attempt", Integer, nullable=False, server_default=text("0"))
    )
    op.add_column("fusee_bulk_segments", Column("caution", String(200)))
    # Places without an item, such as gaps between keys.
    for table in ("jobs", "segments"):
        op.add_column(
            f"fusee_bulk_{table}", Column("absent", BigInteger, nullable=False, server_default=text("0"))
        )
