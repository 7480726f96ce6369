"""The built-in handler that starts a workflow; its run waits for the workflow run's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fusee.engine.model.outcome import Abandon, Wait
from fusee.engine.store.parents import ParentRun
from fusee.engine.worker.context import RunContext
from fusee.errors import Conflict, Invalid, NotFound
from fusee.workflows.store.start import StartedWorkflow

__all__ = ["WorkflowStarter"]


class StartsWorkflows(Protocol):
    """The store's part that starts workflows, or the way to it over a message broker."""

    async def start_workflow(
        self, name: str, params: dict[str, Any], *, parent: ParentRun
    ) -> StartedWorkflow | None: ...


class WorkflowStarter:
    def __init__(self, workflows: Callable[[], StartsWorkflows]) -> None:
        self.workflows = workflows
        """Called at each start: the app may be closed and opened again."""

    async def start(self, run: RunContext, workflow: str, params: dict[str, Any] | None = None) -> Wait:
        """Start the workflow; a repeated attempt finds the workflow run that an earlier one started."""
        try:
            await self.workflows().start_workflow(
                workflow, params or {}, parent=ParentRun(run.run_id, run.attempt)
            )
        except (NotFound, Invalid, Conflict) as error:  # trying again would not change that
            raise Abandon(str(error)) from None
        return Wait()
