"""Runs that started a workflow and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from fusee.model import End
from fusee.model.workflow_run import WorkflowStatus
from fusee.store.awaiting import Awaiting, Outcome, Started
from fusee.store.task_schema import workflow_runs
from fusee.store.workflow_cancels import WorkflowCancels
from fusee.store.workflow_ends import COUNTED

__all__ = ["WorkflowWaiters"]


class WorkflowWaiters(WorkflowCancels, Awaiting):
    def _waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        return self._look_at_waiters(connection, run_ids, WORKFLOW_RUN, self._stop_workflow_run, now)


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
