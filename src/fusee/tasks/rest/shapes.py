"""What the API answers about tasks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.tasks.model.task import Task, TaskSpec
from fusee.tasks.service.apply import Change

__all__ = [
    "ApplyOut",
    "CronOut",
    "NextOut",
    "PreviewOut",
    "TaskOut",
    "TaskPage",
    "change_shown",
]


class Words(BaseModel):
    """A cron expression in words."""

    en: str
    zh: str


_MORE: dict[str, Any] = {
    "next_fires": (list[str], "Five at most; none while it is not enabled."),
    "description_words": (Words | None, "Of a task with cron."),
}
PreviewOut = answer_of("PreviewOut", TaskSpec, **_MORE)
TaskOut = answer_of("TaskOut", Task, **_MORE)
TaskPage = page_of(answer_of("TaskSummary", Task, brief=True))


class NextOut(BaseModel):
    """When a task fires next."""

    task: str
    next_fires: list[str]


class CronOut(BaseModel):
    """A cron expression, read."""

    expression: str
    cron: str = Field(description="The same with six fields, as it is stored.")
    timezone: str
    description_words: Words
    next_fires: list[str]


class DifferenceOut(BaseModel):
    field: str
    before: Any
    after: Any


class ChangeOut(BaseModel):
    """What applying does to one task."""

    name: str
    action: Literal["create", "update", "unchanged", "delete", "enable", "disable"]
    differences: list[DifferenceOut]


class ApplyOut(BaseModel):
    """What was done, or, in a dry run, what would be."""

    dry_run: bool
    changes: list[ChangeOut]


def change_shown(change: Change) -> dict[str, Any]:
    differences = [{"field": name, "before": old, "after": new} for name, old, new in change.differences]
    return {"name": change.name, "action": change.action, "differences": differences}
