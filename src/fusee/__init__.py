"""Fusee runs work on time, in bulk, and back again, on the database you already have."""

from fusee.app import Fusee, RunHandle
from fusee.errors import FuseeError, RunFailed
from fusee.model import Abandon, Done, Retry, RetryPolicy, Run, RunSpec, RunStatus, Skip
from fusee.version import __version__
from fusee.worker import RunContext, current_run

__all__ = [
    "Abandon",
    "Done",
    "Fusee",
    "FuseeError",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunContext",
    "RunFailed",
    "RunHandle",
    "RunSpec",
    "RunStatus",
    "Skip",
    "__version__",
    "current_run",
]
