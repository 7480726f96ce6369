"""The contract of an executor: one small async method that returns how the attempt ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Protocol

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.context import RunContext

__all__ = ["Executor", "Job", "Unstoppable"]


@dataclass(slots=True)
class Job:
    """One attempt, as its executor sees it."""

    run_id: int
    attempt: int
    handler: str
    queue: str
    payload: dict[str, Any]
    timeout: float | None
    """Seconds; the pool keeps the time, an executor only passes it on where that is useful."""
    grace: float
    """Seconds between being told to stop and being killed."""
    output: str | None = None
    """A bounded tail of what it printed; set before returning *and* before raising."""
    effect: Effect = Effect.UNKNOWN
    """What was done, should it be stopped."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the attempt is told to stop; handlers in threads look at it."""
    told: End | None = None
    """Why it was told to stop; set before it is cancelled."""
    fire_time: str | None = None
    """The logical time of a scheduled run, as ISO 8601."""
    shard_index: int = 0
    shard_total: int = 1
    task: str | None = None
    kind: str | None = None
    """What the run belongs to."""
    start_by: float = inf
    """By the monotonic clock: until then it may begin without asking the store again."""
    confirm: Callable[[Job], Awaitable[None]] | None = None
    """Asks the store, and moves `start_by`."""

    async def may_begin(self) -> None:
        """Return when the attempt may begin; call it right before its first effect, unknown from then on.

        Returns at once within `start_by`. Later, someone may have been told that their cancel was final, so
        the store is asked first; a canceled attempt does not return from here, it is stopped.
        """
        while time.monotonic() > self.start_by:
            assert self.confirm is not None
            self.effect = Effect.NONE
            await self.confirm(self)
        self.effect = Effect.UNKNOWN

    def context(self, stopping: Callable[[], bool] | None = None) -> RunContext:
        """What the handler may know of it."""
        return RunContext(
            self.run_id,
            self.attempt,
            self.handler,
            self.queue,
            stopping or self.stop.is_set,
            self.task,
            None if self.fire_time is None else datetime.fromisoformat(self.fire_time),
            self.shard_index,
            self.shard_total,
            self.kind,
        )


class Executor(Protocol):
    """Runs attempts of one kind.

    `execute` is stopped by cancelling it. It then tells its work to stop, waits `job.grace` seconds,
    kills what is left (the whole process group), and only when nothing of it is alive any more
    lets the `CancelledError` through. Cancelled a second time, it kills at once. If something cannot be
    killed it raises `Unstoppable`.
    An executor whose work goes on elsewhere, and is found there by the next attempt, has `hands_over = True`:
    it is told to stop as soon as its worker drains, and by `job.told` leaves that work alone.
    An error of the work itself is not raised: it is the `Ended` it returns.
    It awaits `job.may_begin()` right before the work has its first effect.
    """

    name: str

    async def execute(self, job: Job) -> Ended: ...

    async def close(self) -> None:
        """Free everything that outlives a run: pools, clients, children."""


class Unstoppable(Exception):
    """Told to stop and out of grace, the work goes on and cannot be killed (a thread).

    `over` tells whether it has ended since; None when nobody here can know.
    """

    def __init__(self, message: str, over: Callable[[], bool] | None = None) -> None:
        super().__init__(message)
        self.over = over
