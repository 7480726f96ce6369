"""How runs are retried, for those who judge an attempt without its worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode
from fusee.engine.store.tables import lanes, sessions

__all__ = ["RetryPolicies"]


class RetryPolicies:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def policies(self, connection: Connection, rows: Sequence[Any]) -> dict[int, RetryPolicy]:
        """By run: its own policy, else what its worker said of the handler, else the default."""
        asked: dict[int, Any] = {row.id: self._asked(row) for row in rows}
        without = [row for row in rows if asked[row.id] is None]
        handlers = self.handlers(connection, {row.lane_id for row in without})
        said = self._said(connection, {row.session_id for row in without})
        for row in without:
            asked[row.id] = said.get(row.session_id, {}).get(handlers[row.lane_id], {})
        return {run_id: self._policy(run_id, policy) for run_id, policy in asked.items()}

    def _asked(self, row: Any) -> Any:
        """The run's own policy. Its end must be judged, so options that cannot be read count as not given."""
        for retry in self.context.set_aside.readable("policies", "run", [row], _retry_of):
            return retry
        return None

    def _policy(self, run_id: int, policy: Any) -> RetryPolicy:
        try:
            return RetryPolicy.as_stored(policy)
        except (TypeError, ValueError):  # of a run, reported by `_asked`; of a handler, as if it had none
            return RetryPolicy()

    def handlers(self, connection: Connection, lane_ids: set[int]) -> dict[int, str]:
        query = select(lanes.c.id, lanes.c.handler).where(lanes.c.id.in_(lane_ids))
        return {row.id: row.handler for row in connection.execute(query)} if lane_ids else {}

    def _said(self, connection: Connection, session_ids: set[int]) -> dict[int, dict[str, Any]]:
        """How those sessions' handlers are retried, as each said when it began."""
        query = select(sessions.c.id, sessions.c.abilities).where(sessions.c.id.in_(session_ids))
        rows = connection.execute(query).all() if session_ids else []
        read = self.context.set_aside.readable("sessions", "worker session", rows, _policies_of)
        return dict(read)


def _retry_of(row: Any) -> Any:
    retry = (decode(row.options) or {}).get("retry")
    if retry is not None:
        RetryPolicy.as_stored(retry)
    return retry


def _policies_of(row: Any) -> tuple[int, dict[str, Any]]:
    return row.id, decode(row.abilities).get("policies", {})
