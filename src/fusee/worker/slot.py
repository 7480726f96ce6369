"""One place to run something in."""

from __future__ import annotations

import asyncio
from math import inf

from fusee.model import Claimed, End
from fusee.worker.context import RunContext
from fusee.worker.executors.base import Job
from fusee.worker.plan import Plan

__all__ = ["Slot"]


class Slot:
    """What one runner task is doing; the watch reads it, so starting a run arms no timer."""

    __slots__ = ("claimed", "deadline", "job", "plan", "reported", "started", "task", "told", "told_at")

    def __init__(self) -> None:
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

    def tell(self, end: End, now: float) -> None:
        """Ask it to stop; the first reason stands, asking again kills at once."""
        if self.told is None:
            self.told = end
            self.told_at = now
        if self.job is not None:
            self.job.told = self.told
            self.job.stop.set()
        if self.task is not None:
            self.task.cancel()

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
