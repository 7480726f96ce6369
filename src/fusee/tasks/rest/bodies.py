"""What callers send about tasks, apart from the tasks themselves (see `task_body`)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fusee.surfaces.rest.bodies import FireReason, Incoming, Reason
from fusee.surfaces.rest.times import DueAt, Seconds

__all__ = [
    "ApplyIn",
    "BackfillIn",
    "ClearQueueIn",
    "SimulateIn",
    "TaskSteerIn",
    "TriggerIn",
]

MOST_DOCUMENTS = 1000


class TaskSteerIn(Incoming):
    """Why a task is paused, resumed, enabled or disabled; and which version of it was meant."""

    reason: Reason | None = None
    version: int | None = Field(default=None, ge=1)


class ClearQueueIn(Incoming):
    """Why the queue of a task is emptied."""

    reason: FireReason = Field(default="cleared by hand", description="Kept with each fire that is left out.")


class TriggerIn(Incoming):
    """A fire by hand."""

    payload: dict[str, Any] | None = Field(
        default=None, description="Goes over the task's own, member by member."
    )
    reason: FireReason = Field(default="triggered by hand", description="Kept with the fire.")


class Stretch(Incoming):
    """From one time to another, both included."""

    begin: DueAt = Field(alias="from", description="RFC 3339 with an offset.")
    end: DueAt = Field(alias="to", description="The last moment that counts.")


class BackfillIn(Stretch):
    """A stretch of the past whose fires shall run, should they not have."""

    concurrency: int = Field(default=1, description="Fires under way at once, 1 to 1000.")
    dry_run: bool = Field(default=False, description="Only tell what would run.")


class SimulateIn(Stretch):
    """A policy to try on a stretch of time."""

    policy: dict[str, Any] = Field(
        default_factory=dict, description="Policy fields of a task; those left out stay as the task has them."
    )
    duration: Seconds | None = Field(
        default=None, description="For fires of which no run tells; else the median of those that do."
    )


class ApplyIn(Incoming):
    """Tasks as they shall be."""

    documents: list[dict[str, Any]] = Field(
        max_length=MOST_DOCUMENTS,
        description="Each a task, as `POST /api/v1/tasks` takes it.",
    )
    group: str = Field(default="default", description="Whose they are: prune deletes within it only.")
    prune: bool = Field(default=False, description="Delete those of the group that are not listed.")
    dry_run: bool = Field(default=False, description="Only tell what would change.")
