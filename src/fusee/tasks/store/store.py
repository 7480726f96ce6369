"""The store of tasks, composed of its parts."""

from __future__ import annotations

from fusee.engine.store.context import StoreContext
from fusee.engine.store.engine_store import EngineStore
from fusee.tasks.store.admission import Admission
from fusee.tasks.store.alerts import TaskAlerts
from fusee.tasks.store.backfills import Backfills
from fusee.tasks.store.dependencies import TaskDependencies
from fusee.tasks.store.fire_writer import FireWriter
from fusee.tasks.store.firing import Firing
from fusee.tasks.store.history import FireHistory
from fusee.tasks.store.owner import TaskOwner
from fusee.tasks.store.state import TaskStates
from fusee.tasks.store.steering import Steering
from fusee.tasks.store.tasks import TaskDefinitions
from fusee.tasks.store.triggers import Triggers
from fusee.tasks.store.upstreams import Upstreams

__all__ = ["TaskStore"]


class TaskStore:
    """What can be asked of the database about tasks, for one namespace."""

    def __init__(self, context: StoreContext, engine: EngineStore) -> None:
        self.engine = engine
        self.states = TaskStates()
        self.upstreams = Upstreams(context, engine.gates, engine.outbox)
        self.admission = Admission(context, engine.gates, self.upstreams)
        self.alerts = TaskAlerts(context, engine.run_writer, engine.lanes)
        self.writer = FireWriter(context, engine.run_writer, engine.lanes, self.upstreams)
        self.firing = Firing(
            context,
            self.states,
            engine.gates,
            engine.cancels,
            self.upstreams,
            self.admission,
            self.alerts,
            self.writer,
        )
        self.dependencies = TaskDependencies(context, engine.edit_lock)
        self.definitions = TaskDefinitions(context, engine.lanes, self.dependencies)
        self.triggers = Triggers(context, self.firing, self.definitions, engine.run_writer)
        self.backfills = Backfills(context, self.firing, self.definitions)
        self.history = FireHistory(context, self.definitions)
        self.steering = Steering(
            context,
            self.dependencies,
            self.admission,
            self.definitions,
            self.firing,
            engine.lanes,
            engine.outbox,
        )
        self.owner = TaskOwner(self.firing, self.upstreams, self.triggers, engine.runs)
