"""Every command and query a person can issue, by noun; REST, CLI and SDK are thin skins on it."""

from fusee.operations.apply import Change, apply, plan
from fusee.operations.callbacks import CallbackAnswer, CallbackOperations, callback_end
from fusee.operations.explain import Explanation
from fusee.operations.platform import ROLES, Caller, KeyOperations, QueueOperations, WorkerOperations, digest
from fusee.operations.runs import CancelAnswer, RunOperations, RunWithAttempts, spec_from
from fusee.operations.simulation import Compared, Simulation
from fusee.operations.task_fields import FIELDS, POLICY_FIELDS, fields_from, policy_from, task_from
from fusee.operations.tasks import TaskOperations
from fusee.store import Backfilled, Enqueued, FireFilter, RunFilter, TaskFilter, Triggered

__all__ = [
    "FIELDS",
    "POLICY_FIELDS",
    "ROLES",
    "Backfilled",
    "CallbackAnswer",
    "CallbackOperations",
    "Caller",
    "CancelAnswer",
    "Change",
    "Compared",
    "Enqueued",
    "Explanation",
    "FireFilter",
    "KeyOperations",
    "QueueOperations",
    "RunFilter",
    "RunOperations",
    "RunWithAttempts",
    "Simulation",
    "TaskFilter",
    "TaskOperations",
    "Triggered",
    "WorkerOperations",
    "apply",
    "callback_end",
    "digest",
    "fields_from",
    "plan",
    "policy_from",
    "spec_from",
    "task_from",
]
