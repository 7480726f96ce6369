"""API keys get grants, an expiry, a visible beginning, the time of their last use, and unique names.

Keys of before keep working. They hold no name: two of them may share one, and neither keeps a new key from
having it.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0001"

_COLUMNS = {
    "prefix": "VARCHAR(24)",
    "grants": "TEXT",
    "expires_at": "BIGINT",
    "last_used_at": "BIGINT",
    "held_name": "VARCHAR(128)",
}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.execute(f"ALTER TABLE fusee_api_keys ADD COLUMN {name} {kind}")
    op.execute("CREATE UNIQUE INDEX fusee_api_keys_held_name ON fusee_api_keys (namespace, held_name)")
