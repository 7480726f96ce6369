"""How runs are retried, for those who judge an attempt without its worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from fusee.model import RetryPolicy
from fusee.store.parts import StorePart
from fusee.store.rows import decode
from fusee.store.schema import lanes, sessions

__all__ = ["Policies"]


class Policies(StorePart):
    def _policies(self, connection: Connection, rows: Sequence[Any]) -> dict[int, RetryPolicy]:
        """By run: its own policy, else what its worker said of the handler, else the default."""
        asked: dict[int, Any] = {row.id: (decode(row.options) or {}).get("retry") for row in rows}
        without = [row for row in rows if asked[row.id] is None]
        handlers = self._handlers(connection, {row.lane_id for row in without})
        said = self._said(connection, {row.session_id for row in without})
        for row in without:
            asked[row.id] = said.get(row.session_id, {}).get(handlers[row.lane_id], {})
        return {run_id: RetryPolicy.from_dict(policy) for run_id, policy in asked.items()}

    def _handlers(self, connection: Connection, lane_ids: set[int]) -> dict[int, str]:
        query = select(lanes.c.id, lanes.c.handler).where(lanes.c.id.in_(lane_ids))
        return {row.id: row.handler for row in connection.execute(query)} if lane_ids else {}

    def _said(self, connection: Connection, session_ids: set[int]) -> dict[int, dict[str, Any]]:
        """How those sessions' handlers are retried, as each said when it began."""
        query = select(sessions.c.id, sessions.c.abilities).where(sessions.c.id.in_(session_ids))
        rows = connection.execute(query).all() if session_ids else []
        return {row.id: decode(row.abilities).get("policies", {}) for row in rows}
