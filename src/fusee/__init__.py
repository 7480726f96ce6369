"""Fusee runs work on time, in bulk, and back again, on the database you already have.

Names are imported when they are first used: a child process that runs one handler does not pay for the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.batches.operation import Target
    from fusee.batches.store.queries import TargetFilter
    from fusee.bulk.business import BulkContext, ChunkFailed, SelfStart
    from fusee.engine.model.outcome import Abandon, Done, Effect, End, Retry, Skip
    from fusee.engine.model.queue import QueueLimits
    from fusee.engine.model.retry import RetryPolicy
    from fusee.engine.model.run import Run, RunSpec
    from fusee.engine.model.states import RunStatus
    from fusee.engine.store.runs import RunFilter
    from fusee.engine.worker.context import RunContext, current_run
    from fusee.errors import FuseeError, RunFailed
    from fusee.runs.handle import RunHandle
    from fusee.surfaces.rest.serving import ApiServer
    from fusee.tasks.store.history import FireFilter
    from fusee.version import __version__

__all__ = [
    "Abandon",
    "ApiServer",
    "BulkContext",
    "ChunkFailed",
    "Done",
    "Effect",
    "End",
    "FireFilter",
    "Fusee",
    "FuseeError",
    "QueueLimits",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunContext",
    "RunFailed",
    "RunFilter",
    "RunHandle",
    "RunSpec",
    "RunStatus",
    "SelfStart",
    "Skip",
    "Target",
    "TargetFilter",
    "__version__",
    "current_run",
]

_HOMES = {
    "fusee.app.fusee": ("Fusee",),
    "fusee.batches.operation": ("Target",),
    "fusee.batches.store.queries": ("TargetFilter",),
    "fusee.bulk.business": ("BulkContext", "ChunkFailed", "SelfStart"),
    "fusee.errors": ("FuseeError", "RunFailed"),
    "fusee.runs.handle": ("RunHandle",),
    "fusee.engine.model.outcome": ("Abandon", "Done", "Effect", "End", "Retry", "Skip"),
    "fusee.engine.model.retry": ("RetryPolicy",),
    "fusee.engine.model.run": ("Run", "RunSpec"),
    "fusee.engine.model.states": ("RunStatus",),
    "fusee.version": ("__version__",),
    "fusee.engine.model.queue": ("QueueLimits",),
    "fusee.engine.store.runs": ("RunFilter",),
    "fusee.tasks.store.history": ("FireFilter",),
    "fusee.surfaces.rest.serving": ("ApiServer",),
    "fusee.engine.worker.context": ("RunContext", "current_run"),
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
