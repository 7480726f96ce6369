"""What every part of an app shares: its settings, its bus, its store, and the services on that."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, cast

from fusee.access.authenticator import Authenticator
from fusee.access.service import KeyOperations
from fusee.app.services import AppServices
from fusee.batches.handlers import Images
from fusee.batches.operation import OperationRegistry
from fusee.batches.service.batches import BatchOperations
from fusee.broker.remote import (
    NoStore,
    RemoteBatches,
    RemoteBulkJobs,
    RemoteRuns,
    RemoteStore,
    RemoteTasks,
    RemoteWorkflows,
    in_child_process,
)
from fusee.broker.store_rpc import Rpc
from fusee.bulk.business import Businesses
from fusee.bulk.execution.handler import BulkServer
from fusee.bulk.execution.http import HttpBusinesses, Posts
from fusee.bulk.execution.pacer import NodeCap
from fusee.bulk.service.businesses import BusinessOperations
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.sources.builtin import builtin_sources
from fusee.bulk.sources.limits import SizeLimits
from fusee.bulk.store.store import BulkBackend, DatabaseBackend
from fusee.clock import Clock, SystemClock
from fusee.config import Config, load
from fusee.engine.store.set_aside import UnreadableRow
from fusee.engine.worker.handlers import Handlers
from fusee.errors import NoDatabase
from fusee.events import Bus, Event, RowReadable, RowSetAside
from fusee.executors.http.request import Reach
from fusee.runs.service.callbacks import CallbackOperations
from fusee.runs.service.dead_letters import DeadLetterOperations
from fusee.runs.service.queues import QueueOperations
from fusee.runs.service.runs import RunOperations
from fusee.runs.service.workers import WorkerOperations
from fusee.stores import Store, open_store
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.service.templates import TemplateOperations
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.starter import StartsWorkflows

if TYPE_CHECKING:
    from fusee.broker.rabbitmq.work_source import RabbitWorkSource

__all__ = ["Core"]


class Core:
    """Opened and closed as often as it is used; the last one closes the store."""

    def __init__(
        self,
        database: str | None = None,
        *,
        config: Config | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        overrides: dict[str, Any] = {"namespace": namespace, "database": {"url": database}}
        self.config = config or load(overrides=overrides)
        self.clock = clock or SystemClock()
        self.bus = Bus()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.handlers = Handlers()
        self.operations = OperationRegistry()
        self.businesses = Businesses()
        bulk = self.config.executors.bulk
        self.sources = builtin_sources(
            self._bulk_backend,
            allow_private=self.config.executors.http.allow_private,
            limits=SizeLimits(bulk.max_download, bulk.max_unpacked, bulk.max_record),
        )
        http = self.config.executors.http
        self.reach = Reach(http.allow_private)
        posts = Posts(allow_private=http.allow_private, max_response=http.max_response)
        self.on_close(posts.close)
        self.http_businesses = HttpBusinesses(posts, self.config.callback_url)
        node = NodeCap(self.config.worker.bulk_rate_cap)
        self.bulk_server = BulkServer(
            self._bulk_backend,
            self.sources,
            node,
            self.bus,
            resume_within=self.config.worker.bulk_resume_within,
        )
        self._store: Store | None = None
        self._known_services: AppServices | None = None
        self._opened = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.work_sources: list[RabbitWorkSource] = []
        self.shared_authenticator: Authenticator | None = None
        """The one authenticator of this process: all its surfaces count wrong keys together."""
        self.storeless = False
        """Whether this is a worker that a message broker feeds, and nothing else."""

    @property
    def store(self) -> Store:
        if self.storeless or in_child_process():
            return cast(Store, NoStore(has_rpc=self.storeless))
        if self._store is None:
            database = self.config.database
            self._store = open_store(
                database.url,
                namespace=self.config.namespace,
                clock=self.clock,
                max_connections=database.max_connections,
                statement_timeout=database.statement_timeout,
            )
            self._store.context.set_aside.tell = self._tell_of_row
            self._store.context.decisions.tell = self.bus.emit
        return self._store

    def _tell_of_row(self, row: UnreadableRow, readable: bool) -> None:
        event: Event = RowSetAside(kind=row.kind, id=row.id, error=row.error)
        if readable:
            event = RowReadable(kind=row.kind, id=row.id)
        if self._loop is None or threading.current_thread() is self._thread:
            self.bus.emit(event)
            return
        # SQLite reads rows in threads of its own; subscribers count on the thread of the loop.
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self.bus.emit, event)

    async def open(self, *, store: bool = True) -> None:
        """Connect, and bring the schema up to date where the configuration says so. Without `store`, only for
        a worker that a message broker feeds: it needs no database."""
        self._opened += 1
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        if self._opened == 1:
            self.storeless = not store
        if self._opened > 1 or not store:
            return
        try:
            await self.store.open()
            if self.config.database.migrate:
                await self.store.upgrade()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._opened -= 1
        if self._opened == 0:
            store, self._store = self._store, None
            work_sources, self.work_sources = self.work_sources, []
            try:
                for closer in self._closers:
                    await closer()
            finally:
                for work_source in work_sources:
                    await work_source.close()
                if store is not None:
                    await store.close()

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Have it called when the app closes: for what handlers and operations hold open (a client …)."""
        self._closers.append(closer)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _remote_store(self) -> RemoteStore | None:
        """In a process without a database, the store of a dispatcher."""
        return RemoteStore(self.rpc) if self.storeless and self.work_sources else None

    def _bulk_backend(self) -> BulkBackend:
        return self._remote_store or DatabaseBackend(self.store.bulk)

    def _images(self) -> Images:
        return self._remote_store or self.store.batches.images

    def _workflow_starts(self) -> StartsWorkflows:
        return self._remote_store or self.store.workflows.starts

    @property
    def rpc(self) -> Rpc:
        """In a process without a database, the way to one that has it."""
        if not self.work_sources:
            raise NoDatabase("this app was opened without a database, and no worker of it has been made yet")
        return self.work_sources[-1].rpc

    # -- every command and query

    @property
    def _services(self) -> AppServices:
        """The services on the present store: a closed app that is opened again has a new one."""
        store = self.store
        if self._known_services is None or self._known_services.store is not store:
            self._known_services = AppServices(self, store, trusted=True)
        return self._known_services

    @property
    def runs(self) -> RunOperations:
        return RemoteRuns(self.rpc, self.bus) if self.storeless else self._services.runs

    @property
    def tasks(self) -> TaskOperations:
        if self.storeless:
            return RemoteTasks(self.rpc, self.reach, self.clock.now_us)
        return self._services.tasks

    @property
    def workflows(self) -> WorkflowOperations:
        return RemoteWorkflows(self.rpc) if self.storeless else self._services.workflows

    @property
    def batches(self) -> BatchOperations:
        return RemoteBatches(self.rpc) if self.storeless else self._services.batches

    @property
    def bulk_jobs(self) -> BulkOperations:
        return RemoteBulkJobs(self.rpc) if self.storeless else self._services.bulk_jobs

    @property
    def templates(self) -> TemplateOperations:
        return self._services.templates

    @property
    def business_registry(self) -> BusinessOperations:
        return self._services.businesses

    @property
    def workers(self) -> WorkerOperations:
        return self._services.workers

    @property
    def queues(self) -> QueueOperations:
        return self._services.queues

    @property
    def keys(self) -> KeyOperations:
        return self._services.keys

    @property
    def dead_letters(self) -> DeadLetterOperations:
        return self._services.dead_letters

    @property
    def callbacks(self) -> CallbackOperations:
        return self._services.callbacks
