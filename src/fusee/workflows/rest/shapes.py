"""What callers send about workflows, and what they get."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fusee.engine.model.gate import TriggerRule
from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.surfaces.rest.asking import Body
from fusee.surfaces.rest.bodies import VERSION, Incoming
from fusee.workflows.model.workflow import WORKFLOW, Workflow, WorkflowSummary
from fusee.workflows.model.workflow_run import WorkflowNode, WorkflowRun

__all__ = [
    "CREATE",
    "REPLACE",
    "GraphOut",
    "NodeOut",
    "RunGraphOut",
    "StartIn",
    "WorkflowOut",
    "WorkflowPage",
    "WorkflowRunOut",
    "WorkflowRunPage",
    "WorkflowStarted",
]

CREATE = Body("WorkflowIn", WORKFLOW.schema("A workflow to make."))
REPLACE = Body(
    "WorkflowReplaceIn",
    {
        **WORKFLOW.schema(
            "A workflow as it shall be. What the server adds is ignored, so that an answer can be sent back;"
            " the name may be left out, since a workflow keeps it.",
            version=VERSION,
        ),
        "required": ["nodes"],
    },
)


class StartIn(Incoming):
    """What a start is given."""

    params: dict[str, Any] = Field(default={}, description="A value for each parameter that has no default.")


WorkflowOut = answer_of("WorkflowOut", Workflow)
WorkflowPage = page_of(answer_of("WorkflowBrief", WorkflowSummary))
WorkflowRunOut = answer_of("WorkflowRunOut", WorkflowRun)
WorkflowRunPage = page_of(WorkflowRunOut)
NodeOut = answer_of("NodeOut", WorkflowNode)


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


class RunGraphOut(BaseModel):
    total: int
    nodes: list[NodeOut]  # type: ignore[valid-type]
    next_cursor: str | None


class WorkflowStarted(BaseModel):
    """A workflow run; `created` is false for a repeated idempotency key."""

    id: int
    created: bool
