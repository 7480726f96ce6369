"""Fusee runs work on time, in bulk, and back again, on the database you already have.

Names are imported when they are first used: a child process that runs one handler does not pay for the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusee.app import Fusee
    from fusee.bulk.business import BulkContext, ChunkFailed, SelfStart
    from fusee.errors import FuseeError, RunFailed
    from fusee.handles import RunHandle
    from fusee.model import Abandon, Done, Retry, RetryPolicy, Run, RunSpec, RunStatus, Skip
    from fusee.version import __version__
    from fusee.worker.context import RunContext, current_run

__all__ = [
    "Abandon",
    "BulkContext",
    "ChunkFailed",
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
    "SelfStart",
    "Skip",
    "__version__",
    "current_run",
]

_HOMES = {
    "fusee.app": ("Fusee",),
    "fusee.bulk.business": ("BulkContext", "ChunkFailed", "SelfStart"),
    "fusee.errors": ("FuseeError", "RunFailed"),
    "fusee.handles": ("RunHandle",),
    "fusee.model": ("Abandon", "Done", "Retry", "RetryPolicy", "Run", "RunSpec", "RunStatus", "Skip"),
    "fusee.version": ("__version__",),
    "fusee.worker.context": ("RunContext", "current_run"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fusee' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
