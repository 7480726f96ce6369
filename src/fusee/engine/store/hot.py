"""The statements that every run passes through, each for many runs at once; raw SQL for each database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.rows import Bulk, NewRun

__all__ = ["Hot"]


class Hot(ABC):
    """A run's row is touched three times: inserted, claimed, finished."""

    @abstractmethod
    async def insert(self, namespace: str, rows: Sequence[NewRun]) -> list[int]:
        """Insert runs without idempotency keys; their ids in the same order."""

    async def insert_bulk(self, namespace: str, bulk: Bulk) -> list[int]:
        """Insert many runs that are due at once; faster where the database has a way for that."""
        return await self.insert(namespace, list(bulk.rows()))

    @abstractmethod
    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """In one transaction: write the successes of this session, claim what is ordered.

        A success counts only where run, attempt and session still match a running row. A claim takes
        the highest priority first, then the earliest due, and nothing when the session is not alive;
        it leaves a receipt by which the runs are found should the session die.
        """
