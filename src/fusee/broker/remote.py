"""What an app offers in a worker without a database: a few calls go over the broker, all others are refused.

Each remote service is a subclass of the one that a process with a database has, over a store that refuses
everything: a method that is not overridden here is refused by name. A message may be delivered twice, so each
call that creates something carries an idempotency key: the caller's, or one that is made for the call.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

from fusee.batches.model.batch import Batch
from fusee.batches.model.spec import BatchSpec
from fusee.batches.operation import OperationRegistry
from fusee.batches.service.batches import BatchOperations, Targets
from fusee.broker.store_rpc import Rpc, StoreRpc, forward
from fusee.bulk.business import Businesses
from fusee.bulk.model.job import BulkJob
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.sources import SourceKinds
from fusee.engine.model.run import RunSpec
from fusee.engine.store.contract import Enqueued
from fusee.engine.store.parents import ParentRun
from fusee.errors import Invalid, NoDatabase, StoreUnavailable
from fusee.events import Bus
from fusee.executors.http.request import Reach
from fusee.runs.service.runs import RunOperations
from fusee.stores import Store
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.start import StartedWorkflow

__all__ = [
    "ENVIRONMENT",
    "NoStore",
    "RemoteBatches",
    "RemoteBulkJobs",
    "RemoteRuns",
    "RemoteStore",
    "RemoteTasks",
    "RemoteWorkflows",
    "StatusStore",
    "in_child_process",
]

ENVIRONMENT = "_FUSEE_WORKER_WITHOUT_DATABASE"
"""Set for the processes in which a worker without a database runs handlers with isolation="process"."""
MAX_PER_MESSAGE = 10_000
"""Runs or targets in one message."""


def in_child_process() -> bool:
    """Whether this is a process in which a worker without a database runs a handler."""
    return os.environ.get(ENVIRONMENT) == "1"


class NoStore:
    """Takes the place of the store, its parts and their methods, and refuses each call by name. Without it,
    the default SQLite file would be opened."""

    def __init__(self, name: str = "store", *, has_rpc: bool) -> None:
        self._name = name
        self._has_rpc = has_rpc

    def __getattr__(self, name: str) -> NoStore:
        return NoStore(name, has_rpc=self._has_rpc)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        what = self._name.replace("_", " ")
        if self._has_rpc:
            raise NoDatabase(
                f"this worker has no database, so {what!r} is not possible here. Possible by message are:"
                " enqueue, enqueue_many, enqueue_each, bulk_jobs.create and .log, batches.create,"
                " workflows.start, tasks.trigger. Use the REST API for everything else"
            )
        raise NoDatabase(
            'a handler with isolation="process" on a worker without a database cannot reach the platform:'
            f" {what!r} is not possible here. Make it an async handler, or use the REST API"
        )


class StatusStore:
    """The part of a store that health checks, metrics and API keys use, in a process without a database."""

    def __init__(self, connected: Callable[[], bool]) -> None:
        self.connected = connected
        self.sessions = self.api_keys = self
        none = NoStore(has_rpc=True)
        self.tasks, self.workflows, self.batches, self.bulk = (
            none.tasks,
            none.workflows,
            none.batches,
            none.bulk,
        )

    def for_namespace(self, namespace: str) -> StatusStore:
        return self

    async def ping(self) -> None:
        """Such a process is ready while it is connected to the broker."""
        if not self.connected():
            raise StoreUnavailable("RabbitMQ is not connected")

    async def revision(self) -> tuple[str, str]:
        return "", ""

    async def known_handlers(self) -> frozenset[str]:
        return frozenset()

    async def count_keys(self) -> int:
        """Returns 0: only the keys in the configuration are accepted."""
        return 0

    async def any_key_ever(self) -> bool:
        return False

    async def key_by_digest(self, digest: str) -> None:
        return None


class RemoteStore:
    """What the runs of workflows, batches and bulk jobs need of the store."""

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc

    start_workflow = forward(StoreRpc.start_workflow)
    keep_image = forward(StoreRpc.keep_image)
    image_of = forward(StoreRpc.image_of)
    bulk_job = forward(StoreRpc.bulk_job)
    launch_bulk_job = forward(StoreRpc.launch_bulk_job)
    conclude_check = forward(StoreRpc.conclude_check)
    await_business = forward(StoreRpc.await_business)
    take_segment = forward(StoreRpc.take_segment)
    business = forward(StoreRpc.business)
    hand_back_segment = forward(StoreRpc.hand_back_segment)
    checkpoint = forward(StoreRpc.checkpoint)
    quarantined_count = forward(StoreRpc.quarantined_count)
    quarantined_indexes = forward(StoreRpc.quarantined_indexes)
    bulk_quarantine = forward(StoreRpc.bulk_quarantine)
    done_ranges = forward(StoreRpc.done_ranges)


NO_STORE = cast(Store, NoStore(has_rpc=True))


class RemoteRuns(RunOperations):
    def __init__(self, rpc: Rpc, bus: Bus) -> None:
        super().__init__(NO_STORE, bus)
        self.rpc = rpc

    async def submit(self, specs: Sequence[RunSpec], *, allow_unknown: bool = False) -> Sequence[Enqueued]:
        _check_count("runs", len(specs))
        key = _new_key()
        keyed = [
            replace(spec, idempotency_key=f"{key}:{number}") if spec.idempotency_key is None else spec
            for number, spec in enumerate(specs)
        ]
        accepted = await self.rpc.call(StoreRpc.submit, keyed, allow_unknown)
        # A key that was made here can have been used before only by a repeat of this very request.
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
    def __init__(self, rpc: Rpc) -> None:
        super().__init__(NO_STORE.batches, OperationRegistry(), _no_handlers)
        self.rpc = rpc

    async def create(
        self,
        fields: Mapping[str, Any] | BatchSpec,
        targets: Targets,
        *,
        idempotency_key: str | None = None,
        apply: bool = False,
        parent: ParentRun | None = None,
    ) -> tuple[Batch, bool]:
        if isinstance(fields, BatchSpec):
            raise Invalid("a worker without a database describes a batch as an object, not as a BatchSpec")
        given = [one async for one in targets] if isinstance(targets, AsyncIterable) else list(targets)
        _check_count("targets", len(given))
        key = idempotency_key or (None if parent else _new_key())
        batch, new = await self.rpc.call(StoreRpc.create_batch, dict(fields), given, apply, key, parent)
        return batch, new or key != idempotency_key


class RemoteBulkJobs(BulkOperations):
    def __init__(self, rpc: Rpc) -> None:
        super().__init__(
            NO_STORE.bulk, Businesses(), SourceKinds(), _no_handlers, _no_business, trusted=False
        )
        self.rpc = rpc

    async def create(
        self,
        fields: Mapping[str, Any] | BulkSpec,
        *,
        data: Any = None,
        idempotency_key: str | None = None,
        start: bool = False,
        parent_run: int | None = None,
        who: str = "",
    ) -> tuple[BulkJob, bool]:
        if isinstance(fields, BulkSpec):
            raise Invalid("a worker without a database describes a bulk job as an object, not as a BulkSpec")
        key = idempotency_key or (None if parent_run else _new_key())
        job, new = await self.rpc.call(
            StoreRpc.create_bulk_job, dict(fields), data, start, key, parent_run, who
        )
        return job, new or key != idempotency_key

    async def log(self, job_id: int, text: str, *, who: str = "", idempotency_key: str | None = None) -> int:
        return await self.rpc.call(StoreRpc.log_bulk_data, job_id, text, who, idempotency_key or _new_key())


class RemoteWorkflows(WorkflowOperations):
    def __init__(self, rpc: Rpc) -> None:
        super().__init__(NO_STORE.workflows, _unchecked)
        self.rpc = rpc

    async def start(
        self, name: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> StartedWorkflow:
        key = idempotency_key or _new_key()
        started = await self.rpc.call(StoreRpc.begin_workflow, name, dict(params or {}), key)
        return started if idempotency_key else StartedWorkflow(started.id)


class RemoteTasks(TaskOperations):
    def __init__(self, rpc: Rpc, reach: Reach, now_us: Callable[[], int]) -> None:
        super().__init__(NO_STORE.tasks, _unchecked, reach, now_us=now_us)
        self.rpc = rpc

    async def trigger(
        self,
        ref: str | int,
        *,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str = "triggered by hand",
    ) -> Triggered:
        given, key = None if payload is None else dict(payload), idempotency_key or _new_key()
        fired = await self.rpc.call(StoreRpc.trigger_task, ref, given, key, reason)
        return fired if idempotency_key else replace(fired, created=True)


def _new_key() -> str:
    return f"message:{secrets.token_hex(12)}"


def _check_count(what: str, count: int) -> None:
    if count > MAX_PER_MESSAGE:
        raise Invalid(
            f"a worker without a database sends at most {MAX_PER_MESSAGE} {what} at once, not {count}: send"
            " them in parts, or from a process with a database"
        )


async def _no_handlers() -> frozenset[str]:
    return frozenset()


async def _unchecked(spec: RunSpec) -> None:
    """The process that has the store checks it."""


def _no_business(spec: object) -> NoReturn:
    raise Invalid("a worker without a database registers no business")
