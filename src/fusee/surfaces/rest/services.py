"""What the API stands on; the composition root fills it in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from fusee.access.authenticator import Authenticator
from fusee.access.service import KeyOperations
from fusee.batches.service.batches import BatchOperations
from fusee.bulk.service.businesses import BusinessOperations
from fusee.bulk.service.jobs import BulkOperations
from fusee.config import ApiConfig
from fusee.runs.service.callbacks import CallbackOperations
from fusee.runs.service.queues import QueueOperations
from fusee.runs.service.runs import RunOperations
from fusee.runs.service.workers import WorkerOperations
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.service.templates import TemplateOperations
from fusee.workflows.service import WorkflowOperations

__all__ = ["Operations", "Services"]


@dataclass(frozen=True, slots=True)
class Operations:
    """Everything that can be done in one namespace."""

    runs: RunOperations
    workers: WorkerOperations
    queues: QueueOperations
    keys: KeyOperations
    tasks: TaskOperations
    templates: TemplateOperations
    workflows: WorkflowOperations
    batches: BatchOperations
    bulk_jobs: BulkOperations
    businesses: BusinessOperations


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    config: ApiConfig
    namespace: str
    """Where callers without a key act, and where configured keys belong."""
    operations: Callable[[str], Operations]
    """Namespace → operations; answers the same object for the same namespace."""
    authenticator: Authenticator
    callbacks: CallbackOperations
    """Answers of services; each proves by its token whose run it is about."""
    health: Callable[[], Awaitable[Sequence[str]]]
    """Why this process is not ready; nothing when it is."""
    warnings: Callable[[str | None], Sequence[str]] = lambda namespace: ()
    """What is wrong with the work of a namespace, such as a queue that has stalled; None: name no queue."""
    metrics: Callable[[str], Awaitable[bytes]] | None = None
    """What a caller of that namespace may see, as Prometheus reads it; None when metrics are off."""
    version: str = "0"
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server shuts down: whoever holds a request open answers now."""
