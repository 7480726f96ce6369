"""A worker's session: one life of its process, and the lease that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import SessionState
from fusee.values.fields import Mark
from fusee.values.kinds import TIME, Kind

__all__ = ["START_CERTAIN_AFTER", "START_WITHIN", "Lease", "Session", "WorkerInfo"]

START_WITHIN = 1.0
"""Seconds, from before the claim was sent, within which a worker begins an attempt; later it asks the store
again, or hands the run back. Not a setting: a cancel relies on it, whichever worker holds the run."""
START_CERTAIN_AFTER = 1.2 * START_WITHIN
"""Seconds after its claim, by the database's clock, from which an attempt has begun or never will."""


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
    address: Annotated[str, "Where it can be reached, for people; nothing of ours connects to it."] = ""
    cpu: Annotated[
        float | None, "Cores that it has to give to work which asks for some; null declares nothing."
    ] = None
    memory: Annotated[int | None, "Bytes, in the same way."] = None
    takes_assigned: Annotated[bool, Mark.HIDDEN] = True
    """Whether it claims the runs that strategies assign to it, from a lane of its own; an older version does
    not."""
    policies: Annotated[Mapping[str, RetryPolicy], Mark.HIDDEN] = field(default_factory=dict)
    """How its handlers are retried, where not by the default: who recovers its runs must know."""
    checks: Annotated[tuple[str, ...], Mark.HIDDEN] = ()
    """Businesses of this worker that want to be asked before a job of theirs is accepted."""
    defaults: Annotated[Mapping[str, Mapping[str, Any]], Mark.HIDDEN] = field(default_factory=dict)
    """What its businesses' bulk jobs are unless they say otherwise: who creates one may not have the code."""
    broker: Annotated[str, Mark.HIDDEN] = "database"
    """What brings it runs; a message broker is named with the version of its messages, as `rabbitmq/1`."""


class _Load(Kind):
    def show(self, value: Any) -> Any:
        return round(value, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A worker as people see it."""

    id: int
    namespace: str
    info: Annotated[WorkerInfo, Mark.FLAT]
    state: SessionState
    running: int
    started_at: Annotated[int, TIME]
    seen_at: Annotated[int, TIME]
    expires_at: Annotated[int, TIME]
    ended_at: Annotated[int | None, TIME]
    drain_asked_at: Annotated[int | None, TIME, "When someone asked it to leave."] = None
    assigned: Annotated[int, "Runs that a strategy assigned to it and that have not ended."] = 0
    cpu_taken: Annotated[float, Mark.HIDDEN] = 0.0
    """Of what it declares, what those runs ask for."""
    memory_taken: Annotated[int, Mark.HIDDEN] = 0

    @property
    def load(self) -> Annotated[float, _Load(), "The share of its slots in use, at its last renewal."]:
        return self.running / self.info.capacity

    @property
    def cpu_free(self) -> Annotated[float | None, "Cores that no assigned run asks for."]:
        return None if self.info.cpu is None else max(0.0, self.info.cpu - self.cpu_taken)

    @property
    def memory_free(self) -> Annotated[int | None, "Bytes that no assigned run asks for."]:
        return None if self.info.memory is None else max(0, self.info.memory - self.memory_taken)

    @property
    def down(self) -> bool:
        return self.state in (SessionState.ENDED, SessionState.LOST)


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

    @property
    def deadline(self) -> float:
        return self._deadline

    def holds(self, now: float) -> bool:
        return now < self._deadline

    def left(self, now: float) -> float:
        return self._deadline - now
