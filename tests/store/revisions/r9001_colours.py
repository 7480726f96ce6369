"""Colours for lanes. Only the tests have this revision, after all others, to test the machinery with it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, String

from fusee.engine.store import migrate

revision = "9001"
down_revision = [number for number in migrate.known() if number < revision][-1]


def upgrade() -> None:
    op.create_table(
        "fusee_colours",
        Column("id", Integer, primary_key=True),
        Column("name", String(128), nullable=False, unique=True),
    )
    op.add_column("fusee_lanes", Column("colour_id", BigInteger))
    op.add_column("fusee_queues", Column("shade", Integer, nullable=False, server_default="7"))
