"""Every command and query a person can issue, by noun; REST, CLI and SDK are thin skins on it."""

from fusee.operations.platform import ROLES, Caller, KeyOperations, QueueOperations, WorkerOperations, digest
from fusee.operations.runs import CancelAnswer, RunOperations, RunWithAttempts, spec_from
from fusee.store import Enqueued, RunFilter

__all__ = [
    "ROLES",
    "Caller",
    "CancelAnswer",
    "Enqueued",
    "KeyOperations",
    "QueueOperations",
    "RunFilter",
    "RunOperations",
    "RunWithAttempts",
    "WorkerOperations",
    "digest",
    "spec_from",
]
