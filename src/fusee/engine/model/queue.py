"""A queue: a name that runs wait under, and the limits that hold for it across all workers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueueLimits", "QueueStats", "TokenBucket"]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Global, counted in the store: at most `concurrency` running, at most `rate` starts a second."""

    paused: bool = False
    concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    strategy: str | None = None
    """How its runs find their worker; none is `shared`. No limit: it is set on its own."""

    def __post_init__(self) -> None:
        if self.concurrency is not None and (
            type(self.concurrency) is not int or not 1 <= self.concurrency <= 10**6
        ):
            raise ValueError(
                f"concurrency must be a whole number from 1 to 1000000, not {self.concurrency!r:.40}"
            )
        if self.rate is not None and not (
            isinstance(self.rate, int | float) and not isinstance(self.rate, bool) and 0 < self.rate <= 1e6
        ):
            raise ValueError(f"rate must be starts a second, above 0, at most 1000000, not {self.rate!r:.40}")
        if self.burst is not None and (type(self.burst) is not int or not 1 <= self.burst <= 10**6):
            raise ValueError(f"burst must be a whole number from 1 to 1000000, not {self.burst!r:.40}")
        if self.burst is not None and self.rate is None:
            raise ValueError("burst goes with a rate: give both")

    @property
    def limited(self) -> bool:
        return self.paused or self.concurrency is not None or self.rate is not None


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Starts saved up for a rate: fills by `rate` a second, holds at most `size`."""

    tokens: float
    at: int
    """Microseconds, by the database's clock."""

    def filled(self, limits: QueueLimits, now: int) -> TokenBucket:
        """The bucket at `now`; a clock that went back adds nothing."""
        if limits.rate is None:
            return self
        size = float(limits.burst or max(1, round(limits.rate)))
        gained = max(0, now - self.at) / 1_000_000 * limits.rate
        return TokenBucket(min(size, self.tokens + gained), max(now, self.at))

    def take(self, count: int) -> TokenBucket:
        return TokenBucket(self.tokens - count, self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A queue as people see it."""

    name: str
    limits: QueueLimits
    blocked: int
    delayed: int
    pending: int
    running: int
    waiting: int
    oldest_pending_at: int | None
    unserved: tuple[str, ...] = ()
    """Handlers with pending runs that no live worker has."""
