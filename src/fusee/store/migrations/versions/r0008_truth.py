"""What the second round of corrections needs. Frozen: later changes are later revisions. Expands only."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # What an idempotency key is bound to.
    for table in ("runs", "batches", "bulk_jobs", "workflow_runs", "backfills"):
        op.add_column(f"fusee_{table}", Column("request_digest", String(100)))
