"""What a worker without a database may ask of the store: the calls that travel as messages, and nothing else.

The annotations are the wire's types: both ends convert what they send and get by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fusee.batches.model.batch import Batch
from fusee.bulk.model.business import RegisteredBusiness
from fusee.bulk.model.job import BulkJob, HeldBy, Quarantined
from fusee.bulk.store.checkpoints import BulkAnswer, Found, Progress, Taken
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Enqueued, Finished, Order, Settlement
from fusee.engine.store.parent import Waiter
from fusee.errors import Invalid
from fusee.stores import Store
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.store.start import StartedWorkflow

__all__ = ["Commands", "HandedIn", "Lanes", "StoreRpc"]


class HandedIn(NamedTuple):
    """The answer to one trip."""

    refused: list[tuple[int, int]]
    """Outcomes that the fence refused."""
    granted: list[tuple[int, int, bool]]
    """(run id, attempt, has a ticket): these may start, here, now."""


class Lanes(NamedTuple):
    ids: list[int]
    lanes: list[Lane]


class Commands(Protocol):
    """What is checked and carried out as if it had been asked for through the API, for one namespace."""

    async def submit(
        self, namespace: str, specs: Sequence[RunSpec], allow_unknown: bool
    ) -> list[Enqueued]: ...

    async def create_batch(
        self,
        namespace: str,
        fields: dict[str, Any],
        targets: list[Any],
        apply: bool,
        key: str | None,
        waiter: Waiter | None,
    ) -> tuple[Batch, bool]: ...

    async def create_bulk_job(
        self,
        namespace: str,
        job: dict[str, Any],
        data: Any,
        start: bool,
        key: str | None,
        waiter: int | None,
        who: str,
    ) -> tuple[BulkJob, bool]: ...

    async def log_bulk_data(self, namespace: str, job_id: int, text: str, who: str, key: str) -> int: ...

    async def start_workflow(
        self, namespace: str, name: str, params: dict[str, Any], key: str
    ) -> StartedWorkflow: ...

    async def trigger(
        self, namespace: str, ref: str | int, payload: dict[str, Any] | None, key: str, reason: str
    ) -> Triggered: ...


@dataclass(frozen=True, slots=True)
class StoreRpc:
    """The store of one namespace, seen from afar. All its methods can be asked for, and may be repeated."""

    store: Store
    commands: Commands

    # -- a worker's session

    async def open_session(self, request: str, info: WorkerInfo, ttl: float) -> int:
        return await self.store.open_session_once(request, info, ttl)

    async def renew(self, session: int, ttl: float, running: int) -> None:
        await self.store.renew(session, ttl, running)

    async def drain_session(self, session: int) -> None:
        await self.store.drain_session(session)

    async def drain_asked(self, session_ids: list[int]) -> bool:
        return await self.store.drain_asked(session_ids)

    async def end_session(self, session: int) -> None:
        await self.store.end_session(session)

    async def give_up_session(self, session: int) -> None:
        await self.store.give_up_session(session)

    async def lanes(self, known: int) -> Lanes | None:
        """All lanes of the namespace; none when there are as many as the worker knows."""
        await self.store.read_new_lanes()
        found = self.store.lane_map.lanes
        mine = {i: lane for i, lane in found.items() if lane.namespace == self.store.namespace}
        return None if len(mine) == known else Lanes(list(mine), list(mine.values()))

    async def strategies(self) -> dict[str, str]:
        """Queue → how its runs find their worker, where that is not the usual way."""
        limits = await self.store.read_limits()
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
        """Write what succeeded, and say which of the accepted runs may start."""
        refused: list[tuple[int, int]] = []
        if finished.ids or used_up:
            refused = (await self.store.exchange(session, finished, Order(used_up=used_up))).refused
        granted = await self.store.start(session, receipt, accepted) if accepted else []
        return HandedIn(refused, granted)

    async def hand_back(self, accepted: list[tuple[int, int]]) -> int:
        """Runs whose messages a worker holds and cannot start soon."""
        return await self.store.recall(accepted)

    async def settle(self, session: int, settlements: list[Settlement]) -> list[tuple[int, int]]:
        return await self.store.settle(session, settlements)

    async def record_stale(self, late: list[tuple[int, int, str]]) -> None:
        await self.store.record_stale(late)

    async def owned(self, session: int) -> list[tuple[int, int]]:
        return await self.store.owned(session)

    async def cancel_requests(self, session: int, run_ids: list[int]) -> list[tuple[int, int]]:
        return await self.store.cancel_requests(session, run_ids)

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        return await self.store.confirm_start(session, run_id, attempt)

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, timeout: float, signed: bool
    ) -> None:
        await self.store.open_callback(session, run_id, attempt, digest, timeout=timeout, signed=signed)

    # -- what its handlers need

    async def start_workflow(self, workflow: str, params: dict[str, Any], waiter: Waiter) -> None:
        await self.store.start_workflow(workflow, params, waiter=waiter)

    async def submit(self, specs: list[RunSpec], allow_unknown: bool) -> list[Enqueued]:
        """Every spec has a key, so that a repeated request makes no second run."""
        if any(spec.idempotency_key is None for spec in specs):
            raise Invalid("a run that is submitted by message needs an idempotency key")
        return await self.commands.submit(self.store.namespace, specs, allow_unknown)

    async def create_batch(
        self, fields: dict[str, Any], targets: list[Any], apply: bool, key: str | None, waiter: Waiter | None
    ) -> tuple[Batch, bool]:
        return await self.commands.create_batch(self.store.namespace, fields, targets, apply, key, waiter)

    async def create_bulk_job(
        self, job: dict[str, Any], data: Any, start: bool, key: str | None, waiter: int | None, who: str
    ) -> tuple[BulkJob, bool]:
        return await self.commands.create_bulk_job(self.store.namespace, job, data, start, key, waiter, who)

    async def begin_workflow(self, name: str, params: dict[str, Any], key: str) -> StartedWorkflow:
        return await self.commands.start_workflow(self.store.namespace, name, params, key)

    async def trigger_task(
        self, ref: str | int, payload: dict[str, Any] | None, key: str, reason: str
    ) -> Triggered:
        return await self.commands.trigger(self.store.namespace, ref, payload, key, reason)

    async def log_bulk_data(self, job_id: int, text: str, who: str, key: str) -> int:
        return await self.commands.log_bulk_data(self.store.namespace, job_id, text, who, key)

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        return await self.store.keep_image(run_id, attempt, image)

    async def image_of(self, run_id: int) -> Any:
        return await self.store.image_of(run_id)

    async def bulk_job(self, job_id: int) -> BulkJob:
        return await self.store.bulk_job(job_id)

    async def launch_bulk_job(
        self, run_id: int, attempt: int, job_id: int, found: Found, callbacks: Sequence[str]
    ) -> bool:
        return await self.store.launch_bulk_job(run_id, attempt, job_id, found, callbacks)

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None, attempt: int
    ) -> None:
        if run_id is None:
            raise Invalid("a check is concluded by its run")
        await self.store.conclude_check(job_id, refusal, run_id, attempt)

    async def await_business(self, run_id: int, attempt: int, job_id: int, callbacks: Sequence[str]) -> None:
        await self.store.await_business(run_id, attempt, job_id, callbacks)

    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, resume_within: float
    ) -> Taken:
        return await self.store.take_segment(run_id, attempt, job_id, number, resume_within=resume_within)

    async def business(self, name: str) -> RegisteredBusiness | None:
        return await self.store.business(name)

    async def hand_back_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, held_by: HeldBy
    ) -> None:
        await self.store.hand_back_segment(run_id, attempt, job_id, number, held_by)

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: Progress
    ) -> BulkAnswer:
        return await self.store.checkpoint(run_id, attempt, job_id, number, progress)

    async def quarantined_count(self, job_id: int) -> int:
        return await self.store.quarantined_count(job_id)

    async def quarantined_indexes(self, job_id: int, offset: int, limit: int) -> list[int]:
        return await self.store.quarantined_indexes(job_id, offset, limit)

    async def bulk_quarantine(self, job_id: int, after: int, limit: int) -> list[Quarantined]:
        return await self.store.bulk_quarantine(job_id, after=after, limit=limit)

    async def done_ranges(self, job_id: int) -> list[tuple[int, int]]:
        return await self.store.done_ranges(job_id)
