"""One place to run something in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf

from fusee.engine.model.outcome import End
from fusee.engine.model.run import Claimed
from fusee.engine.worker.context import RunContext
from fusee.engine.worker.executor import Job
from fusee.engine.worker.plan import Plan

__all__ = ["ConfirmStart", "Slot"]

ConfirmStart = Callable[[int, int], Awaitable[float | None]]
"""(run id, attempt) → until when it may begin; None when someone canceled it, or it is no longer ours."""


class Slot:
    """What one runner task is doing; the watch reads it, so starting a run arms no timer."""

    __slots__ = (
        "_confirm",
        "claimed",
        "deadline",
        "job",
        "leaving",
        "plan",
        "reported",
        "started",
        "stuck",
        "task",
        "told",
        "told_at",
    )

    def __init__(self, confirm: ConfirmStart) -> None:
        self._confirm = confirm
        self.task: asyncio.Task[None] | None = None
        self.claimed: Claimed | None = None
        self.plan: Plan | None = None
        self.job: Job | None = None
        self.started = 0.0
        self.deadline = inf
        self.told: End | None = None
        """Why it was told to stop; its runner retires after this run."""
        self.told_at = 0.0
        self.reported = False
        """Its outcome was decided without it, because it does not stop."""
        self.stuck = False
        """It was told of as one that does not stop."""
        self.leaving = False
        """Told to stop before, and now its worker leaves or has lost its lease."""

    @property
    def awaited(self) -> bool:
        """Whether its run ends only when its handler has ended: that of a canceled fire does, since the next
        fire must not start beside it. A worker that leaves waits no longer."""
        canceled = self.told is End.CANCELED and not self.leaving
        return canceled and self.claimed is not None and self.claimed.kind == "task"

    def tell(self, end: End, now: float) -> None:
        """Ask it to stop; the first reason stands, asking again kills at once."""
        if self.told is None:
            self.told = end
            self.told_at = now
        elif end in (End.RETURNED, End.LOST):
            self.leaving = True
        if self.job is not None:
            self.job.told = self.told
            self.job.stop.set()
        if self.task is not None:
            self.task.cancel()

    async def confirm(self, job: Job) -> None:
        """The attempt begins later than its claim allows: ask whether it still may, and stop it if not."""
        start_by = await self._confirm(job.run_id, job.attempt)
        if start_by is None:
            self.tell(End.CANCELED, time.monotonic())
            await asyncio.get_running_loop().create_future()  # the cancel ends this wait
        else:
            job.start_by = start_by

    def context(self) -> RunContext | None:
        claimed, plan = self.claimed, self.plan
        if claimed is None or plan is None:
            return None
        if self.job is not None:
            return self.job.context(lambda: self.told is not None)
        return RunContext(
            claimed.id,
            claimed.attempt,
            plan.lane.handler,
            plan.lane.queue,
            lambda: self.told is not None,
            kind=claimed.kind,
        )
