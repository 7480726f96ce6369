"""A slot of the pool: the run that one runner task executes, and how that run is told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from math import inf

from fusee.engine.model.outcome import End
from fusee.engine.model.run import Claimed, RunKind
from fusee.engine.worker.context import RunContext
from fusee.engine.worker.executor import Job
from fusee.engine.worker.plan import Plan

__all__ = ["ConfirmStart", "Slot"]

ConfirmStart = Callable[[int, int], Awaitable[float | None]]
"""(run id, attempt) → until when it may begin; None when it was canceled or is no longer ours."""


class Slot:
    """What one runner task is doing. The watch loop reads it, so starting a run arms no timer."""

    __slots__ = (
        "_confirm",
        "_kinds",
        "claimed",
        "deadline",
        "job",
        "leaving",
        "plan",
        "settled",
        "started",
        "stop_reason",
        "stopped_at",
        "stuck",
        "task",
    )

    def __init__(self, confirm: ConfirmStart, kinds: Mapping[str, RunKind]) -> None:
        self._confirm = confirm
        self._kinds = kinds
        self.task: asyncio.Task[None] | None = None
        self.claimed: Claimed | None = None
        self.plan: Plan | None = None
        self.job: Job | None = None
        self.started = 0.0
        self.deadline = inf
        self.stop_reason: End | None = None
        """Why it was told to stop; its runner task ends after this run."""
        self.stopped_at = 0.0
        """When it was told to stop."""
        self.settled = False
        """Its outcome was decided without it, because it does not stop."""
        self.stuck = False
        """An event has reported that it does not stop."""
        self.leaving = False
        """It was told to stop before, and now its worker leaves or has lost its lease."""

    @property
    def awaited(self) -> bool:
        """Whether the run ends only when its handler has ended.

        A canceled run of some kinds does, since the next one must not start beside it. A worker that leaves
        waits no longer.
        """
        if self.stop_reason is not End.CANCELED or self.leaving or self.claimed is None:
            return False
        kind = None if self.claimed.kind is None else self._kinds.get(self.claimed.kind)
        return kind is not None and kind.ends_with_handler

    def stop(self, reason: End, now: float) -> None:
        """Tell the run to stop. The first reason stands; telling it again kills at once."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.stopped_at = now
        elif reason in (End.RETURNED, End.LOST):
            self.leaving = True
        if self.job is not None:
            self.job.stop_reason = self.stop_reason
            self.job.stop.set()
        if self.task is not None:
            self.task.cancel()

    def why_stopped(self) -> str:
        match self.stop_reason:
            case End.TIMED_OUT:
                return f"took longer than its timeout of {self.deadline - self.started:g} s and was stopped"
            case End.CANCELED:
                return "stopped because someone canceled it"
            case _:
                return "stopped because its worker went away"

    async def confirm(self, job: Job) -> None:
        """The attempt begins later than its claim allows: ask whether it still may, and stop it if not."""
        start_by = await self._confirm(job.run_id, job.attempt)
        if start_by is None:
            self.stop(End.CANCELED, time.monotonic())
            await asyncio.get_running_loop().create_future()  # the cancel ends this wait
        else:
            job.start_by = start_by

    def context(self) -> RunContext | None:
        claimed, plan = self.claimed, self.plan
        if claimed is None or plan is None:
            return None
        if self.job is not None:
            return self.job.context(lambda: self.stop_reason is not None)
        return RunContext(
            claimed.id,
            claimed.attempt,
            plan.lane.handler,
            plan.lane.queue,
            lambda: self.stop_reason is not None,
            kind=claimed.kind,
        )
