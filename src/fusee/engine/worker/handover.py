"""Sessions that this process has lost: handed over once nothing runs under them, else left to their lease."""

from __future__ import annotations

from dataclasses import dataclass

from fusee.engine.worker.pool import Pool
from fusee.engine.worker.work_source import WorkSource

__all__ = ["HandOver"]


@dataclass(frozen=True, slots=True)
class _Lost:
    session: int
    at: float
    """What began before this moment ran under that session, or under one before it."""


class HandOver:
    """Their leases may last for a while, and nobody else knows that nothing is done under them any more."""

    def __init__(self, work_source: WorkSource, pool: Pool, lease: float) -> None:
        self.work_source = work_source
        self.pool = pool
        self.lease = lease
        self._lost: list[_Lost] = []

    def __bool__(self) -> bool:
        """Whether there is a session to hand over."""
        return bool(self._lost)

    def add(self, session: int, now: float) -> None:
        self._lost.append(_Lost(session, now))

    async def look(self, now: float) -> None:
        """Give up the sessions under which nothing runs any more. A session whose lease is over by now needs
        that no longer: the store has taken it, whatever still runs here."""
        while self._lost:
            lost = self._lost[0]
            if now - lost.at > self.lease:
                self.pool.forget_unstopped(lost.at)
            elif self.pool.still_runs(lost.at):
                return
            else:
                await self.work_source.give_up_session(lost.session)
            del self._lost[0]
