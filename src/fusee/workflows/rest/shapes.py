"""What the API answers about workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, Field

from fusee.engine.model.states import RunStatus
from fusee.surfaces.rest.times import show_time
from fusee.tasks.model.task import TriggerRule
from fusee.workflows.model.workflow import Workflow, WorkflowSpec, WorkflowSummary
from fusee.workflows.model.workflow_run import WorkflowNode, WorkflowRun, WorkflowStatus
from fusee.workflows.store.start import StartedWorkflow

__all__ = [
    "GraphNodeOut",
    "GraphOut",
    "NodeOut",
    "RunGraphOut",
    "WorkflowBrief",
    "WorkflowOut",
    "WorkflowPage",
    "WorkflowRunOut",
    "WorkflowRunPage",
    "WorkflowStarted",
]


class WorkflowBrief(BaseModel):
    """A workflow in a list: `nodes` is how many it has."""

    id: int
    namespace: str
    name: str
    description: str
    nodes: int
    version: int
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, workflow: WorkflowSummary) -> Self:
        return cls(**_facts(workflow), nodes=workflow.nodes)


class WorkflowPage(BaseModel):
    items: list[WorkflowBrief]
    next_cursor: str | None


class WorkflowOut(BaseModel):
    """A workflow, whole; of params and nodes, what differs from the defaults."""

    id: int
    namespace: str
    name: str
    description: str
    params: dict[str, dict[str, Any]]
    nodes: list[dict[str, Any]]
    version: int
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, workflow: Workflow) -> Self:
        written = workflow.spec.to_dict()
        return cls(**_facts(workflow), params=written.get("params", {}), nodes=written["nodes"])


def _facts(workflow: WorkflowSummary) -> dict[str, Any]:
    return {
        "id": workflow.id,
        "namespace": workflow.namespace,
        "name": workflow.name,
        "description": workflow.description,
        "version": workflow.version,
        "created_at": show_time(workflow.created_at),
        "updated_at": show_time(workflow.updated_at),
    }


class GraphNodeOut(BaseModel):
    """A node and the edges that lead to it. `level` is its column in a drawing: no edge leads back."""

    name: str
    level: int
    after: list[str]
    trigger_rule: TriggerRule


class GraphOut(BaseModel):
    """A page of nodes; `total` is how many there are in all."""

    total: int
    nodes: list[GraphNodeOut]
    next_cursor: str | None

    @classmethod
    def of(cls, spec: WorkflowSpec, begin: int, limit: int, next_cursor: str | None) -> Self:
        levels = spec.levels()
        return cls(
            total=len(spec.nodes),
            nodes=[
                GraphNodeOut(
                    name=node.name,
                    level=levels[node.name],
                    after=list(node.after),
                    trigger_rule=node.trigger_rule,
                )
                for node in spec.nodes[begin : begin + limit]
            ],
            next_cursor=next_cursor,
        )


class NodeOut(GraphNodeOut):
    """A node of a workflow run, and the run that it is."""

    run_id: int
    status: RunStatus
    attempt: int | None
    reason: str | None

    @classmethod
    def of(cls, node: WorkflowNode) -> Self:
        return cls(
            name=node.name,
            level=node.level,
            after=list(node.after),
            trigger_rule=node.trigger_rule,
            run_id=node.run_id,
            status=node.status,
            attempt=node.attempt,
            reason=node.reason,
        )


class RunGraphOut(BaseModel):
    total: int
    nodes: list[NodeOut]
    next_cursor: str | None


class WorkflowStarted(BaseModel):
    """A workflow run; `created` is false for a repeated idempotency key."""

    id: int
    created: bool

    @classmethod
    def of(cls, started: StartedWorkflow) -> Self:
        return cls(id=started.id, created=started.created)


class WorkflowRunOut(BaseModel):
    """A workflow run with its counters; `ended` is the sum of the other four."""

    id: int
    namespace: str
    workflow: str
    version: int
    status: WorkflowStatus
    reason: str | None
    params: dict[str, Any]
    total: int
    ended: int
    succeeded: int
    failed: int
    skipped: int
    canceled: int
    waiter: int | None = Field(description="The run that waits for this one.")
    origin_id: int | None = Field(
        description="The workflow run whose unsuccessful nodes this one does again."
    )
    idempotency_key: str | None
    created_at: str
    finished_at: str | None
    cancel_requested_at: str | None

    @classmethod
    def of(cls, run: WorkflowRun) -> Self:
        return cls(
            id=run.id,
            namespace=run.namespace,
            workflow=run.workflow,
            version=run.version,
            status=run.status,
            reason=run.reason,
            params=dict(run.params),
            total=run.total,
            ended=run.ended,
            succeeded=run.succeeded,
            failed=run.failed,
            skipped=run.skipped,
            canceled=run.canceled,
            waiter=run.waiter,
            origin_id=run.origin_id,
            idempotency_key=run.idempotency_key,
            created_at=show_time(run.created_at) or "",
            finished_at=show_time(run.finished_at),
            cancel_requested_at=show_time(run.cancel_requested_at),
        )


class WorkflowRunPage(BaseModel):
    items: list[WorkflowRunOut]
    next_cursor: str | None

    @classmethod
    def of(cls, runs: Sequence[WorkflowRun], next_cursor: str | None) -> Self:
        return cls(items=[WorkflowRunOut.of(run) for run in runs], next_cursor=next_cursor)
