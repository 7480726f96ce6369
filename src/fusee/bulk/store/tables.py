"""The tables of bulk jobs. A job's row contains its sums, a segment's row its checkpoint: neither grows with
the number of items, and an item has a row only when it was quarantined."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from fusee.engine.store.tables import NUMBERED, TABLE, Id, Long, metadata

__all__ = ["bulk_jobs", "bulk_logs", "bulk_quarantine", "bulk_segments", "businesses"]

bulk_jobs = Table(
    "fusee_bulk_jobs",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(200), nullable=False),
    Column("business", String(128), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(500)),
    Column("doom", String(8)),  # how a stopping job ends: stop or fail
    Column("version", Integer, nullable=False),
    Column("definition", Long, nullable=False),
    Column("source", Long, nullable=False),  # separate: it may be long, and a checkpoint does not read it
    Column("data", Long),
    Column("callbacks", String(100), nullable=False, server_default=text("''")),  # of its business
    Column("undo_of", BigInteger),
    Column("first", BigInteger),  # null until its source was examined
    Column("total", BigInteger),  # places; each has an item unless `item_count` is set
    Column("made", Integer, nullable=False, server_default=text("0")),  # segments that were ever created
    Column("ended", BigInteger, nullable=False, server_default=text("0")),  # places, including `absent` ones
    Column("quarantined", BigInteger, nullable=False, server_default=text("0")),
    Column("allowed", BigInteger),  # quarantined items that do not fail it
    Column("retried", BigInteger, nullable=False, server_default=text("0")),
    Column("replayed", BigInteger, nullable=False, server_default=text("0")),
    Column("concurrency", Integer, nullable=False),
    Column("rate", Float(53), nullable=False),
    Column("rate_at", BigInteger, nullable=False, server_default=text("0")),  # when the next segment begins
    Column("speed", Float(53), nullable=False, server_default=text("0")),
    Column("speed_at", BigInteger, nullable=False, server_default=text("0")),
    Column("launcher", BigInteger),  # the run that prepares it
    Column("parent_run", BigInteger),  # the run that started this job and waits for its end
    Column("idempotency_key", String(200)),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("handler", String(128)),  # the handler of its runs; null: that of its business
    Column("request_digest", String(100)),  # what the idempotency key is bound to
    Column("window", Integer),  # null: as it was created
    Column("held_by", String(16)),  # what keeps it from starting more items
    Column("checking", String(8)),  # its business has not agreed: wait, start (when it has), refused
    Column("checker", BigInteger),  # the run that asks its business
    Column("fingerprint", Text),  # identifies the content of its source, as JSON
    Column("progressed_at", BigInteger, nullable=False, server_default=text("0")),  # when an item ended
    Column("stalled_at", BigInteger),  # when a dispatcher saw that none had ended for too long
    Column("item_timeout", Float(53)),  # 0: none; null: the job is older than the column
    Column("item_count", BigInteger),  # the counted items, when not every place has one; -1: unknown
    Column("absent", BigInteger, nullable=False, server_default=text("0")),  # ended places without an item
    CheckConstraint(
        "status IN ('created', 'waiting_business', 'running', 'stopping', 'stopped', 'finished', 'failed')",
        name="fusee_bulk_jobs_status",
    ),
    CheckConstraint(
        "ended >= 0 AND quarantined >= 0 AND quarantined <= ended AND (total IS NULL OR ended <= total)",
        name="fusee_bulk_jobs_counts",
    ),
    CheckConstraint("(status = 'stopping') = (doom IS NOT NULL)", name="fusee_bulk_jobs_doom"),
    UniqueConstraint("namespace", "idempotency_key", name="fusee_bulk_jobs_key"),
    UniqueConstraint("parent_run", name="fusee_bulk_jobs_parent_run"),
    Index("fusee_bulk_jobs_status_id", "status", "id"),
    Index("fusee_bulk_jobs_finished", "finished_at"),
    **NUMBERED,
)

bulk_segments = Table(
    "fusee_bulk_segments",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    Column("watermark", BigInteger, nullable=False),
    Column("done", Long, nullable=False),  # what is done beyond the watermark, base64
    Column("reached", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False, server_default=text("0")),
    Column("quarantined", BigInteger, nullable=False, server_default=text("0")),
    Column("retried", BigInteger, nullable=False, server_default=text("0")),
    Column("replayed", BigInteger, nullable=False, server_default=text("0")),
    Column("share", Integer, nullable=False, server_default=text("0")),
    Column("state", String(8), nullable=False),
    Column("run_id", BigInteger),
    Column("pace", Float(53), nullable=False, server_default=text("0")),  # its part of the rate
    Column("pace_until", BigInteger, nullable=False, server_default=text("0")),
    Column("wants", Float(53)),  # items per second that it could start; null: no limit is known
    Column("held_by", String(16)),
    Column("taken_attempt", Integer, nullable=False, server_default=text("0")),  # of its run
    Column("caution", String(200)),  # after workers were lost with it: which items may start
    Column("absent", BigInteger, nullable=False, server_default=text("0")),  # ended places without an item
    CheckConstraint(
        "first <= watermark AND watermark <= reached AND reached <= stop", name="fusee_bulk_segments_order"
    ),
    CheckConstraint(
        "quarantined <= ended AND watermark - first <= ended AND ended <= reached - first",
        name="fusee_bulk_segments_counts",
    ),
    CheckConstraint("(state = 'done') = (watermark = stop)", name="fusee_bulk_segments_done"),
    Index("fusee_bulk_segments_run", "run_id"),
    sqlite_with_rowid=False,
    **TABLE,
)

bulk_quarantine = Table(
    "fusee_bulk_quarantine",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("item_index", BigInteger, primary_key=True, autoincrement=False),
    Column("error", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("item", Text),
    Column("at", BigInteger, nullable=False),
    Column("origin", BigInteger),  # its index in the job that it came from, when it is another job's item
    sqlite_with_rowid=False,
    **TABLE,
)

bulk_logs = Table(
    "fusee_bulk_logs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("who", String(128), nullable=False),
    Column("text", Text, nullable=False),
    CheckConstraint("kind IN ('data', 'operator')", name="fusee_bulk_logs_kind"),
    sqlite_with_rowid=False,
    **TABLE,
)

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
"""Businesses that are called over HTTP; those in Python are known from the workers that have them."""
