"""Every command and query a person can issue, by noun; REST, CLI and SDK are thin skins on it."""

from fusee.operations.apply import Change, apply, plan
from fusee.operations.batches import BatchOperations, batch_from_fields, target_from
from fusee.operations.bulk import BulkOperations, bulk_from_fields, source_brief
from fusee.operations.businesses import HIDDEN, BusinessOperations, business_from
from fusee.operations.callbacks import CallbackAnswer, CallbackOperations, callback_end
from fusee.operations.documents import DURATIONS, document_of, read_document
from fusee.operations.explain import Explanation
from fusee.operations.http_fields import HTTP
from fusee.operations.letters import LetterOperations
from fusee.operations.old_names import ALIASES, STATUSES
from fusee.operations.owned_runs import Retried
from fusee.operations.platform import ROLES, Caller, KeyOperations, QueueOperations, digest
from fusee.operations.runs import CancelAnswer, RunOperations, RunWithAttempts, spec_from
from fusee.operations.simulation import Compared, Simulation
from fusee.operations.task_fields import (
    FIELDS,
    POLICY_FIELDS,
    enabled_from,
    fields_from,
    policy_fields,
    policy_from,
    task_from,
)
from fusee.operations.tasks import TaskOperations
from fusee.operations.templates import TEMPLATE_FIELDS, TemplateOperations, template_from
from fusee.operations.workers import WORKER_STATES, WorkerFilter, WorkerOperations
from fusee.operations.workflow_fields import NODE_FIELDS, WORKFLOW_FIELDS, workflow_from
from fusee.operations.workflows import WorkflowCancelAnswer, WorkflowOperations
from fusee.store import (
    Backfilled,
    BatchFilter,
    BulkFilter,
    Enqueued,
    FireFilter,
    GraphPage,
    RunFilter,
    StartedWorkflow,
    TargetFilter,
    TaskFilter,
    Triggered,
    WorkflowFilter,
    WorkflowRunFilter,
)

__all__ = [
    "ALIASES",
    "DURATIONS",
    "FIELDS",
    "HIDDEN",
    "HTTP",
    "NODE_FIELDS",
    "POLICY_FIELDS",
    "ROLES",
    "STATUSES",
    "TEMPLATE_FIELDS",
    "WORKER_STATES",
    "WORKFLOW_FIELDS",
    "Backfilled",
    "BatchFilter",
    "BatchOperations",
    "BulkFilter",
    "BulkOperations",
    "BusinessOperations",
    "CallbackAnswer",
    "CallbackOperations",
    "Caller",
    "CancelAnswer",
    "Change",
    "Compared",
    "Enqueued",
    "Explanation",
    "FireFilter",
    "GraphPage",
    "KeyOperations",
    "LetterOperations",
    "QueueOperations",
    "Retried",
    "RunFilter",
    "RunOperations",
    "RunWithAttempts",
    "Simulation",
    "StartedWorkflow",
    "TargetFilter",
    "TaskFilter",
    "TaskOperations",
    "TemplateOperations",
    "Triggered",
    "WorkerFilter",
    "WorkerOperations",
    "WorkflowCancelAnswer",
    "WorkflowFilter",
    "WorkflowOperations",
    "WorkflowRunFilter",
    "apply",
    "batch_from_fields",
    "bulk_from_fields",
    "business_from",
    "callback_end",
    "digest",
    "document_of",
    "enabled_from",
    "fields_from",
    "plan",
    "policy_fields",
    "policy_from",
    "read_document",
    "source_brief",
    "spec_from",
    "target_from",
    "task_from",
    "template_from",
    "workflow_from",
]
