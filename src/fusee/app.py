"""The composition root: the only place where concrete parts meet.

app = Fusee("sqlite:///fusee.db")

@app.handler("greet", timeout=30)
async def greet(name: str) -> str:
    return f"hello {name}"

async with app.running():                       # the whole platform, in this process
    run = await app.enqueue("greet", {"name": "Ada"})
    print(await run.result())
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session as SyncSession

from fusee import plugins
from fusee.batch import Operations
from fusee.batch.handler import handler_for
from fusee.batch.operation import DEFAULT_RETRY, DEFAULT_TIMEOUT
from fusee.batch.starter import BatchStarter
from fusee.broker import Depot
from fusee.bulk import Business, Businesses
from fusee.bulk.handler import BulkServer
from fusee.bulk.http import HttpBusinesses
from fusee.bulk.pacer import NodeCap
from fusee.bulk.posts import Posts
from fusee.bulk.sources.builtin import builtin_sources
from fusee.bulk.sources.limits import SourceLimits
from fusee.bulk.starter import BULK_HANDLER, BulkStarter
from fusee.clock import Clock, SystemClock
from fusee.config import ApiConfig, Config, load
from fusee.dispatch import Dispatcher
from fusee.errors import ConfigError, FuseeError, Invalid
from fusee.events import Bus, LoopFailed
from fusee.handles import RunHandle, RunHandles
from fusee.messaging import LocalStarters, NoStore, RemoteBatches, rabbitmq_of
from fusee.model import RetryPolicy, RunSpec, WorkerInfo
from fusee.model.bulk import HTTP_HANDLER, handler_of_business
from fusee.model.business import HttpBusiness
from fusee.model.durations import seconds_from
from fusee.model.task import BATCH_HANDLER, WORKFLOW_HANDLER
from fusee.operations import (
    BatchOperations,
    BulkOperations,
    BusinessOperations,
    CallbackOperations,
    Change,
    KeyOperations,
    LetterOperations,
    QueueOperations,
    RunOperations,
    TaskOperations,
    WorkerOperations,
    WorkflowOperations,
    apply,
)
from fusee.store import Store, handler_of, open_store
from fusee.version import __version__
from fusee.worker.executors.base import Executor
from fusee.worker.executors.callback import OpenCallback
from fusee.worker.executors.http import HttpExecutor, check_http
from fusee.worker.executors.python import PythonExecutor
from fusee.worker.executors.shell import ShellExecutor, check_shell
from fusee.worker.handlers import Handlers
from fusee.worker.plan import Planner
from fusee.worker.settings import WorkerSettings
from fusee.worker.tokens import Tokens
from fusee.worker.worker import Worker
from fusee.worker.workflow import WorkflowStarter

if TYPE_CHECKING:
    from fastapi import FastAPI

    from fusee.api import Services
    from fusee.broker.rabbitmq.depot import RabbitDepot
    from fusee.rpc.server import GrpcServer

__all__ = ["Fusee", "RunHandle"]

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
DECLARED = "app"
"""The group of tasks that were declared in code."""
Held = Connection | SyncSession | AsyncConnection | AsyncSession


class Fusee:
    """Handlers, and the parts that run them."""

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
        starter = WorkflowStarter(lambda: self._backing)
        self.handlers.register(WORKFLOW_HANDLER, starter.start, builtin=True)
        self.handlers.register(BATCH_HANDLER, BatchStarter(lambda: self._creates).start, builtin=True)
        self.operations = Operations()
        self.businesses = Businesses()
        self.sources = builtin_sources(
            lambda: self._backing, allow_private=self.config.executors.http.allow_private
        )
        http = self.config.executors.http
        posts = Posts(allow_private=http.allow_private, max_response=http.max_response)
        self.on_close(posts.close)
        self.http_businesses = HttpBusinesses(posts, self.config.api.base_url)
        node = NodeCap(self.config.worker.bulk_rate_cap)
        self.bulk_server = BulkServer(
            lambda: self._backing,
            self.sources,
            node,
            self.bus,
            resume_within=self.config.worker.bulk_resume_within,
        )
        bulk_starter = BulkStarter(lambda *job, **how: self._create_bulk_job(*job, **how))
        self.handlers.register(BULK_HANDLER, bulk_starter.start, builtin=True)
        if http.enabled:
            serve = self.bulk_server.http_handler(self.http_businesses)
            self.handlers.register(HTTP_HANDLER, serve, builtin=True, hands_over=True)
        self._store: Store | None = None
        self._opened = 0
        self._declared: list[dict[str, Any]] = []
        self._depots: list[RabbitDepot] = []
        self._storeless = False
        """A worker that a message broker feeds, and nothing else."""

    # -- handlers

    def handler(
        self,
        name: str | None = None,
        *,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        isolation: str | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function; its name is the handler's unless another is given."""
        if callable(name):
            raise FuseeError("write @app.handler() with parentheses, or @app.handler('name')")

        def register(function: F) -> F:
            sync = self.config.executors.python.isolation
            chosen = isolation
            if chosen is None and not asyncio.iscoroutinefunction(function):
                chosen = sync
            self.handlers.register(
                name or function.__name__, function, timeout=timeout, retry=retry, isolation=chosen
            )
            function.__dict__["fusee_handler"] = name or function.__name__
            return function

        return register

    def operation(
        self,
        target_type: str,
        batch_type: str,
        *,
        params: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> Callable[[C], C]:
        """Register the decorated class (made without arguments), or an object, as what a batch does to
        targets of that type; see `fusee.batch.Operation`. `params` is a type that pydantic can check: what
        callers give as `after` must fit it."""

        def register(operation: C) -> C:
            made: Any = operation() if isinstance(operation, type) else operation
            known = self.operations.register(
                target_type, batch_type, made, params=params, timeout=timeout, retry=retry
            )
            serve = handler_for(known, lambda: self._backing)
            self.handlers.register(handler_of(target_type, batch_type), serve, timeout=timeout, retry=retry)
            return operation

        return register

    def bulk(
        self,
        name: str | None = None,
        *,
        chunk: int | None = None,
        undo: Callable[..., Any] | None = None,
        on_create: Callable[..., Any] | None = None,
        before_run: Callable[..., Any] | None = None,
        on_stop: Callable[..., Any] | None = None,
        on_finish: Callable[..., Any] | None = None,
        **defaults: Any,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of a bulk job's items: `@app.bulk("mail")`.

        It gets one item, or with `chunk=1000` a list of up to so many; `async def` or plain (in threads). A
        parameter `index` takes the item's index, one annotated `BulkContext` the job. `defaults` are
        fields of its jobs (concurrency, rate, item_attempts …). See `docs/bulk.md`.
        """
        if callable(name):
            raise FuseeError("write @app.bulk() with parentheses, or @app.bulk('name')")

        def register(function: F) -> F:
            business = self.businesses.register(
                Business(
                    name=name or function.__name__,
                    function=function,
                    chunk=chunk,
                    undo=undo,
                    on_create=on_create,
                    before_run=before_run,
                    on_stop=on_stop,
                    on_finish=on_finish,
                    defaults=defaults,
                )
            )
            serve = self.bulk_server.handler_for(business)
            # It goes on elsewhere where it was: a worker that drains need not wait for it.
            self.handlers.register(handler_of_business(business.name), serve, hands_over=True)
            return function

        return register

    def task(
        self, name: str | None = None, *, isolation: str | None = None, **fields: Any
    ) -> Callable[[F], F]:
        """Register the decorated function as a handler and declare a task that runs it:
        `@app.task(cron="0 3 * * *", timezone="Europe/Berlin")`. See `docs/tasks.md` for the fields.

        `running()`, `fusee up` and the like make the store's tasks what was declared; an app that is run in
        another way calls `await app.apply_tasks()`.
        """
        if callable(name):
            raise FuseeError("write @app.task() with parentheses, such as @app.task(cron='0 3 * * *')")
        timeout = fields.get("timeout")
        seconds = None if timeout is None else seconds_from(timeout, "timeout")

        def register(function: F) -> F:
            own = name or function.__name__
            self.handler(own, timeout=seconds, isolation=isolation)(function)
            self._declared.append({**fields, "name": own, "handler": own})
            return function

        return register

    @property
    def declared(self) -> Sequence[Mapping[str, Any]]:
        """The tasks that `@app.task` declared, as documents."""
        return tuple(self._declared)

    async def apply_tasks(self) -> Sequence[Change]:
        """Create or change the tasks that `@app.task` declared; what is so already is left alone."""
        return await apply(self.tasks, self._declared, group=DECLARED, allow_unknown=True)

    # -- opening and closing

    @property
    def store(self) -> Store:
        if self._store is None:
            database = self.config.database
            self._store = open_store(
                database.url,
                namespace=self.config.namespace,
                clock=self.clock,
                max_connections=database.max_connections,
                statement_timeout=database.statement_timeout,
            )
        return self._store

    async def open(self, *, store: bool = True) -> None:
        """Connect, and bring the schema up to date where the configuration says so. Without `store`, only for
        a worker that a message broker feeds: it needs no database."""
        self._opened += 1
        if self._opened == 1:
            self._storeless = not store
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
            depots, self._depots = self._depots, []
            try:
                for closer in self._closers:
                    await closer()
            finally:
                for depot in depots:
                    await depot.close()
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

    # -- what people do

    @property
    def runs(self) -> RunOperations:
        if self._runs_of is not self.store:
            self._runs = RunOperations(
                self.store, self.bus, handlers=self.handlers, check_payload=self._check_payload
            )
            self._runs_of = self.store
        return self._runs

    _runs: RunOperations
    _runs_of: Store | None = None

    @property
    def _backing(self) -> Any:
        """The store; in a process without one, the way to it."""
        return self._depots[-1] if self._storeless and self._depots else self.store

    @property
    def _creates(self) -> Any:
        backing = self._backing
        return self.batches if backing is self._store else RemoteBatches(backing)

    async def _create_bulk_job(self, *job: Any, **how: Any) -> Any:
        backing = self._backing
        create = self.bulk_jobs.create if backing is self._store else RemoteBatches(backing).create_bulk_job
        return await create(*job, **how)

    def _store_of(self, namespace: str) -> Store:
        return self.store if namespace == self.store.namespace else self.store.for_namespace(namespace)

    def _batches_of(self, namespace: str) -> BatchOperations:
        store = self._store_of(namespace)
        return BatchOperations(store, self.operations, store.known_handlers)

    def _bulk_jobs_of(self, namespace: str) -> BulkOperations:
        return self._bulk_jobs(self._store_of(namespace), self.businesses)

    @property
    def tasks(self) -> TaskOperations:
        return self._tasks(self.store, self.runs)

    def _tasks(self, store: Store, runs: RunOperations) -> TaskOperations:
        return TaskOperations(store, runs.check, now_us=self.clock.now_us)

    @property
    def batches(self) -> BatchOperations:
        return BatchOperations(self.store, self.operations, self.store.known_handlers)

    @property
    def bulk_jobs(self) -> BulkOperations:
        return self._bulk_jobs(self.store, self.businesses)

    def _bulk_jobs(self, store: Store, businesses: Businesses) -> BulkOperations:
        allowed = self.config.executors.bulk
        return BulkOperations(
            store,
            businesses,
            self.sources,
            store.known_handlers,
            self._remote,
            SourceLimits(allowed.folders, allowed.databases),
        )

    @property
    def business_registry(self) -> BusinessOperations:
        return self._business_registry(self.store, self.businesses)

    def _business_registry(self, store: Store, businesses: Businesses) -> BusinessOperations:
        return BusinessOperations(store, businesses, store.known_handlers, self._check_business)

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
        return WorkflowOperations(self.store, self.runs.check)

    @property
    def workers(self) -> WorkerOperations:
        return WorkerOperations(self.store)

    @property
    def queues(self) -> QueueOperations:
        return QueueOperations(self.store)

    @property
    def keys(self) -> KeyOperations:
        return KeyOperations(self.store, self.config.api.keys)

    @property
    def letters(self) -> LetterOperations:
        return LetterOperations(self.store)

    @property
    def callbacks(self) -> CallbackOperations:
        return CallbackOperations(self.store, self.bus)

    def _check_payload(self, spec: RunSpec) -> None:
        match spec.executor:
            case "shell":
                if not self.config.executors.shell.enabled:
                    raise ValueError("the shell executor is off: set executors.shell.enabled = true")
                check_shell(spec.payload or {})
            case "http":
                if not self.config.executors.http.enabled:
                    raise ValueError("the http executor is off: set executors.http.enabled = true")
                check_http(spec.payload or {})
            # Which worker can do these is the worker's own configuration: only the payload is looked at.
            case "kubernetes":
                from fusee.worker.executors.kubernetes.payload import check_kubernetes

                check_kubernetes(spec.payload or {})
            case "dask":
                from fusee.worker.executors.dask.payload import check_dask

                check_dask(spec.payload or {})

    async def enqueue(
        self,
        handler: str | Callable[..., Any],
        payload: Mapping[str, Any] | None = None,
        *,
        within: Held | None = None,
        allow_unknown: bool = False,
        **options: Any,
    ) -> RunHandle:
        """Accept one run; see `RunSpec` for the options (delay, priority, queue, idempotency_key …).

        `within` takes your own SQLAlchemy connection or session on the same database: the run then exists
        if and only if your transaction commits.
        """
        spec = RunSpec(handler=_name(handler), payload=payload, **options)
        return (await self.enqueue_many([spec], within=within, allow_unknown=allow_unknown))[0]

    async def enqueue_many(
        self, specs: Iterable[RunSpec], *, within: Held | None = None, allow_unknown: bool = False
    ) -> Sequence[RunHandle]:
        """Accept all or none; handles in the same order."""
        listed = list(specs)
        match within:
            case None:
                accepted = await self.runs.submit(listed, allow_unknown=allow_unknown)
            case Connection():
                accepted = self.runs.submit_within(within, listed)
            case SyncSession():
                accepted = self.runs.submit_within(within.connection(), listed)
            case AsyncConnection():
                accepted = await within.run_sync(self.runs.submit_within, listed)
            case AsyncSession():
                accepted = await (await within.connection()).run_sync(self.runs.submit_within, listed)
        return RunHandles(accepted, self)

    async def enqueue_each(
        self,
        handler: str | Callable[..., Any],
        payloads: Iterable[Mapping[str, Any] | None],
        *,
        executor: str = "python",
        queue: str = "default",
        region: str = "",
        priority: int = 0,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        strategy: str = "",
        cpu: float | None = None,
        memory: int | None = None,
        allow_unknown: bool = False,
    ) -> Sequence[RunHandle]:
        """Accept one run of this handler for each payload, all or none; handles in the same order.

        The options are those of `RunSpec` and hold for all, checked once: the fastest way in for many.
        """
        template = RunSpec(
            handler=_name(handler),
            executor=executor,
            queue=queue,
            region=region,
            priority=priority,
            timeout=timeout,
            retry=retry,
            strategy=strategy,
            cpu=cpu,
            memory=memory,
        )
        accepted = await self.runs.submit_each(template, list(payloads), allow_unknown=allow_unknown)
        return RunHandles(accepted, self)

    # -- the parts that work

    def executors(self, open_callback: OpenCallback | None = None) -> dict[str, Executor]:
        """What this process can execute, by the configuration; calls in async mode need `open_callback`."""
        settings = self.config.executors
        size = self.config.worker.max_concurrent_tasks
        executors: dict[str, Executor] = {
            # A thread for each slot: a run that waits for one could start after its cancel was acknowledged.
            "python": PythonExecutor(
                self.handlers, threads=max(size, self.config.worker.threads), processes=size
            )
        }
        if settings.shell.enabled:
            executors["shell"] = ShellExecutor(
                enabled=True,
                allow=settings.shell.allow,
                environment=settings.shell.environment,
                output_tail=settings.shell.output_tail,
            )
        if settings.http.enabled:
            executors["http"] = HttpExecutor(
                timeout=settings.http.timeout,
                allow_private=settings.http.allow_private,
                max_response=settings.http.max_response,
                output_tail=settings.http.output_tail,
                open_callback=open_callback,
            )
        if settings.kubernetes.enabled:
            executors["kubernetes"] = plugins.kubernetes(settings.kubernetes, self.config.namespace)
        if settings.dask.enabled:
            executors["dask"] = plugins.dask(settings.dask, self.config.namespace)
        return executors

    def worker(self) -> Worker:
        """A worker with this app's handlers; not running yet."""
        settings = self.config.worker
        rabbitmq = rabbitmq_of(self.config.broker)
        depot: Depot
        if rabbitmq is not None:
            self._depots.append(rabbitmq.depot(self.config.namespace, self.bus))
            depot = self._depots[-1]
        else:
            depot = self.store
        tokens = Tokens(depot, self.config.api.base_url, lambda: worker.session)
        executors = self.executors(tokens.open)
        info = WorkerInfo(
            name=settings.worker_id or f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            capacity=settings.max_concurrent_tasks,
            executors=tuple(sorted(executors)),
            handlers=self.handlers.served(),
            queues=tuple(settings.queues),
            region=settings.region,
            labels=dict(settings.labels),
            address=settings.address or "",
            cpu=settings.cpu,
            memory=settings.memory,
            policies={h.name: h.retry for h in self.handlers.all() if h.retry != RetryPolicy()},
            broker="database" if rabbitmq is None else rabbitmq.names.worker,
        )
        worker = Worker(
            depot,
            Planner(self.handlers, executors, queues=info.queues, region=info.region),
            info,
            WorkerSettings(
                lease_ttl=settings.lease_ttl,
                heartbeat=settings.heartbeat_interval_seconds,
                poll_interval=settings.poll_interval,
                prefetch=settings.prefetch,
                drain_timeout=settings.drain_timeout,
                grace=settings.grace,
            ),
            self.bus,
        )
        return worker

    def dispatcher(self) -> Dispatcher:
        """A dispatcher; not running yet."""
        settings = self.config.dispatcher
        rabbitmq = rabbitmq_of(self.config.broker)
        starters = LocalStarters(self._batches_of, self._bulk_jobs_of)
        station = rabbitmq.station(self.store, starters, self.bus) if rabbitmq is not None else None
        return Dispatcher(
            self.store,
            self.bus,
            interval=settings.schedule_interval_seconds,
            recover_interval=settings.recover_interval,
            retention=settings.retention,
            prune_batch=settings.prune_batch,
            starvation_after=settings.starvation_after,
            stalled_after=settings.stalled_after,
            alert_webhook=settings.alert_webhook,
            region=settings.region,
            station=station,
            redispatch_after=self.config.broker.redispatch_after,
        )

    def api(self) -> FastAPI:
        """The REST API over this app's store, which must be open. Call it before `worker()`: a worker
        times its runs only when the metrics already listen."""
        # Here and not above: whoever only runs or enqueues work never loads a web framework.
        from fusee.api import create_api

        return create_api(self._services(self.config.api))

    def status(self) -> FastAPI:
        """Health and metrics alone, for a process without the API; before `worker()`, as with `api()`."""
        from fusee.api import create_status

        where = {"bind_address": self.config.status.bind_address}
        return create_status(self._services(self.config.api.model_copy(update=where)))

    def _services(self, config: ApiConfig) -> Services:
        from fusee.api import Operations, Services
        from fusee.observe import Health, Metrics

        base: Any = NoStore(self._depots) if self._storeless else self.store

        @functools.cache
        def operations(namespace: str) -> Operations:
            own = namespace == self.config.namespace
            store = base if own else base.for_namespace(namespace)
            # A worker of this process serves our own namespace only.
            runs = RunOperations(
                store, self.bus, handlers=self.handlers if own else (), check_payload=self._check_payload
            )
            return Operations(
                runs=runs,
                workers=WorkerOperations(store),
                queues=QueueOperations(store),
                keys=KeyOperations(store, self.config.api.keys),
                tasks=self._tasks(store, runs),
                workflows=WorkflowOperations(store, runs.check),
                batches=BatchOperations(store, self.operations, store.known_handlers),
                bulk_jobs=self._bulk_jobs(store, self.businesses if own else Businesses()),
                businesses=self._business_registry(store, self.businesses if own else Businesses()),
            )

        mine = operations(self.config.namespace)
        metrics = (
            Metrics(
                self.bus,
                version=__version__,
                queues=None if self._storeless else mine.queues.list,
                workers=None if self._storeless else mine.workers.list,
                bulk=mine.bulk_jobs.loads,
                now_us=self.clock.now_us,
            )
            if self.config.metrics.enabled
            else None
        )
        health = Health(self.bus, ping=base.ping, revision=base.revision)
        return Services(
            config=config,
            namespace=self.config.namespace,
            operations=operations,
            callbacks=CallbackOperations(base, self.bus),
            health=health.reasons,
            warnings=health.warnings,
            metrics=metrics.render if metrics else None,
            version=__version__,
        )

    def grpc(self) -> GrpcServer:
        """The gRPC server over this app's store, which must be open; needs the extra `grpc`."""
        try:
            from fusee.rpc.server import GrpcServer
        except ModuleNotFoundError as error:
            raise ConfigError(f"gRPC needs {error.name}: pip install 'fusee[grpc]'") from None
        store = self.store

        @functools.cache
        def batches(namespace: str) -> BatchOperations:
            own = store if namespace == store.namespace else store.for_namespace(namespace)
            return BatchOperations(own, self.operations, own.known_handlers)

        return GrpcServer(self.config.grpc, self.config.namespace, batches, self.keys)

    @asynccontextmanager
    async def running(self, *, worker: bool = True, dispatcher: bool = True) -> AsyncIterator[Self]:
        """Run the platform inside your own program; leaving drains it."""
        async with self:
            parts: list[Worker | Dispatcher] = []
            if self._declared:
                await self.apply_tasks()
            if dispatcher:
                parts.append(self.dispatcher())
            if worker:
                parts.append(self.worker())
            tasks = [asyncio.create_task(part.run(), name=f"fusee-{type(part).__name__}") for part in parts]
            for task in tasks:
                task.add_done_callback(self._tell_if_dead)
            try:
                yield self
            finally:
                for part in reversed(parts):
                    part.stop()
                # Shielded: draining goes on when the caller is cancelled while it waits for it.
                await asyncio.shield(asyncio.gather(*tasks))

    def _tell_if_dead(self, task: asyncio.Task[None]) -> None:
        """The caller's own program goes on when a part has died: logs and health must say so."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.bus.emit(LoopFailed(loop=task.get_name(), error=error, failures=1000))


def _name(handler: str | Callable[..., Any]) -> str:
    if isinstance(handler, str):
        return handler
    name = getattr(handler, "fusee_handler", None)
    if name is None:
        raise FuseeError(f"{handler!r} is not a handler: decorate it with @app.handler(), or pass a name")
    return str(name)
