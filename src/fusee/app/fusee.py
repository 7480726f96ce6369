"""The application, as users know it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session as SyncSession

from fusee.app.build import Builds
from fusee.app.dispatcher import Dispatcher
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.worker.worker import Worker
from fusee.errors import FuseeError
from fusee.events import LoopFailed
from fusee.runs.handle import RunHandle, RunHandles

__all__ = ["Fusee"]

Held = Connection | SyncSession | AsyncConnection | AsyncSession


class Fusee(Builds):
    """Handlers, and the parts that run them."""

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
