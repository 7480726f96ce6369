"""The calls of the store that a worker without a database can make, and nothing else.

`StoreRpc` is the only declaration of these calls. The server looks its methods up by name, both ends convert
arguments and results by its annotations, and clients name a call by the method: `rpc.call(StoreRpc.renew, …)`
or, where a client's method does nothing else, `renew = forward(StoreRpc.renew)`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from fusee.batches.model.batch import Batch
from fusee.batches.service.batches import BatchOperations
from fusee.batches.store.intake import TakenOver
from fusee.bulk.model.business import RegisteredBusiness
from fusee.bulk.model.job import BulkJob, HeldBy, Quarantined
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.store.checkpoints import BulkAnswer, Found, Progress, Taken
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Enqueued, Finished, Order, Settlement
from fusee.engine.store.parent import Waiter
from fusee.errors import Invalid
from fusee.runs.service.runs import RunOperations
from fusee.stores import Store
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.start import StartedWorkflow

__all__ = ["SLOW_CALLS", "HandedIn", "LaneList", "Rpc", "StoreRpc", "forward"]

P = ParamSpec("P")
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


class HandedIn(NamedTuple):
    """The result of `hand_in`."""

    refused: list[tuple[int, int]]
    """The (run, attempt) pairs whose outcome the fence refused."""
    granted: list[tuple[int, int, bool]]
    """(run, attempt, has a ticket) of the runs that may start on this worker now."""


class LaneList(NamedTuple):
    ids: list[int]
    lanes: list[Lane]


@dataclass(frozen=True, slots=True)
class StoreRpc:
    """The store and the services of one namespace, as workers without a database can use them.

    Every coroutine method can be called by message, and is called again when a reply was lost. Nothing in a
    message is trusted: its sender is not known to be the platform's own code. What creates something is
    therefore checked by the services, as a request through the API is."""

    store: Store
    runs: RunOperations
    batches: BatchOperations
    bulk_jobs: BulkOperations
    workflows: WorkflowOperations
    tasks: TaskOperations

    # -- the session of a worker

    async def open_session(self, request: str, info: WorkerInfo, ttl: float) -> int:
        return await self.store.starts.open_session_once(request, info, ttl)

    async def renew(self, session: int, ttl: float, running: int) -> None:
        await self.store.sessions.renew(session, ttl, running)

    async def drain_session(self, session: int) -> None:
        await self.store.sessions.drain_session(session)

    async def drain_asked(self, session_ids: Sequence[int]) -> bool:
        return await self.store.sessions.drain_asked(session_ids)

    async def end_session(self, session: int) -> None:
        await self.store.sessions.end_session(session)

    async def give_up_session(self, session: int) -> None:
        await self.store.recovery.give_up_session(session)

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

    async def settle(self, session: int, settlements: Sequence[Settlement]) -> list[tuple[int, int]]:
        return await self.store.outcomes.settle(session, settlements)

    async def record_stale(self, late: Sequence[tuple[int, int, str]]) -> None:
        await self.store.outcomes.record_stale(late)

    async def owned(self, session: int) -> list[tuple[int, int]]:
        return await self.store.runs.owned(session)

    async def cancel_requests(self, session: int, run_ids: Sequence[int]) -> list[tuple[int, int]]:
        return await self.store.runs.cancel_requests(session, run_ids)

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        return await self.store.runs.confirm_start(session, run_id, attempt)

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, timeout: float, signed: bool
    ) -> None:
        await self.store.callbacks.open_callback(
            session, run_id, attempt, digest, timeout=timeout, signed=signed
        )

    # -- what its handlers create

    async def submit(self, specs: list[RunSpec], allow_unknown: bool) -> list[Enqueued]:
        """Every spec has a key, so that a repeated request creates no second run."""
        if any(spec.idempotency_key is None for spec in specs):
            raise Invalid("a run that is submitted by message needs an idempotency key")
        return list(await self.runs.submit(specs, allow_unknown=allow_unknown))

    async def create_batch(
        self, fields: dict[str, Any], targets: list[Any], apply: bool, key: str | None, waiter: Waiter | None
    ) -> tuple[Batch, bool]:
        """Several dispatchers may have copies of one request. One whose upload another has taken over waits
        for that other one and returns the same batch: it must not refuse what is being done."""
        while True:
            try:
                return await self.batches.create(
                    fields, targets, apply=apply, idempotency_key=key, waiter=waiter
                )
            except TakenOver:
                if key is None and waiter is None:  # no other request can have taken its place
                    raise
                await self.batches.upload_ended(key, waiter)

    async def create_bulk_job(
        self, job: dict[str, Any], data: Any, start: bool, key: str | None, waiter: int | None, who: str
    ) -> tuple[BulkJob, bool]:
        return await self.bulk_jobs.create(
            job, data=data, start=start, idempotency_key=key, waiter=waiter, who=who
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

    async def start_workflow(self, workflow: str, params: dict[str, Any], waiter: Waiter) -> None:
        await self.store.workflows.starts.start_workflow(workflow, params, waiter=waiter)

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        return await self.store.batches.images.keep_image(run_id, attempt, image)

    async def image_of(self, run_id: int) -> Any:
        return await self.store.batches.images.image_of(run_id)

    async def bulk_job(self, job_id: int) -> BulkJob:
        return await self.store.bulk.queries.bulk_job(job_id)

    async def launch_bulk_job(
        self, run_id: int, attempt: int, job_id: int, found: Found, callbacks: Sequence[str]
    ) -> bool:
        return await self.store.bulk.jobs.launch_bulk_job(run_id, attempt, job_id, found, callbacks)

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None = None, attempt: int = 0
    ) -> None:
        if run_id is None:
            raise Invalid("a check is concluded by its run")
        await self.store.bulk.checks.conclude_check(job_id, refusal, run_id, attempt)

    async def await_business(self, run_id: int, attempt: int, job_id: int, callbacks: Sequence[str]) -> None:
        await self.store.bulk.jobs.await_business(run_id, attempt, job_id, callbacks)

    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, resume_within: float = 0.0
    ) -> Taken:
        return await self.store.bulk.checkpoints.take_segment(
            run_id, attempt, job_id, number, resume_within=resume_within
        )

    async def business(self, name: str) -> RegisteredBusiness | None:
        return await self.store.bulk.businesses.business(name)

    async def hand_back_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, held_by: HeldBy
    ) -> None:
        await self.store.bulk.checkpoints.hand_back_segment(run_id, attempt, job_id, number, held_by)

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: Progress
    ) -> BulkAnswer:
        return await self.store.bulk.checkpoints.checkpoint(run_id, attempt, job_id, number, progress)

    async def quarantined_count(self, job_id: int) -> int:
        return await self.store.bulk.queries.quarantined_count(job_id)

    async def quarantined_indexes(self, job_id: int, offset: int, limit: int) -> list[int]:
        return await self.store.bulk.queries.quarantined_indexes(job_id, offset, limit)

    async def bulk_quarantine(self, job_id: int, after: int = -1, limit: int = 100) -> list[Quarantined]:
        return await self.store.bulk.queries.bulk_quarantine(job_id, after=after, limit=limit)

    async def done_ranges(self, job_id: int) -> list[tuple[int, int]]:
        return await self.store.bulk.queries.done_ranges(job_id)
