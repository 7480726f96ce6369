"""A fire: one time at which a task was due, and what was decided about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fusee.engine.model.states import RunStatus
from fusee.tasks.model.policy import Decision
from fusee.values.fields import As, Mark
from fusee.values.kinds import TIME

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

    task_id: Annotated[int, Mark.HIDDEN]
    fire_time: Annotated[int, TIME]
    shard: int
    cause: Cause
    decision: Decision
    code: Annotated[str, "The rule in one word, for counting."]
    rule: str
    run_id: int
    run_status: Annotated[RunStatus | None, "None when the run has been pruned."]
    decided_at: Annotated[int, TIME]
    admitted_at: Annotated[int | None, TIME]
    through: Annotated[int | None, TIME, "This row stands for every fire up to here."]
    held: Annotated[Held | None, "Why its run is blocked."]
    backfill_id: int | None
    started_at: Annotated[int | None, Mark.HIDDEN] = None
    """When its run was last claimed; None when it never was, or has been pruned."""

    @property
    def lateness(
        self,
    ) -> Annotated[float, As("lateness_seconds"), "Seconds between its time and its decision."]:
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
