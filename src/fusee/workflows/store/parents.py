"""Runs that started a workflow and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from fusee.engine.model.outcome import End
from fusee.engine.store.context import StoreContext
from fusee.engine.store.parents import Outcome, Parents, Started
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.cancel import WorkflowCancels
from fusee.workflows.store.ends import COUNTED
from fusee.workflows.store.tables import workflow_runs

__all__ = ["WorkflowParents"]


class WorkflowParents:
    def __init__(self, context: StoreContext, parents: Parents, cancels: WorkflowCancels) -> None:
        self.context = context
        self.parents = parents
        self.cancels = cancels

    def waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        return self.parents.look_at_waiters(
            connection, run_ids, WORKFLOW_RUN, self.cancels.stop_workflow_run, now
        )


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


WORKFLOW_RUN = Started("workflow run", workflow_runs, _over, _outcome, COUNTED)
