"""The calls of the store that a worker without a database can make, and nothing else.

`StoreRpc` is the only declaration of these calls. The server looks its methods up by name, both ends convert
arguments and results by its annotations, and clients name a call by the method: `rpc.call(StoreRpc.renew, …)`
or, where a client's method does nothing else, `renew = forward(StoreRpc.renew)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from fusee.batches.handlers import Images
from fusee.batches.model.batch import Batch
from fusee.batches.service.batches import BatchOperations
from fusee.batches.store.intake import TakenOver
from fusee.bulk.model.job import BulkJob
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.store.store import BulkBackend, DatabaseBackend
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Enqueued, Finished, Order
from fusee.engine.store.parents import ParentRun
from fusee.engine.worker.work_source import DatabaseSource, WorkSource
from fusee.errors import Invalid
from fusee.runs.service.runs import RunOperations
from fusee.stores import Store
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.start import StartedWorkflow

__all__ = ["SLOW_CALLS", "HandedIn", "LaneList", "Rpc", "StoreRpc", "forward"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Call = Callable[Concatenate["StoreRpc", P], Coroutine[Any, Any, T]]

SLOW_CALLS = frozenset(("create_batch", "create_bulk_job"))
"""Calls that wait for a worker or for a service. They are acknowledged before they are made: otherwise they
would take the places of lease renewals, and of the very replies that they wait for."""


class Rpc(Protocol):
    """Makes calls of a `StoreRpc` in another process."""

    async def call(self, call: Call[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what the call returns, raises what it raises, and repeats the request until then."""

    async def call_within(
        self, timeout: float | None, call: Call[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same, but raises `StoreUnavailable` when there is no reply within so many seconds."""


class HasRpc(Protocol):
    @property
    def rpc(self) -> Rpc: ...


def forward(
    call: Call[P, T], timeout: float | None = None
) -> Callable[Concatenate[HasRpc, P], Coroutine[Any, Any, T]]:
    """A method of a client that makes this call and nothing else."""

    async def method(self: HasRpc, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.rpc.call_within(timeout, call, *args, **kwargs)

    return method


def serve(
    part: Callable[[StoreRpc], S], method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
) -> Call[P, T]:
    """A call that is a method of a part of the store, with the same arguments."""

    @functools.wraps(method)
    async def call(self: StoreRpc, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await getattr(part(self), method.__name__)(*args, **kwargs)
        return result

    return call


class HandedIn(NamedTuple):
    """The result of `hand_in`."""

    refused: list[tuple[int, int]]
    """The (run, attempt) pairs whose outcome the fence refused."""
    granted: list[tuple[int, int, bool]]
    """(run, attempt, has a ticket) of the runs that may start on this worker now."""


class LaneList(NamedTuple):
    ids: list[int]
    lanes: list[Lane]


class StoreRpc:
    """The store and the services of one namespace, as workers without a database can use them.

    Every coroutine method can be called by message, and is called again when a reply was lost. Nothing in a
    message is trusted: its sender is not known to be the platform's own code. What creates something is
    therefore checked by the services, as a request through the API is."""

    def __init__(
        self,
        store: Store,
        runs: RunOperations,
        batches: BatchOperations,
        bulk_jobs: BulkOperations,
        workflows: WorkflowOperations,
        tasks: TaskOperations,
    ) -> None:
        self.store = store
        self.runs = runs
        self.batches = batches
        self.bulk_jobs = bulk_jobs
        self.workflows = workflows
        self.tasks = tasks
        self.work_source: WorkSource = DatabaseSource(store)
        self.bulk: BulkBackend = DatabaseBackend(store.bulk)
        self.images: Images = store.batches.images

    # -- the session of a worker

    async def open_session(self, request: str, info: WorkerInfo, ttl: float) -> int:
        return await self.store.starts.open_session_once(request, info, ttl)

    renew = serve(lambda rpc: rpc.work_source, WorkSource.renew)
    drain_session = serve(lambda rpc: rpc.work_source, WorkSource.drain_session)
    drain_asked = serve(lambda rpc: rpc.work_source, WorkSource.drain_asked)
    end_session = serve(lambda rpc: rpc.work_source, WorkSource.end_session)
    give_up_session = serve(lambda rpc: rpc.work_source, WorkSource.give_up_session)

    async def lanes(self, known: int) -> LaneList | None:
        """All lanes of the namespace, or None if there are as many as the worker knows."""
        await self.store.lanes.read_new_lanes()
        found = self.store.lane_map.lanes
        mine = {i: lane for i, lane in found.items() if lane.namespace == self.store.namespace}
        return None if len(mine) == known else LaneList(list(mine), list(mine.values()))

    async def strategies(self) -> dict[str, str]:
        """The queues that have a placement strategy, with its name."""
        limits = await self.store.queues.read_limits()
        return {queue: known.strategy for queue, known in limits.items() if known.strategy}

    # -- its runs

    async def hand_in(
        self,
        session: int,
        finished: Finished,
        receipt: int,
        accepted: list[tuple[int, int]],
        used_up: list[int],
    ) -> HandedIn:
        """Write the successes, and return which of the accepted runs may start."""
        refused: list[tuple[int, int]] = []
        if finished.ids or used_up:
            refused = (await self.store.claims.exchange(session, finished, Order(used_up=used_up))).refused
        granted = await self.store.starts.start(session, receipt, accepted) if accepted else []
        return HandedIn(refused, granted)

    async def hand_back(self, accepted: list[tuple[int, int]]) -> int:
        """Take back runs whose messages a worker holds and cannot start soon; returns how many."""
        return await self.store.dispatches.recall(accepted)

    settle = serve(lambda rpc: rpc.work_source, WorkSource.settle)
    record_stale = serve(lambda rpc: rpc.work_source, WorkSource.record_stale)
    owned = serve(lambda rpc: rpc.work_source, WorkSource.owned)
    cancel_requests = serve(lambda rpc: rpc.work_source, WorkSource.cancel_requests)
    confirm_start = serve(lambda rpc: rpc.work_source, WorkSource.confirm_start)
    open_callback = serve(lambda rpc: rpc.work_source, WorkSource.open_callback)

    # -- what its handlers create

    async def submit(self, specs: list[RunSpec], allow_unknown: bool) -> list[Enqueued]:
        """Every spec has a key, so that a repeated request creates no second run."""
        if any(spec.idempotency_key is None for spec in specs):
            raise Invalid("a run that is submitted by message needs an idempotency key")
        return list(await self.runs.submit(specs, allow_unknown=allow_unknown))

    async def create_batch(
        self,
        fields: dict[str, Any],
        targets: list[Any],
        apply: bool,
        key: str | None,
        parent: ParentRun | None,
    ) -> tuple[Batch, bool]:
        """Several dispatchers may have copies of one request. One whose upload another has taken over waits
        for that other one and returns the same batch: it must not refuse what is being done."""
        while True:
            try:
                return await self.batches.create(
                    fields, targets, apply=apply, idempotency_key=key, parent=parent
                )
            except TakenOver:
                if key is None and parent is None:  # no other request can have taken its place
                    raise
                await self.batches.upload_ended(key, parent)

    async def create_bulk_job(
        self, job: dict[str, Any], data: Any, start: bool, key: str | None, parent_run: int | None, who: str
    ) -> tuple[BulkJob, bool]:
        return await self.bulk_jobs.create(
            job, data=data, start=start, idempotency_key=key, parent_run=parent_run, who=who
        )

    async def log_bulk_data(self, job_id: int, text: str, who: str, key: str) -> int:
        return await self.bulk_jobs.log(job_id, text, who=who, idempotency_key=key)

    async def begin_workflow(self, name: str, params: dict[str, Any], key: str) -> StartedWorkflow:
        return await self.workflows.start(name, params, idempotency_key=key)

    async def trigger_task(
        self, ref: str | int, payload: dict[str, Any] | None, key: str, reason: str
    ) -> Triggered:
        return await self.tasks.trigger(ref, payload=payload, idempotency_key=key, reason=reason)

    # -- what its runs of workflows, batches and bulk jobs need

    async def start_workflow(self, name: str, params: dict[str, Any], parent: ParentRun) -> None:
        await self.store.workflows.starts.start_workflow(name, params, parent=parent)

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None = None, attempt: int = 0
    ) -> None:
        if run_id is None:  # without a run and its attempt, the write would not be fenced
            raise Invalid("a check is concluded by its run")
        await self.bulk.conclude_check(job_id, refusal, run_id, attempt)

    keep_image = serve(lambda rpc: rpc.images, Images.keep_image)
    image_of = serve(lambda rpc: rpc.images, Images.image_of)
    bulk_job = serve(lambda rpc: rpc.bulk, BulkBackend.bulk_job)
    business = serve(lambda rpc: rpc.bulk, BulkBackend.business)
    launch_bulk_job = serve(lambda rpc: rpc.bulk, BulkBackend.launch_bulk_job)
    await_business = serve(lambda rpc: rpc.bulk, BulkBackend.await_business)
    take_segment = serve(lambda rpc: rpc.bulk, BulkBackend.take_segment)
    hand_back_segment = serve(lambda rpc: rpc.bulk, BulkBackend.hand_back_segment)
    checkpoint = serve(lambda rpc: rpc.bulk, BulkBackend.checkpoint)
    quarantined_count = serve(lambda rpc: rpc.bulk, BulkBackend.quarantined_count)
    quarantined_indexes = serve(lambda rpc: rpc.bulk, BulkBackend.quarantined_indexes)
    bulk_quarantine = serve(lambda rpc: rpc.bulk, BulkBackend.bulk_quarantine)
    done_ranges = serve(lambda rpc: rpc.bulk, BulkBackend.done_ranges)
