"""Dead letters: the messages that the message broker gave up."""

from __future__ import annotations

from collections.abc import Sequence

from fusee.engine.store.dead_letters import DeadLetter
from fusee.engine.store.engine_store import EngineStore

__all__ = ["DeadLetterOperations"]


class DeadLetterOperations:
    """Dead letters of all namespaces: the operators of the platform look after them."""

    def __init__(self, store: EngineStore) -> None:
        self.store = store

    async def list(self, *, after: int = 0, limit: int = 100) -> Sequence[DeadLetter]:
        """The oldest first."""
        return await self.store.dead_letters.list(after=after, limit=limit)

    async def get(self, letter_id: int) -> DeadLetter:
        return await self.store.dead_letters.get(letter_id)

    async def requeue(self, letter_id: int) -> int:
        """Delete it and publish its runs again; returns how many of them can still be published."""
        return await self.store.dead_letters.requeue(letter_id)

    async def drop(self, letter_id: int) -> int:
        """Delete it and cancel those of its runs that were held; returns how many."""
        return await self.store.dead_letters.drop(letter_id, "its message was dead-lettered and dropped")
