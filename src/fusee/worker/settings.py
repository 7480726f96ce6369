"""The numbers a worker runs by; `app` makes them from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    lease_ttl: float = 30.0
    heartbeat: float = 10.0
    poll_interval: float = 0.5
    prefetch: float = 0.05
    """Seconds of work to hold beyond what runs."""
    drain_timeout: float = 30.0
    grace: float = 10.0

    @property
    def look_interval(self) -> float:
        """Seconds between two looks for cancels, drains and limits: half of the two seconds within which a
        running attempt is told of its cancel, and no longer than a heartbeat."""
        return min(1.0, self.heartbeat)
