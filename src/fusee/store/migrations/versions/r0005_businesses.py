"""Businesses over HTTP; where an item came from. Frozen: later changes are later revisions. Expands only."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"

metadata = MetaData()

Long = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")

TABLE: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

businesses = Table(
    "fusee_businesses",
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


def upgrade() -> None:
    op.add_column("fusee_bulk_jobs", Column("handler", String(128)))
    op.add_column("fusee_bulk_quarantine", Column("origin", BigInteger))
    metadata.create_all(op.get_bind(), checkfirst=False)
