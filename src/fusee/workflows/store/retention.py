"""Forgetting old workflow runs."""

from __future__ import annotations

from sqlalchemy import Connection, delete, exists, select

from fusee.engine.store.context import StoreContext
from fusee.workflows.store.tables import workflow_nodes, workflow_runs, workflows

__all__ = ["WorkflowRetention"]

MOST_AT_ONCE = 500


class WorkflowRetention:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def prune_workflow_runs(self, connection: Connection, cutoff: int, most: int) -> int:
        """Forget workflow runs that ended before `cutoff`, with about `most` nodes; answers how many.

        Their edges and gates were used up when they ended; their runs have an age of their own.
        """
        query = (
            select(workflow_runs.c.id, workflow_runs.c.total)
            .where(workflow_runs.c.finished_at < cutoff)
            .order_by(workflow_runs.c.finished_at)
            .limit(MOST_AT_ONCE)
        )
        old: list[int] = []
        for row in connection.execute(query).all():
            if old and most <= 0:
                break
            old.append(row.id)
            most -= row.total
        if old:
            connection.execute(delete(workflow_nodes).where(workflow_nodes.c.workflow_run_id.in_(old)))
            connection.execute(delete(workflow_runs).where(workflow_runs.c.id.in_(old)))
        unused = ~exists().where(workflow_runs.c.workflow_id == workflows.c.id)
        connection.execute(delete(workflows).where(workflows.c.deleted_at < cutoff, unused))
        return len(old)
