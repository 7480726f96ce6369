"""The engine's store: every part that knows runs, composed."""

from __future__ import annotations

from fusee.engine.owners import Owners
from fusee.engine.store.aging import Aging
from fusee.engine.store.callback_waits import CallbackWaits
from fusee.engine.store.callbacks import Callbacks
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.claims import AssignedClaims, Claims
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import LaneMap
from fusee.engine.store.database import Database
from fusee.engine.store.dead_letters import DeadLetters
from fusee.engine.store.dispatches import Dispatches
from fusee.engine.store.edit_lock import EditLock
from fusee.engine.store.gates import Gates
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.outbox import Aggregation, Outbox
from fusee.engine.store.own_lanes import OwnLanes
from fusee.engine.store.parents import Parents
from fusee.engine.store.queues import Queues
from fusee.engine.store.ready_queue import ReadyQueue
from fusee.engine.store.recovery import Recovery
from fusee.engine.store.retention import Retention
from fusee.engine.store.retry_policies import RetryPolicies
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.runs import Runs
from fusee.engine.store.sessions import Sessions
from fusee.engine.store.settle import Outcomes
from fusee.engine.store.starting import Starts
from fusee.engine.store.totals import Totals
from fusee.engine.store.wakes import Wakes

__all__ = ["EngineStore"]


class EngineStore:
    """What can be asked of the database about runs, queues, sessions and callbacks, for one namespace."""

    def __init__(self, context: StoreContext) -> None:
        self.context = context
        self.owners = Owners()
        self.claims = Claims(context)
        self.ready_queue = ReadyQueue(context)
        self.lanes = Lanes(context)
        self.run_writer = RunWriter(context, self.ready_queue, self.lanes)
        self.outbox = Outbox(context, self.owners)
        self.cancels = Cancels(context, self.ready_queue, self.outbox)
        self.retry_policies = RetryPolicies(context)
        self.callback_waits = CallbackWaits(context, self.retry_policies)
        self.outcomes = Outcomes(context, self.owners, self.ready_queue, self.outbox, self.callback_waits)
        self.parents = Parents(context, self.outcomes)
        self.gates = Gates(context, self.owners, self.ready_queue, self.outbox)
        self.edit_lock = EditLock(context)
        self.aging = Aging(context, self.ready_queue)
        self.runs = Runs(context, self.cancels)
        self.queues = Queues(context, self.ready_queue, self.runs, self.lanes)
        self.assigned_claims = AssignedClaims(context, self.ready_queue, self.queues)
        self.callbacks = Callbacks(context, self.retry_policies, self.outcomes)
        self.dead_letters = DeadLetters(context, self.cancels)
        self.dispatches = Dispatches(context, self.ready_queue)
        self.own_lanes = OwnLanes(context, self.ready_queue)
        self.sessions = Sessions(context, self.own_lanes)
        self.starts = Starts(context, self.sessions, self.dispatches)
        self.totals = Totals(context)
        self.aggregation = Aggregation(context, self.owners)
        self.retention = Retention(context, self.owners)
        self.recovery = Recovery(context, self.retry_policies, self.outcomes, self.own_lanes)

    @property
    def database(self) -> Database:
        return self.context.database

    @property
    def namespace(self) -> str:
        """The tenant whose rows are visible."""
        return self.context.namespace

    @property
    def wakes(self) -> Wakes:
        return self.context.wakes

    @property
    def lane_map(self) -> LaneMap:
        """The lanes and limits as last read."""
        return self.context.lane_map
