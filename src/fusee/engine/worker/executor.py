"""The contract between the pool and an executor: one async method that returns how the attempt ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.context import RunContext, RunFacts

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
    """Seconds. The pool keeps the time; an executor passes it on where that is useful."""
    grace: float
    """Seconds between being told to stop and being killed."""
    output: str | None = None
    """A bounded tail of what it printed; set before returning *and* before raising."""
    effect: Effect = Effect.UNKNOWN
    """The effect to record if the attempt is stopped."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the attempt is told to stop; handlers in threads look at it."""
    stop_reason: End | None = None
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
        """Return when the attempt may begin; call it right before the first effect, unknown from then on.

        Returns at once within `start_by`. Later, a caller may have been told that their cancel was final, so
        the store is asked first. A canceled attempt does not return from here: it is stopped.
        """
        while time.monotonic() > self.start_by:
            assert self.confirm is not None
            self.effect = Effect.NONE
            await self.confirm(self)
        self.effect = Effect.UNKNOWN

    def context(self, stopping: Callable[[], bool] | None = None) -> RunContext:
        """Return what the handler may know of the run, for a handler in this process."""
        return self.facts(self.handler).context(stopping or self.stop.is_set)

    def facts(self, handler: str) -> RunFacts:
        """Return what the handler may know of the run, for a handler in another process."""
        return RunFacts(
            self.run_id,
            self.attempt,
            handler,
            self.queue,
            self.task,
            self.fire_time,
            self.shard_index,
            self.shard_total,
            self.kind,
        )


class Executor(Protocol):
    """Runs attempts of one kind.

    - `execute` is stopped by cancelling it. It then tells its work to stop, waits `job.grace` seconds, kills
      what is left (the whole process group), and lets the `CancelledError` through only when nothing of the
      work is alive. Cancelled a second time, it kills at once.
    - If something cannot be killed, it raises `Unstoppable`.
    - An executor whose work goes on elsewhere, where the next attempt finds it, has `hands_over = True`. It
      is told to stop as soon as its worker drains, and `job.stop_reason` says when to leave that work alone.
    - An error of the work itself is not raised: it is the `Ended` that `execute` returns.
    - It awaits `job.may_begin()` right before the work has its first effect.
    """

    name: str

    async def execute(self, job: Job) -> Ended: ...

    async def close(self) -> None:
        """Free everything that outlives a run: pools, clients, children."""


class Unstoppable(Exception):
    """The work was told to stop, its grace is over, and it goes on and cannot be killed (a thread).

    `over` returns whether it has ended since; it is None when nothing in this process can know.
    """

    def __init__(self, message: str, over: Callable[[], bool] | None = None) -> None:
        super().__init__(message)
        self.over = over
