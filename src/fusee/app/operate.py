"""Every command and query that a person can issue, on this app's store."""

from __future__ import annotations

from typing import Any

from fusee.access.service import KeyOperations
from fusee.app.core import Core
from fusee.batches.service.batches import BatchOperations
from fusee.broker.remote import RemoteBatches, RemoteBulkJobs, RemoteRuns, RemoteTasks, RemoteWorkflows
from fusee.broker.store_rpc import StoreRpc
from fusee.bulk.business import Business, Businesses
from fusee.bulk.model.business import HttpBusiness
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

__all__ = ["Operates"]


class Operates(Core):
    @property
    def runs(self) -> RunOperations:
        if self._storeless:
            return RemoteRuns(self._rpc, self.bus)
        if self._runs_of is not self.store:
            self._runs = RunOperations(
                self.store, self.bus, handlers=self.handlers, check_payload=self._check_payload
            )
            self._runs_of = self.store
        return self._runs

    _runs: RunOperations
    _runs_of: Store | None = None

    @property
    def tasks(self) -> TaskOperations:
        if self._storeless:
            return RemoteTasks(self._rpc, self.reach, self.clock.now_us)
        return self._tasks(self.store, self.runs)

    def _tasks(self, store: Store, runs: RunOperations) -> TaskOperations:
        return TaskOperations(store.tasks, runs.check, self.reach, now_us=self.clock.now_us)

    @property
    def templates(self) -> TemplateOperations:
        return self._templates(self.store)

    def _templates(self, store: Store) -> TemplateOperations:
        return TemplateOperations(store.tasks)

    @property
    def batches(self) -> BatchOperations:
        if self._storeless:
            return RemoteBatches(self._rpc)
        return BatchOperations(self.store.batches, self.operations, self.store.sessions.known_handlers)

    @property
    def bulk_jobs(self) -> BulkOperations:
        if self._storeless:
            return RemoteBulkJobs(self._rpc)
        return self._bulk_jobs(self.store, self.businesses, trusted=True)

    def _bulk_jobs(self, store: Store, businesses: Businesses, *, trusted: bool) -> BulkOperations:
        allowed = self.config.executors.bulk
        return BulkOperations(
            store.bulk,
            businesses,
            self.sources,
            store.sessions.known_handlers,
            self._remote,
            SourceLimits(allowed.folders, allowed.databases),
            trusted=trusted,
        )

    @property
    def business_registry(self) -> BusinessOperations:
        return self._business_registry(self.store, self.businesses)

    def _business_registry(self, store: Store, businesses: Businesses) -> BusinessOperations:
        return BusinessOperations(store.bulk, businesses, store.sessions.known_handlers, self._check_business)

    def _remote(self, spec: HttpBusiness) -> Business:
        self._refuse_http()
        return self.http_businesses(spec)

    def _check_business(self, spec: HttpBusiness) -> None:
        self._refuse_http()
        self.http_businesses.check(spec)

    def _refuse_http(self) -> None:
        if not self.config.executors.http.enabled:
            raise Invalid("businesses over HTTP are off here: set executors.http.enabled = true")

    @property
    def workflows(self) -> WorkflowOperations:
        if self._storeless:
            return RemoteWorkflows(self._rpc)
        return WorkflowOperations(self.store.workflows, self.runs.check)

    @property
    def workers(self) -> WorkerOperations:
        return WorkerOperations(self.store)

    @property
    def queues(self) -> QueueOperations:
        return QueueOperations(self.store)

    @property
    def keys(self) -> KeyOperations:
        return KeyOperations(self.store.api_keys, self.config.api.keys)

    @property
    def dead_letters(self) -> DeadLetterOperations:
        return DeadLetterOperations(self.store)

    @property
    def callbacks(self) -> CallbackOperations:
        return CallbackOperations(self.store, self.bus)

    def _check_payload(self, spec: RunSpec) -> None:
        check_payload(spec.executor, spec.payload or {}, self.config.executors, self.reach)

    async def _create_bulk_job(self, *job: Any, **how: Any) -> Any:
        """For runs, which anybody may have submitted."""
        if self._storeless:
            return await self.bulk_jobs.create(*job, **how)
        return await self._bulk_jobs(self.store, self.businesses, trusted=False).create(*job, **how)

    def _store_rpc(self, namespace: str) -> StoreRpc:
        """What workers without a database may call, in the namespace that their messages name."""
        own = namespace == self.store.namespace
        store = self.store if own else self.store.for_namespace(namespace)
        # As with REST, only the handlers of our own namespace are those of this process.
        runs = RunOperations(
            store, self.bus, handlers=self.handlers if own else (), check_payload=self._check_payload
        )
        return StoreRpc(
            store=store,
            runs=runs,
            batches=BatchOperations(store.batches, self.operations, store.sessions.known_handlers),
            bulk_jobs=self._bulk_jobs(store, self.businesses, trusted=False),
            workflows=WorkflowOperations(store.workflows, runs.check),
            tasks=self._tasks(store, runs),
        )
