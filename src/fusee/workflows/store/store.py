"""The store of workflows, composed of its parts."""

from __future__ import annotations

from fusee.engine.store.context import StoreContext
from fusee.engine.store.engine_store import EngineStore
from fusee.workflows.model.action import NodeTasks
from fusee.workflows.store.definitions import WorkflowDefinitions
from fusee.workflows.store.ends import WorkflowCancels, WorkflowEnds
from fusee.workflows.store.insert import WorkflowWriter
from fusee.workflows.store.owner import WorkflowOwner
from fusee.workflows.store.queries import WorkflowQueries
from fusee.workflows.store.start import WorkflowStarts

__all__ = ["WorkflowStore"]


class WorkflowStore:
    """What can be asked of the database about workflows, for one namespace."""

    def __init__(self, context: StoreContext, engine: EngineStore, tasks: NodeTasks) -> None:
        self.engine = engine
        self.tasks = tasks
        self.ends = WorkflowEnds(context, engine.gates, engine.outbox)
        self.cancels = WorkflowCancels(context, engine.cancels, self.ends, engine.gates)
        self.definitions = WorkflowDefinitions(context)
        self.writer = WorkflowWriter(context, engine.run_writer, engine.gates)
        self.queries = WorkflowQueries(context)
        self.starts = WorkflowStarts(
            context, engine.outbox, self.writer, self.definitions, engine.lanes, tasks
        )
        self.owner = WorkflowOwner(engine.parents, self.cancels, self.ends, self.queries)
