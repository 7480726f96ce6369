"""The sessions of a worker: the one it holds, and those that it has lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusee.engine.model.session import START_WITHIN, Lease
from fusee.engine.worker.pool import Pool
from fusee.engine.worker.work_source import WorkSource

__all__ = ["HeldSession", "LostSessions"]


@dataclass(slots=True)
class HeldSession:
    """The session under which this worker claims and reports, and how long its lease allows that."""

    lease: Lease
    session: int | None = None
    """None while there is no session: nothing may be claimed or reported then."""

    def allows(self, session: int, now: float) -> bool:
        """Return whether a reply to a request of that session may still be acted upon."""
        return session == self.session and self.lease.holds(now)

    def start_by(self, asked_at: float) -> float:
        """Return until when an attempt may begin that the store granted after `asked_at`.

        A cancel relies on `START_WITHIN`, and nothing begins once the lease may be over.
        """
        return min(asked_at + START_WITHIN, self.lease.deadline)


@dataclass(slots=True)
class LostSessions:
    """Sessions that this process has lost: given up once nothing runs under them, else left to their lease.

    Their leases may last for a while, and only this process knows when nothing runs under them any more.
    """

    work_source: WorkSource
    pool: Pool
    lease: float
    _lost: list[tuple[int, float]] = field(default_factory=list)
    """(session, when it was lost). What began before that moment ran under that session or an earlier one."""

    def __bool__(self) -> bool:
        """Whether there is a session to give up."""
        return bool(self._lost)

    def add(self, session: int, now: float) -> None:
        self._lost.append((session, now))

    async def give_up(self, now: float) -> None:
        """Give up the sessions under which nothing runs any more.

        A session whose lease has ended by now needs no giving up: the store has taken it, whatever still
        runs here.
        """
        while self._lost:
            session, lost_at = self._lost[0]
            if now - lost_at > self.lease:
                self.pool.forget_unstopped(lost_at)
            elif self.pool.still_runs(lost_at):
                return
            else:
                await self.work_source.give_up_session(session)
            del self._lost[0]
