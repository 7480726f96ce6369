"""The tables behind a message broker: what it was handed, who opened which session, what it gave up."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, SmallInteger, String, Table, false, text

from fusee.engine.store.tables import NUMBERED, TABLE, Id, Long, metadata

__all__ = ["dead_letters", "dispatched", "openings"]

dispatched = Table(
    "fusee_dispatched",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),  # the one that may start
    Column("lane_id", Integer, nullable=False),
    Column("level", SmallInteger, nullable=False),  # which of the lane's queues: 1 high, 0 normal, -1 low
    Column("published_at", BigInteger, nullable=False),
    Column("deaths", Integer, nullable=False, server_default=text("0")),  # messages of it that were given up
    Column("held", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Index("fusee_dispatched_order", "lane_id", "level", "published_at"),
    sqlite_with_rowid=False,
    **TABLE,
)

openings = Table(
    "fusee_openings",
    metadata,
    Column("request", String(64), primary_key=True),  # however often it arrives, it opens one session
    Column("session_id", BigInteger, nullable=False),
    sqlite_with_rowid=False,
    **TABLE,
)

dead_letters = Table(
    "fusee_dead_letters",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False, unique=True),  # told twice, it is kept once
    Column("queue", String(255), nullable=False),
    Column("reason", String(100), nullable=False),
    Column("died_at", BigInteger, nullable=False),
    Column("run_ids", Long, nullable=False),  # "17,18"; empty when it cannot be read
    Column("body", Long, nullable=False),
    Column("binary", Boolean(create_constraint=False), nullable=False),  # then the body is base64
    **NUMBERED,
)
