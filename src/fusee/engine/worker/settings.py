"""The numbers a worker runs by; `app` makes them from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerSettings"]

RETURN_WITHIN = 4.0
"""Seconds in which a worker is connected again when the other side speaks again."""


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
        """Seconds between two renewals: a heartbeat, and no longer than a tenth of the lease."""
        return min(self.heartbeat, self.lease_ttl / 10)

    @property
    def lease(self) -> float:
        """Seconds for which the store is asked to keep the session with each renewal.

        A silence of `lease_ttl`, less the lease's margin, must cost nothing: it may begin just before a
        renewal, and when it is over, connections have to be made again before the next one.
        """
        return self.lease_ttl + self.renew_interval + min(RETURN_WITHIN, self.lease_ttl / 6)

    @property
    def look_interval(self) -> float:
        """Seconds between two looks for cancels, drains and limits: half of the two seconds within which a
        running attempt is told of its cancel, and no longer than a heartbeat."""
        return min(1.0, self.heartbeat)
