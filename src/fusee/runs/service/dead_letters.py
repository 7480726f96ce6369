"""Messages that the message broker gave up."""

from __future__ import annotations

from collections.abc import Sequence

from fusee.engine.store.dead_letters import DeadLetter
from fusee.stores import Store

__all__ = ["DeadLetterOperations"]


class DeadLetterOperations:
    """Of all namespaces: whoever runs the platform looks after them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def list(self, *, after: int = 0, limit: int = 100) -> Sequence[DeadLetter]:
        """Oldest first."""
        return await self.store.dead_letters(after=after, limit=limit)

    async def get(self, letter_id: int) -> DeadLetter:
        return await self.store.dead_letter(letter_id)

    async def requeue(self, letter_id: int) -> int:
        """Forget it, and publish its runs again; answers how many of them still wait for that."""
        return await self.store.requeue_letter(letter_id)

    async def drop(self, letter_id: int) -> int:
        """Forget it, and cancel those of its runs that were held; answers how many."""
        return await self.store.drop_letter(letter_id, "its message was dead-lettered, and dropped")
