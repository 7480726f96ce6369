"""What a message broker was handed, and what it gave up. Expands only: older versions do not look here."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    false,
    text,
)
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"

metadata = MetaData()

Id = BigInteger().with_variant(Integer, "sqlite")
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

dispatched = Table(
    "fusee_dispatched",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("lane_id", Integer, nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("published_at", BigInteger, nullable=False),
    Column("deaths", Integer, nullable=False, server_default=text("0")),
    Column("held", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Index("fusee_dispatched_order", "lane_id", "level", "published_at"),
    sqlite_with_rowid=False,
    **TABLE,
)

openings = Table(
    "fusee_openings",
    metadata,
    Column("request", String(64), primary_key=True),
    Column("session_id", BigInteger, nullable=False),
    sqlite_with_rowid=False,
    **TABLE,
)

dead_letters = Table(
    "fusee_dead_letters",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("queue", String(255), nullable=False),
    Column("reason", String(100), nullable=False),
    Column("died_at", BigInteger, nullable=False),
    Column("run_ids", Long, nullable=False),
    Column("body", Long, nullable=False),
    Column("binary", Boolean(create_constraint=False), nullable=False),
    **NUMBERED,
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
