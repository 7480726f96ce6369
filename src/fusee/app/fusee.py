"""The application, as users know it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session as SyncSession

from fusee.app.build import build_dispatcher, build_executors, build_grpc, build_services, build_worker
from fusee.app.core import Core
from fusee.app.dispatcher import Dispatcher
from fusee.app.services import AppServices
from fusee.batches.handlers import BatchStarter, handler_for, looker_for
from fusee.batches.model.spec import handler_of, looker_of
from fusee.batches.operation import DEFAULT_RETRY, DEFAULT_TIMEOUT
from fusee.bulk.business import Business
from fusee.bulk.execution.handler import BULK_HANDLER, BulkStarter
from fusee.bulk.model.job import HTTP_HANDLER, handler_of_business
from fusee.clock import Clock
from fusee.config import Config
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.worker.callbacks import OpenCallback
from fusee.engine.worker.executor import Executor
from fusee.engine.worker.worker import Worker
from fusee.errors import FuseeError
from fusee.events import LoopFailed
from fusee.runs.handle import RunHandle, RunHandles
from fusee.tasks.service.apply import Change, apply
from fusee.values.durations import seconds_from
from fusee.values.names import BATCH_HANDLER, WORKFLOW_HANDLER
from fusee.workflows.starter import WorkflowStarter

if TYPE_CHECKING:
    from fastapi import FastAPI

    from fusee.surfaces.grpc.server import GrpcServer

__all__ = ["Fusee"]

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
DECLARED = "app"
"""The group of tasks that were declared in code."""
Held = Connection | SyncSession | AsyncConnection | AsyncSession


class Fusee(Core):
    """Handlers, and the parts that run them."""

    def __init__(
        self,
        database: str | None = None,
        *,
        config: Config | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(database, config=config, namespace=namespace, clock=clock)
        self._declared: list[dict[str, Any]] = []
        builtin = functools.partial(self.handlers.register, builtin=True)
        builtin(WORKFLOW_HANDLER, WorkflowStarter(self._workflow_starts).start)
        builtin(BATCH_HANDLER, BatchStarter(lambda: self.batches).start)
        builtin(BULK_HANDLER, BulkStarter(self._create_bulk_job).start)
        if self.config.executors.http.enabled:
            serve = self.bulk_server.http_handler(self.http_businesses)
            builtin(HTTP_HANDLER, serve, hands_over=True)

    async def _create_bulk_job(self, *job: Any, **how: Any) -> Any:
        """For runs, which anybody may have submitted."""
        jobs = self.bulk_jobs if self.storeless else AppServices(self, self.store).bulk_jobs
        return await jobs.create(*job, **how)

    # -- what this app can do

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
            serve = handler_for(known, self._images)
            self.handlers.register(
                handler_of(target_type, batch_type), serve, timeout=timeout, retry=retry, reserved=True
            )
            self.handlers.register(looker_of(target_type, batch_type), looker_for(known), builtin=True)
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
            self.handlers.register(handler_of_business(business.name), serve, reserved=True, hands_over=True)
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

    # -- enqueueing

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
        requires: Mapping[str, str] | None = None,
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
            requires=requires or "",
        )
        accepted = await self.runs.submit_each(template, list(payloads), allow_unknown=allow_unknown)
        return RunHandles(accepted, self)

    # -- its parts

    def executors(self, open_callback: OpenCallback | None = None) -> dict[str, Executor]:
        """What this process can execute, by the configuration; calls in async mode need `open_callback`."""
        return build_executors(self, open_callback)

    def worker(self) -> Worker:
        """A worker with this app's handlers; not running yet."""
        return build_worker(self)

    def dispatcher(self) -> Dispatcher:
        """A dispatcher; not running yet."""
        return build_dispatcher(self)

    def api(self) -> FastAPI:
        """The REST API over this app's store, which must be open. Call it before `worker()`: a worker
        times its runs only when the metrics already listen."""
        # Imported here: a process that only runs or enqueues work never loads a web framework.
        from fusee.app.rest import create_api

        return create_api(build_services(self, self.config.api))

    def status(self) -> FastAPI:
        """Health and metrics alone, for a process without the API; before `worker()`, as with `api()`."""
        from fusee.app.rest import create_status

        where = {"bind_address": self.config.status.bind_address}
        return create_status(build_services(self, self.config.api.model_copy(update=where)))

    def grpc(self) -> GrpcServer:
        """The gRPC server over this app's store, which must be open; needs the extra `grpc`."""
        return build_grpc(self)

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
