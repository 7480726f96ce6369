"""How long a worker may act: its session, and the lease on it."""

from __future__ import annotations

from dataclasses import dataclass

from fusee.model import Lease

__all__ = ["Tenure"]


@dataclass(slots=True)
class Tenure:
    lease: Lease
    session: int | None = None
    """None while there is none: nothing may be claimed or reported then."""

    def allows(self, session: int, now: float) -> bool:
        """Whether what was asked for in that session may still be acted upon."""
        return session == self.session and self.lease.holds(now)
