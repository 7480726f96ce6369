"""How long a worker may act: its session, and the lease on it."""

from __future__ import annotations

from dataclasses import dataclass

from fusee.engine.model.session import START_WITHIN, Lease

__all__ = ["Tenure"]


@dataclass(slots=True)
class Tenure:
    lease: Lease
    session: int | None = None
    """None while there is none: nothing may be claimed or reported then."""

    def allows(self, session: int, now: float) -> bool:
        """Whether what was asked for in that session may still be acted upon."""
        return session == self.session and self.lease.holds(now)

    def start_by(self, asked_at: float) -> float:
        """Until when an attempt may begin that the store granted after `asked_at`: a cancel counts on
        `START_WITHIN`, and nothing begins once the lease may be over."""
        return min(asked_at + START_WITHIN, self.lease.deadline)
