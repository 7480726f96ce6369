"""Telling the store how attempts ended, and noting what it would not hear any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.contract import Settlement
from fusee.engine.worker.work_source import WorkSource
from fusee.events import Bus, RunRefused

__all__ = ["Reports"]

Late = tuple[int, int, str]
"""(run id, attempt, how it ended)."""


class Reports:
    def __init__(self, work_source: WorkSource, bus: Bus) -> None:
        self.work_source = work_source
        self.bus = bus

    async def settle(self, session: int, settlements: list[Settlement]) -> set[tuple[int, int]]:
        """Write ends that are not plain successes; what is refused is kept as stale, and answered."""
        refused = set(await self.work_source.settle(session, settlements))
        if refused:
            late = [(s.run_id, s.attempt, s.ended.end) for s in settlements]
            await self.refused(one for one in late if one[:2] in refused)
        return refused

    async def refused(self, late: Iterable[Late]) -> None:
        """The fence refused these: we had lost them."""
        late = list(late)
        for run_id, attempt, end in late:
            self.bus.emit(RunRefused(run_id=run_id, attempt=attempt, end=end))
        await self.stale(late)

    async def stale(self, late: list[Late]) -> None:
        with contextlib.suppress(Exception):  # a note for the reader, never the truth
            await self.work_source.record_stale([(run, attempt, str(end)) for run, attempt, end in late])

    async def return_strangers(self, session: int, in_hand: set[tuple[int, int]]) -> None:
        """A claim whose answer we never got may have been carried out: hand back what we do not hold."""
        strangers = set(await self.work_source.owned(session)) - in_hand
        returned = Ended(End.RETURNED, effect=Effect.NONE)
        verdict = decide(returned, RetryPolicy(), 0)
        if strangers:
            # Some may have taken a place in a queue with limits.
            await self.settle(
                session, [Settlement(run, n, returned, verdict, ticket=True) for run, n in sorted(strangers)]
            )
