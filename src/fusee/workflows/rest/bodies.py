"""What callers send about workflows; the operations read definitions, so every surface refuses the same."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fusee.engine.model.run import EXECUTORS
from fusee.surfaces.rest.bodies import Incoming, RetryIn
from fusee.surfaces.rest.times import Seconds
from fusee.tasks.model.task import TriggerRule
from fusee.values.names import NAME
from fusee.workflows.model.workflow import MOST_NODES

__all__ = ["StartIn", "WorkflowIn", "WorkflowReplaceIn"]

Name = Annotated[str, Field(pattern=f"^{NAME}$")]


class ParamIn(Incoming):
    """A declared parameter; without a default it must be given."""

    default: Any = Field(default=None, description="Left out: required. null is a value.")
    description: str = Field(default="", max_length=512)


class NodeIn(Incoming):
    """A step: a handler (or a program, or a call), a task's action, or another workflow."""

    name: Name = Field(description="Unique within the workflow.")
    after: list[str] = Field(default=[], description="Nodes that it waits for.")
    trigger_rule: TriggerRule = Field(default=TriggerRule.ALL_SUCCESS, description="When it may start.")
    task: str | None = Field(
        default=None, description="Run what this task runs, with `payload` over its own."
    )
    workflow: str | None = Field(
        default=None, description="Start this one and wait; `payload` is its params."
    )
    handler: str | None = Field(default=None, description="The handler that runs; http and shell need none.")
    executor: str = Field(default="python", description=f"One of {', '.join(EXECUTORS)}.")
    payload: dict[str, Any] = Field(
        default={}, description="`{{param.x}}`, `{{workflow_run_id}}` and `{{node}}` are filled in."
    )
    queue: str = "default"
    region: str = ""
    priority: int = Field(default=0, ge=-1000, le=1000)
    timeout: Seconds | None = Field(default=None, description="For one attempt.")
    retry: RetryIn | None = None


class WorkflowIn(Incoming):
    """A workflow to make."""

    name: Name
    description: str = Field(default="", max_length=512)
    params: dict[str, ParamIn] = Field(default={}, description="What a start may, or must, be given.")
    nodes: list[NodeIn] = Field(min_length=1, max_length=MOST_NODES)


class WorkflowReplaceIn(WorkflowIn):
    """A workflow as it shall be. What the server adds is ignored, so that an answer can be sent back."""

    name: Name = Field(default="", description="May be left out; a workflow keeps its name.")
    version: int | None = Field(
        default=None, ge=1, description="The version that you saw; refused when it is stale."
    )


class TemplateIn(Incoming):
    """A template to make."""

    name: Name
    description: str = Field(default="", max_length=512)
    params: dict[str, ParamIn] = Field(default={}, description="What a task may, or must, give.")
    task: dict[str, Any] = Field(
        description="Fields of a task, as `POST /api/v1/tasks` takes them; `{{param.x}}` in a text stands"
        " for a parameter."
    )


class TemplateReplaceIn(TemplateIn):
    """A template as it shall be. What the server adds is ignored, so that an answer can be sent back."""

    name: Name = Field(default="", description="May be left out; a template keeps its name.")
    version: int | None = Field(
        default=None, ge=1, description="The version that you saw; refused when it is stale."
    )


class StartIn(Incoming):
    """What a start is given."""

    params: dict[str, Any] = Field(default={}, description="A value for each parameter that has no default.")
