"""A worker's session: one life of its process, and the lease that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusee.model.retry import RetryPolicy
from fusee.model.states import SessionState

__all__ = ["Lease", "Session", "WorkerInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker says of itself when it registers."""

    name: str
    host: str
    pid: int
    version: str
    capacity: int
    executors: tuple[str, ...]
    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, RetryPolicy] = field(default_factory=dict)
    """How its handlers are retried, where not by the default: who recovers its runs must know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A worker as people see it."""

    id: int
    namespace: str
    info: WorkerInfo
    state: SessionState
    running: int
    started_at: int
    seen_at: int
    expires_at: int
    ended_at: int | None


class Lease:
    """What the worker itself may believe of its lease.

    It counts from *before* each renewal was sent, by its own monotonic clock, and ends `margin` early:
    so the worker stops before the database can have given its runs to someone else.
    """

    __slots__ = ("_deadline", "margin", "ttl")

    def __init__(self, ttl: float, asked_at: float) -> None:
        self.ttl = ttl
        self.margin = min(2.0, ttl / 10)
        self._deadline = asked_at + ttl - self.margin

    def renewed(self, asked_at: float) -> None:
        self._deadline = max(self._deadline, asked_at + self.ttl - self.margin)

    def holds(self, now: float) -> bool:
        return now < self._deadline

    def left(self, now: float) -> float:
        return self._deadline - now
