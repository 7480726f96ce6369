"""The store and its contract."""

from fusee.store.aggregate import Aggregated
from fusee.store.batch_intake import TakenOver
from fusee.store.batch_looks import BatchFilter, TargetFilter
from fusee.store.batch_moves import handler_of, looker_of
from fusee.store.bulk_checkpoints import BulkAnswer, Found, Progress, Taken
from fusee.store.bulk_looks import BulkFilter
from fusee.store.callbacks import Answered, Concluded, Fate, KnownCallback, token_digest
from fusee.store.contract import Enqueued, Exchanged, Finished, LaneMap, Order, Settlement
from fusee.store.dispatching import Overdue
from fusee.store.firing import Fired
from fusee.store.keys import ApiKey
from fusee.store.letters import DeadLetter
from fusee.store.own_lanes import own_lane
from fusee.store.placement import Assigned
from fusee.store.record import FireFilter, Past
from fusee.store.request_keys import KeyedRequest, RequestDigest, asked, digest_of
from fusee.store.runs import RunFilter
from fusee.store.set_aside import UnreadableRow
from fusee.store.store import Store, open_store
from fusee.store.tasks import TaskFilter
from fusee.store.totals import Total
from fusee.store.triggers import Backfilled, Triggered
from fusee.store.upkeep import Promoted, Pruned, Recovered
from fusee.store.waiter import Waiter
from fusee.store.workflow_cancels import WorkflowCanceled
from fusee.store.workflow_definitions import WorkflowFilter
from fusee.store.workflow_looks import GraphPage, WorkflowRunFilter
from fusee.store.workflow_starts import StartedWorkflow

__all__ = [
    "Aggregated",
    "Answered",
    "ApiKey",
    "Assigned",
    "Backfilled",
    "BatchFilter",
    "BulkAnswer",
    "BulkFilter",
    "Concluded",
    "DeadLetter",
    "Enqueued",
    "Exchanged",
    "Fate",
    "Finished",
    "FireFilter",
    "Fired",
    "Found",
    "GraphPage",
    "KeyedRequest",
    "KnownCallback",
    "LaneMap",
    "Order",
    "Overdue",
    "Past",
    "Progress",
    "Promoted",
    "Pruned",
    "Recovered",
    "RequestDigest",
    "RunFilter",
    "Settlement",
    "StartedWorkflow",
    "Store",
    "Taken",
    "TakenOver",
    "TargetFilter",
    "TaskFilter",
    "Total",
    "Triggered",
    "UnreadableRow",
    "Waiter",
    "WorkflowCanceled",
    "WorkflowFilter",
    "WorkflowRunFilter",
    "asked",
    "digest_of",
    "handler_of",
    "looker_of",
    "open_store",
    "own_lane",
    "token_digest",
]
