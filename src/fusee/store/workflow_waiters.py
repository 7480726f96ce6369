"""Runs that started a workflow and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, select, update

from fusee.model import TERMINAL, Effect, End, Ended, RunStatus, Verdict
from fusee.model.workflow_run import WorkflowStatus
from fusee.store.contract import Settlement
from fusee.store.schema import runs, tickets
from fusee.store.settle import RULED_BY, Settle
from fusee.store.task_schema import workflow_runs
from fusee.store.workflow_cancels import WorkflowCancels
from fusee.store.workflow_ends import COUNTED, portions

__all__ = ["WorkflowWaiters"]


class WorkflowWaiters(WorkflowCancels, Settle):
    def _waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        """Each of these runs started a workflow, perhaps: end it with its workflow run, or that with it.

        Answers those whose attempt still runs: nobody knows yet whether it will wait.
        """
        again: list[int] = []
        for part in portions(run_ids):
            mine = select(*COUNTED).where(workflow_runs.c.waiter.in_(part)).order_by(workflow_runs.c.id)
            started = {row.waiter: row for row in connection.execute(mine.with_for_update())}
            known = select(*RULED_BY).where(runs.c.id.in_(started)).order_by(runs.c.id).with_for_update()
            for run in connection.execute(known).all() if started else ():
                again += self._look_at_waiter(connection, run, started[run.id], now)
        return again

    def _look_at_waiter(self, connection: Connection, run: Any, started: Any, now: int) -> list[int]:
        over = started.status != WorkflowStatus.RUNNING
        status = RunStatus(run.status)
        if status is RunStatus.RUNNING:
            return [run.id]
        if status is RunStatus.WAITING and over:
            self._apply(connection, [(_end(run, started), run)], now)
        elif status is RunStatus.WAITING:
            waits = {"reason": f"waits for workflow run {started.id}"}
            connection.execute(update(runs).where(runs.c.id == run.id).values(waits))
            # Its nodes may need the place that it takes in a queue with limits.
            connection.execute(delete(tickets).where(tickets.c.run_id == run.id))
        elif status in TERMINAL and not over:
            reason = f"run {run.id}, which started it, ended {status}"
            self._stop_workflow_run(connection, started, reason, now)
        # else: it is tried again, asks for the same workflow run, and is looked at then.
        return []


def _end(run: Any, started: Any) -> Settlement:
    """How a run ends whose workflow run has ended. Not retried: it would find the same workflow run again."""
    what = f"workflow run {started.id}"
    result = msgspec.json.encode({"workflow_run_id": started.id, "status": started.status}).decode()
    match WorkflowStatus(started.status):
        case WorkflowStatus.SUCCEEDED:
            ended = Ended(End.SUCCEEDED, result=result, effect=Effect.APPLIED)
            verdict = Verdict("succeed", RunStatus.SUCCEEDED, f"{what} succeeded", counted=False)
        case WorkflowStatus.CANCELED:
            ended = Ended(End.CANCELED, result=result, error=f"{what} was canceled: {started.reason}")
            verdict = Verdict("cancel", RunStatus.CANCELED, f"{what} was canceled")
        case _:
            ended = Ended(End.FAILED, result=result, error=f"{what} failed: {started.reason}")
            verdict = Verdict("fail", RunStatus.FAILED, f"{what} failed")
    return Settlement(run.id, run.attempt, ended, verdict, ticket=True)
