"""The decorators: what this app can do."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fusee.app.operate import Operates
from fusee.batches.handlers import BatchStarter, handler_for, looker_for
from fusee.batches.model.spec import handler_of, looker_of
from fusee.batches.operation import DEFAULT_RETRY, DEFAULT_TIMEOUT
from fusee.bulk.business import Business
from fusee.bulk.model.job import HTTP_HANDLER, handler_of_business
from fusee.bulk.starter import BULK_HANDLER, BulkStarter
from fusee.clock import Clock
from fusee.config import Config
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import FuseeError
from fusee.tasks.service.apply import Change, apply
from fusee.values.durations import seconds_from
from fusee.values.names import BATCH_HANDLER, WORKFLOW_HANDLER
from fusee.workflows.starter import WorkflowStarter

__all__ = ["Declares"]

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
DECLARED = "app"
"""The group of tasks that were declared in code."""


class Declares(Operates):
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
        bulk_starter = BulkStarter(lambda *job, **how: self._create_bulk_job(*job, **how))
        builtin(BULK_HANDLER, bulk_starter.start)
        if self.config.executors.http.enabled:
            serve = self.bulk_server.http_handler(self.http_businesses)
            builtin(HTTP_HANDLER, serve, hands_over=True)

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
