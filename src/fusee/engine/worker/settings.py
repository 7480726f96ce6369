"""The settings of a worker; `app` makes them from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerSettings"]

RETURN_WITHIN = 4.0
"""Seconds within which a worker is connected again once the other side answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    lease_ttl: float = 30.0
    heartbeat: float = 10.0
    poll_interval: float = 0.5
    prefetch: float = 0.05
    """Seconds of work to hold beyond what runs."""
    drain_timeout: float = 30.0
    grace: float = 10.0
    max_memory: int | None = None
    """Bytes that the process may hold before it stops claiming."""

    @property
    def renew_interval(self) -> float:
        """Seconds between two renewals: a heartbeat, at most a tenth of the lease."""
        return min(self.heartbeat, self.lease_ttl / 10)

    @property
    def lease(self) -> float:
        """Seconds that each renewal asks the store to keep the session.

        A silence of `lease_ttl`, less the lease's margin, must cost nothing: it may begin just before a
        renewal, and when it is over, connections have to be made again before the next one.
        """
        return self.lease_ttl + self.renew_interval + min(RETURN_WITHIN, self.lease_ttl / 6)

    @property
    def look_interval(self) -> float:
        """Seconds between two looks for cancels, drains and limits.

        Half of the two seconds within which a running attempt learns of its cancel, at most a heartbeat.
        """
        return min(1.0, self.heartbeat)
