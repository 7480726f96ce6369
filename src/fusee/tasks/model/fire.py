"""A fire: one time at which a task was due, and what was decided about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from fusee.engine.model.states import RunStatus
from fusee.tasks.model.policy import Decision

__all__ = ["Cause", "Fire", "Held", "fire_end"]


class Cause(StrEnum):
    """Why a task fired."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    """A person triggered it."""
    AFTER = "after"
    """A task that it waits for has ended."""
    BACKFILL = "backfill"
    """A person asked for the fires of a past range."""


class Held(StrEnum):
    """Why a fire's runs are blocked."""

    QUEUE = "queue"
    """They are in the task's queue."""
    PREVIOUS = "previous"
    """The earlier fire was canceled for this one and has not ended."""
    UPSTREAM = "upstream"
    """They wait for other tasks."""
    BACKFILL = "backfill"
    """Their backfill has reached its concurrency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """A row of the fire history: every due fire has one."""

    task_id: int
    fire_time: int
    shard: int
    cause: Cause
    decision: Decision
    code: str
    rule: str
    run_id: int
    run_status: RunStatus | None
    """None when retention has deleted the run."""
    decided_at: int
    admitted_at: int | None
    through: int | None
    held: Held | None
    backfill_id: int | None
    started_at: int | None = None
    """When its run was last claimed; None when it never was, or when the run is deleted."""

    @property
    def lateness(self) -> float:
        """Seconds between its time and its decision."""
        return (self.decided_at - self.fire_time) / 1_000_000


def fire_end(statuses: Collection[RunStatus], *, superseded: bool) -> RunStatus | None:
    """How a fire with these runs (one for each shard) ended, for the failure policy and for downstream tasks.

    Succeeded when all did; failed when one failed, timed out, or was canceled by a person. None when nothing
    ran that could fail: the fire was skipped, or canceled by its own task's policy.
    """
    bad = {RunStatus.FAILED, RunStatus.TIMED_OUT} | (set() if superseded else {RunStatus.CANCELED})
    if bad & set(statuses):
        return RunStatus.FAILED
    return RunStatus.SUCCEEDED if set(statuses) == {RunStatus.SUCCEEDED} else None
