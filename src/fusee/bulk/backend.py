"""What the worker's side of bulk jobs asks of the store: directly, or over a message broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fusee.bulk.model.business import RegisteredBusiness
from fusee.bulk.model.job import BulkJob, HeldBy, Quarantined
from fusee.bulk.model.segment import BulkAnswer, Found, SegmentProgress, Taken
from fusee.bulk.store.store import BulkStore

__all__ = ["BulkBackend", "DatabaseBackend"]


class BulkBackend(Protocol):
    """Each write is fenced by run and attempt."""

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
    """The parts of the store that a worker with a database calls, without a layer between."""

    def __init__(self, store: BulkStore) -> None:
        self.bulk_job = store.queries.bulk_job
        self.business = store.businesses.business
        self.conclude_check = store.checks.conclude_check
        self.launch_bulk_job = store.jobs.launch_bulk_job
        self.await_business = store.jobs.await_business
        self.take_segment = store.checkpoints.take_segment
        self.hand_back_segment = store.checkpoints.hand_back_segment
        self.checkpoint = store.checkpoints.checkpoint
        self.quarantined_count = store.queries.quarantined_count
        self.quarantined_indexes = store.queries.quarantined_indexes
        self.bulk_quarantine = store.queries.bulk_quarantine
        self.done_ranges = store.queries.done_ranges
