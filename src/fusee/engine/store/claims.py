"""Claiming runs and handing in successes: one round trip for both, for hundreds of each."""

from __future__ import annotations

from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.wakes import ENDED

__all__ = ["Claims"]


class Claims:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """Write the successes of this session and claim what is ordered, in one transaction."""
        exchanged = await self.context.hot.exchange(session, finished, order)
        if finished.for_outbox:
            self.context.wakes.fire(ENDED)
        return exchanged
