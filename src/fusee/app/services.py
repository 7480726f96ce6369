"""Every command and query that a person can issue, on one store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fusee.access.service import KeyOperations
from fusee.batches.service.batches import BatchOperations
from fusee.broker.store_rpc import StoreRpc
from fusee.bulk.business import Business, Businesses, HttpBusiness
from fusee.bulk.service.businesses import BusinessOperations
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.sources.limits import SourceLimits
from fusee.engine.model.run import RunSpec
from fusee.errors import Invalid
from fusee.executors.registry import check_payload
from fusee.runs.service.callbacks import CallbackOperations
from fusee.runs.service.dead_letters import DeadLetterOperations
from fusee.runs.service.queues import QueueOperations
from fusee.runs.service.runs import RunOperations
from fusee.runs.service.workers import WorkerOperations
from fusee.stores import Store
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.service.templates import TemplateOperations
from fusee.workflows.service import WorkflowOperations

if TYPE_CHECKING:
    from fusee.app.core import Core

__all__ = ["SERVED", "AppServices"]

SERVED: Mapping[str, type] = {
    "runs": RunOperations,
    "workers": WorkerOperations,
    "queues": QueueOperations,
    "keys": KeyOperations,
    "tasks": TaskOperations,
    "templates": TemplateOperations,
    "workflows": WorkflowOperations,
    "batches": BatchOperations,
    "bulk_jobs": BulkOperations,
    "businesses": BusinessOperations,
}
"""The services that surfaces are given, by the noun of their actions (`fusee.access.actions`)."""


class AppServices:
    """The services of one namespace.

    A worker of this process serves the namespace of the app only: for another one (`own=False`), its handlers
    and businesses are unknown. `trusted` is for calls by the program itself, not by requests and runs.
    """

    def __init__(
        self,
        core: Core,
        store: Store,
        *,
        own: bool = True,
        businesses: Businesses | None = None,
        trusted: bool = False,
    ) -> None:
        self.core = core
        self.store = store
        known_handlers = store.sessions.known_handlers
        allowed = core.config.executors.bulk
        if businesses is None:
            businesses = core.businesses if own else Businesses()
        self.runs = RunOperations(
            store, core.bus, handlers=core.handlers if own else (), check_payload=self._check_payload
        )
        self.workers = WorkerOperations(store)
        self.queues = QueueOperations(store)
        self.dead_letters = DeadLetterOperations(store)
        self.callbacks = CallbackOperations(store, core.bus)
        self.keys = KeyOperations(store.api_keys, core.config.api.keys)
        self.tasks = TaskOperations(store.tasks, self.runs.check, core.reach, now_us=core.clock.now_us)
        self.templates = TemplateOperations(store.tasks)
        self.workflows = WorkflowOperations(store.workflows, self.runs.check)
        self.batches = BatchOperations(store.batches, core.operations, known_handlers)
        self.bulk_jobs = BulkOperations(
            store.bulk,
            businesses,
            core.sources,
            known_handlers,
            self._remote_business,
            SourceLimits(allowed.folders, allowed.databases),
            trusted=trusted,
        )
        self.businesses = BusinessOperations(store.bulk, businesses, known_handlers, self._check_business)

    def rpc(self) -> StoreRpc:
        """The calls of workers without a database."""
        return StoreRpc(
            store=self.store,
            runs=self.runs,
            batches=self.batches,
            bulk_jobs=self.bulk_jobs,
            workflows=self.workflows,
            tasks=self.tasks,
        )

    def _check_payload(self, spec: RunSpec) -> None:
        check_payload(spec.executor, spec.payload or {}, self.core.config.executors, self.core.reach)

    def _remote_business(self, spec: HttpBusiness) -> Business:
        self._refuse_http()
        return self.core.http_businesses(spec)

    def _check_business(self, spec: HttpBusiness) -> None:
        self._refuse_http()
        self.core.http_businesses.check(spec)

    def _refuse_http(self) -> None:
        if not self.core.config.executors.http.enabled:
            raise Invalid("businesses over HTTP are off here: set executors.http.enabled = true")
