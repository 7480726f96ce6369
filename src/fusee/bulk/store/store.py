"""The store of bulk jobs, composed of its parts; and as much of it as a worker needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fusee.bulk.business import RegisteredBusiness
from fusee.bulk.model.job import BulkJob, HeldBy, Quarantined
from fusee.bulk.model.segment import BulkAnswer, Found, SegmentProgress, Taken
from fusee.bulk.store.businesses import BusinessRegistry
from fusee.bulk.store.checkpoints import BulkCheckpoints
from fusee.bulk.store.creation import BulkCreation
from fusee.bulk.store.jobs import BulkJobs
from fusee.bulk.store.launches import BulkLaunches
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.owner import BulkOwner
from fusee.bulk.store.queries import BulkQueries
from fusee.bulk.store.stalls import BulkStalls
from fusee.engine.store.context import StoreContext
from fusee.engine.store.engine_store import EngineStore

__all__ = ["BulkBackend", "BulkStore", "DatabaseBackend"]


class BulkStore:
    """The database of bulk jobs, for one namespace."""

    def __init__(self, context: StoreContext, engine: EngineStore) -> None:
        self.engine = engine
        self.businesses = BusinessRegistry(context, engine.sessions)
        self.moves = BulkMoves(context, engine.run_writer, engine.lanes, engine.cancels, engine.outbox)
        self.checkpoints = BulkCheckpoints(context, self.moves)
        self.queries = BulkQueries(context)
        self.launches = BulkLaunches(context, self.moves)
        self.creation = BulkCreation(context, self.moves, self.launches, self.businesses, engine.outbox)
        self.jobs = BulkJobs(context, self.moves, self.launches, self.creation, engine.outbox, self.queries)
        self.stalls = BulkStalls(context, self.moves)
        self.owner = BulkOwner(context, engine.parents, self.moves)


class BulkBackend(Protocol):
    """What a worker asks of the store, directly or over a broker; each write is fenced by run and attempt."""

    async def bulk_job(self, job_id: int) -> BulkJob: ...

    async def business(self, name: str) -> RegisteredBusiness | None: ...

    async def conclude_check(
        self, job_id: int, refusal: str | None, run_id: int | None = None, attempt: int = 0
    ) -> None: ...

    async def launch_bulk_job(
        self, run_id: int, attempt: int, job_id: int, found: Found, callbacks: Sequence[str]
    ) -> bool: ...

    async def await_business(
        self, run_id: int, attempt: int, job_id: int, callbacks: Sequence[str]
    ) -> None: ...

    async def take_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, *, resume_within: float = 0.0
    ) -> Taken: ...

    async def hand_back_segment(
        self, run_id: int, attempt: int, job_id: int, number: int, held_by: HeldBy
    ) -> None: ...

    async def checkpoint(
        self, run_id: int, attempt: int, job_id: int, number: int, progress: SegmentProgress
    ) -> BulkAnswer: ...

    async def quarantined_count(self, job_id: int) -> int: ...

    async def quarantined_indexes(self, job_id: int, offset: int, limit: int) -> list[int]: ...

    async def bulk_quarantine(
        self, job_id: int, *, after: int = -1, limit: int = 100
    ) -> list[Quarantined]: ...

    async def done_ranges(self, job_id: int) -> list[tuple[int, int]]: ...


class DatabaseBackend:
    """The methods of the store that a worker with a database calls, without a layer between them."""

    def __init__(self, store: BulkStore) -> None:
        self.bulk_job = store.queries.bulk_job
        self.business = store.businesses.business
        self.conclude_check = store.creation.conclude_check
        self.launch_bulk_job = store.launches.launch_bulk_job
        self.await_business = store.launches.await_business
        self.take_segment = store.checkpoints.take_segment
        self.hand_back_segment = store.checkpoints.hand_back_segment
        self.checkpoint = store.checkpoints.checkpoint
        self.quarantined_count = store.queries.quarantined_count
        self.quarantined_indexes = store.queries.quarantined_indexes
        self.bulk_quarantine = store.queries.bulk_quarantine
        self.done_ranges = store.queries.done_ranges
