"""A workflow run: its status is a total function of how its nodes ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.states import RunStatus
from fusee.values.fields import Mark
from fusee.values.kinds import TIME
from fusee.values.words import Word

__all__ = ["WORKFLOW_RUN_STEPS", "WorkflowNode", "WorkflowRun", "WorkflowStatus", "workflow_status"]


class WorkflowStatus(Word):
    """The status of a workflow run. It has ended when every node has ended, and not before."""

    RUNNING = "running"
    """Some node has not ended."""
    SUCCEEDED = "succeeded"
    """Every node succeeded, or had nothing to do: it skipped itself, or waited for one that did."""
    FAILED = "failed"
    """Some node failed or timed out."""
    CANCELED = "canceled"
    """Some node was canceled: the whole workflow run was, or that node alone and none failed."""


WORKFLOW_RUN_STEPS: Mapping[tuple[WorkflowStatus, str], WorkflowStatus] = {
    (WorkflowStatus.RUNNING, "succeed"): WorkflowStatus.SUCCEEDED,
    (WorkflowStatus.RUNNING, "fail"): WorkflowStatus.FAILED,
    (WorkflowStatus.RUNNING, "cancel"): WorkflowStatus.CANCELED,
}
"""(status, verb) → status; what is not here cannot happen."""


def workflow_status(
    *, total: int, ended: int, succeeded: int, skipped: int, canceled: int, cancel_requested: bool
) -> WorkflowStatus:
    """The status of a workflow run with these counts; nodes that ended in another way have failed.

    A node is skipped when it says so itself, or when its trigger rule cannot be met any more. In the
    second case some node before it failed, was canceled or skipped itself, and is counted as that: so
    skipped nodes decide nothing. A cancel that came too late to stop any node decides nothing either.
    """
    if ended < total:
        return WorkflowStatus.RUNNING
    failed = ended - succeeded - skipped - canceled
    verb = "fail" if failed else "succeed"
    if canceled and (cancel_requested or not failed):
        verb = "cancel"
    return WORKFLOW_RUN_STEPS[WorkflowStatus.RUNNING, verb]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRun:
    """A workflow run as people see it; reading one costs the same whatever the size of its graph."""

    id: int
    namespace: str
    workflow: str
    version: Annotated[int, "Of the workflow, when it was started."]
    status: WorkflowStatus
    reason: str | None
    params: Mapping[str, Any]
    total: int
    ended: int
    succeeded: int
    skipped: int
    canceled: int
    parent_run: Annotated[int | None, "The run that waits for this one."]
    origin_id: Annotated[int | None, "The workflow run whose unsuccessful nodes this one does again."]
    idempotency_key: str | None
    created_at: Annotated[int, TIME]
    finished_at: Annotated[int | None, TIME]
    cancel_requested_at: Annotated[int | None, TIME]

    @property
    def failed(self) -> Annotated[int, "Nodes that failed or timed out."]:
        return self.ended - self.succeeded - self.skipped - self.canceled

    @property
    def over(self) -> bool:
        return self.finished_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowNode:
    """A node of a workflow run."""

    position: Annotated[int, Mark.HIDDEN]
    name: str
    level: Annotated[int, "How many steps lie before it, on the longest way: its column in a drawing."]
    after: tuple[str, ...]
    trigger_rule: TriggerRule
    run_id: int
    status: RunStatus
    attempt: Annotated[int | None, "Of its run; null once that is pruned."]
    reason: str | None
