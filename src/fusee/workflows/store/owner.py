"""The owner of the runs of workflow nodes: what follows when one ends, and which rows are deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, select

from fusee.engine.model.outcome import End
from fusee.engine.model.run import Run
from fusee.engine.model.states import RunStatus
from fusee.engine.owners import Owner, Reaction, Retried
from fusee.engine.store.parents import Outcome, Parents, StartedKind
from fusee.errors import Conflict
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.ends import COUNTED, WorkflowCancels, WorkflowEnds
from fusee.workflows.store.queries import WorkflowQueries
from fusee.workflows.store.tables import workflow_nodes, workflow_runs, workflows

__all__ = ["WorkflowOwner"]

MOST_AT_ONCE = 500


class WorkflowOwner(Owner):
    kind = "workflow"

    def __init__(
        self, parents: Parents, cancels: WorkflowCancels, ends: WorkflowEnds, queries: WorkflowQueries
    ) -> None:
        self.parents = parents
        self.cancels = cancels
        self.ends = ends
        self.queries = queries

    def reactions(self) -> Mapping[str, Reaction]:
        return {self.kind: self._nodes_ended}

    def _nodes_ended(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        self.ends.workflow_runs_ended(connection, sorted({row.run_id for row in rows}), now)
        return ()

    def parents_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> Collection[int]:
        abandon = self.cancels.stop_workflow_run
        return self.parents.settle_parents(connection, run_ids, WORKFLOW_RUN, abandon, now)

    def forget_old(self, connection: Connection, cutoff: int, most: int) -> int:
        """Delete workflow runs that ended before `cutoff`, with about `most` nodes.

        Their edges and gates were deleted when they ended; their runs have an age of their own.
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

    async def retry(self, run: Run, idempotency_key: str | None) -> Retried:
        """Refused: the other nodes of the workflow run depend on this one."""
        step = await self.queries.workflow_step(run.id)
        if step is None:
            raise Conflict(f"run {run.id} was a step of a workflow that is deleted: start a workflow anew")
        belongs = f"run {run.id} is node {step.node} of workflow run {step.workflow_run_id}"
        if not step.over:
            raise Conflict(
                f"{belongs}, which has not ended: wait for it or cancel it, then run `{step.rerun}`"
            )
        if run.status is RunStatus.SUCCEEDED:
            raise Conflict(
                f"{belongs} and succeeded: `fusee workflow start {step.workflow}` starts all of it anew"
            )
        raise Conflict(f"{belongs}: `{step.rerun}` does the steps again that did not succeed")


def _outcome(started: Any) -> Outcome:
    result = {"workflow_run_id": started.id, "status": started.status}
    match WorkflowStatus(started.status):
        case WorkflowStatus.SUCCEEDED:
            return Outcome(End.SUCCEEDED, "succeeded", None, result)
        case WorkflowStatus.CANCELED:
            return Outcome(End.CANCELED, "was canceled", started.reason, result)
        case _:
            return Outcome(End.FAILED, "failed", started.reason, result)


def _over(started: Any) -> bool:
    return bool(started.status != WorkflowStatus.RUNNING)


WORKFLOW_RUN = StartedKind("workflow run", workflow_runs, _over, _outcome, COUNTED)
