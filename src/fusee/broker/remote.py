"""The calls of the SDK that travel over the broker, in a worker that has no database.

Each is a subclass of the operations that a process with a database has, over a store that refuses everything:
what is not overridden here is refused by name. A message may be delivered twice, so each call that creates
something carries an idempotency key: the caller's, or one that is made for the call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fusee.batches.model.batch import Batch, BatchSpec
from fusee.batches.registry import Operations
from fusee.batches.service.batches import BatchOperations, Targets
from fusee.broker.no_database import NoStoreHere
from fusee.bulk.business import Businesses
from fusee.bulk.model.job import BulkJob, BulkSpec
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.sources import SourceKinds
from fusee.engine.model.run import RunSpec
from fusee.engine.store.contract import Enqueued
from fusee.engine.store.parent import Waiter
from fusee.errors import Invalid
from fusee.events import Bus
from fusee.runs.service.runs import RunOperations
from fusee.stores import Store
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.start import StartedWorkflow

if TYPE_CHECKING:
    from fusee.broker.rabbitmq.work_source import RabbitWorkSource

__all__ = ["RemoteBatches", "RemoteBulkJobs", "RemoteRuns", "RemoteTasks", "RemoteWorkflows"]

T = TypeVar("T")
MOST_AT_ONCE = 10_000
"""Runs or targets in one message."""
NOWHERE = cast(Store, NoStoreHere(travels=True))


def _made_key() -> str:
    return f"message:{secrets.token_hex(12)}"


async def _by(work_source: RabbitWorkSource, call: Callable[[], Awaitable[T]]) -> T:
    """Await a call of the work source on its own loop, also from a thread that runs a loop of its own."""
    if work_source.loop is None or work_source.loop is asyncio.get_running_loop():
        return await call()

    async def there() -> T:
        return await call()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), work_source.loop))


def _not_too_many(what: str, count: int) -> None:
    if count > MOST_AT_ONCE:
        raise Invalid(
            f"a worker without a database sends at most {MOST_AT_ONCE} {what} at once, not {count}: send them"
            " in parts, or from a process with a database"
        )


class RemoteRuns(RunOperations):
    def __init__(self, work_source: RabbitWorkSource, bus: Bus) -> None:
        super().__init__(NOWHERE, bus)
        self.work_source = work_source

    async def submit(self, specs: Sequence[RunSpec], *, allow_unknown: bool = False) -> Sequence[Enqueued]:
        _not_too_many("runs", len(specs))
        made = _made_key()
        keyed = [
            replace(spec, idempotency_key=f"{made}:{number}") if spec.idempotency_key is None else spec
            for number, spec in enumerate(specs)
        ]
        accepted = await _by(self.work_source, lambda: self.work_source.submit(keyed, allow_unknown))
        # A key that was made here was used before only if this very request was.
        return [
            one if spec.idempotency_key is not None else Enqueued(one.id)
            for spec, one in zip(specs, accepted, strict=True)
        ]

    async def submit_each(
        self,
        template: RunSpec,
        payloads: Sequence[Mapping[str, Any] | None],
        *,
        allow_unknown: bool = False,
    ) -> Sequence[Enqueued]:
        specs = [replace(template, payload=payload) for payload in payloads]
        return await self.submit(specs, allow_unknown=allow_unknown)


class RemoteBatches(BatchOperations):
    def __init__(self, work_source: RabbitWorkSource) -> None:
        super().__init__(NOWHERE, Operations(), _nobody)
        self.work_source = work_source

    async def create(
        self,
        fields: Mapping[str, Any] | BatchSpec,
        targets: Targets,
        *,
        idempotency_key: str | None = None,
        apply: bool = False,
        waiter: Waiter | None = None,
    ) -> tuple[Batch, bool]:
        if isinstance(fields, BatchSpec):
            raise Invalid("a worker without a database describes a batch as an object, not as a BatchSpec")
        given = [one async for one in targets] if isinstance(targets, AsyncIterable) else list(targets)
        _not_too_many("targets", len(given))
        key = idempotency_key or (None if waiter else _made_key())
        made = await _by(
            self.work_source, lambda: self.work_source.create_batch(dict(fields), given, apply, key, waiter)
        )
        return made[0], made[1] or key != idempotency_key


class RemoteBulkJobs(BulkOperations):
    def __init__(self, work_source: RabbitWorkSource) -> None:
        super().__init__(NOWHERE, Businesses(), SourceKinds(), _nobody, _no_business, trusted=False)
        self.work_source = work_source

    async def create(
        self,
        fields: Mapping[str, Any] | BulkSpec,
        *,
        data: Any = None,
        idempotency_key: str | None = None,
        start: bool = False,
        waiter: int | None = None,
        who: str = "",
    ) -> tuple[BulkJob, bool]:
        if isinstance(fields, BulkSpec):
            raise Invalid("a worker without a database describes a bulk job as an object, not as a BulkSpec")
        key = idempotency_key or (None if waiter else _made_key())
        job, new = await _by(
            self.work_source,
            lambda: self.work_source.create_bulk_job(dict(fields), data, start, key, waiter, who),
        )
        return job, new or key != idempotency_key

    async def log(self, job_id: int, text: str, *, who: str = "", idempotency_key: str | None = None) -> int:
        key = idempotency_key or _made_key()
        return await _by(self.work_source, lambda: self.work_source.log_bulk_data(job_id, text, who, key))


class RemoteWorkflows(WorkflowOperations):
    def __init__(self, work_source: RabbitWorkSource) -> None:
        super().__init__(NOWHERE, _unchecked)
        self.work_source = work_source

    async def start(
        self, name: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> StartedWorkflow:
        given, key = dict(params or {}), idempotency_key or _made_key()
        started = await _by(self.work_source, lambda: self.work_source.begin_workflow(name, given, key))
        return started if idempotency_key else StartedWorkflow(started.id)


class RemoteTasks(TaskOperations):
    def __init__(self, work_source: RabbitWorkSource, like: TaskOperations) -> None:
        super().__init__(NOWHERE, _unchecked, like.reach, now_us=like.now_us)
        self.work_source = work_source

    async def trigger(
        self,
        ref: str | int,
        *,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str = "triggered by hand",
    ) -> Triggered:
        given, key = None if payload is None else dict(payload), idempotency_key or _made_key()
        fired = await _by(self.work_source, lambda: self.work_source.trigger_task(ref, given, key, reason))
        return fired if idempotency_key else replace(fired, created=True)


async def _nobody() -> frozenset[str]:
    return frozenset()


async def _unchecked(spec: RunSpec) -> None:
    """The process that has the store checks it."""


def _no_business(spec: object) -> Any:
    raise Invalid("a worker without a database registers no business")
