"""What the API answers about tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field

from fusee.tasks.cron import Cron
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus, TriggerRule
from fusee.tasks.service.apply import Change
from fusee.tasks.service.fields import fields_from
from fusee.values.times import show_time, show_times

__all__ = [
    "ApplyOut",
    "ChangeOut",
    "CronOut",
    "NextOut",
    "PreviewOut",
    "TaskOut",
    "TaskPage",
    "TaskSummary",
]


Trigger = Annotated[str, Field(json_schema_extra={"enum": ["cron", "interval", "once", "after", "manual"]})]
Action = Annotated[
    str,
    Field(json_schema_extra={"enum": ["create", "update", "unchanged", "delete", "enable", "disable"]}),
]


def _time(at: int | None) -> str | None:
    return None if at is None else show_time(at)


class Words(BaseModel):
    """A cron expression in words."""

    en: str
    zh: str

    @classmethod
    def of(cls, cron: Cron) -> Self:
        return cls(en=cron.describe("en"), zh=cron.describe("zh"))


class Definition(BaseModel):
    """What a task is: the fields that callers write, complete."""

    name: str
    description: str
    cron: str | None = Field(description="Six fields, whatever was written.")
    every: float | None
    at: str | None
    timezone: str
    executor: str
    handler: str | None
    workflow: str | None
    batch: dict[str, Any] | None
    payload: Any
    queue: str
    region: str
    priority: int
    timeout: float | None
    retry: dict[str, Any] | None
    overlap_action: Overlap
    max_concurrency: int
    concurrency_policy: Concurrency
    queue_depth: int
    failure_action: FailureAction
    catch_up_mode: CatchUp
    catch_up_window: float
    catch_up_cap: int
    grace: float
    jitter: float
    rate: float | None
    burst: int
    shards: int
    after: list[str]
    trigger_rule: TriggerRule
    alerts: dict[str, Any] | None
    labels: dict[str, str]
    strategy: str | None
    cpu: float | None
    memory: int | None
    hash_key: str | None
    requires: dict[str, str]


class Upcoming(BaseModel):
    """When it fires."""

    trigger: Trigger = Field(description="What makes it fire.")
    next_fires: list[str] = Field(description="Five at most; none while it is not enabled.")
    description_words: Words | None = Field(description="Of a task with cron.")


def _upcoming(spec: TaskSpec, times: Sequence[int]) -> dict[str, Any]:
    return {
        "trigger": spec.trigger,
        "next_fires": show_times(times),
        "description_words": None if spec.cron is None else Words.of(Cron.parse(spec.cron)),
    }


def _definition(spec: TaskSpec) -> dict[str, Any]:
    return {**fields_from(spec), "at": _time(spec.at)}


class PreviewOut(Definition, Upcoming):
    """A task as it would be."""

    @classmethod
    def of(cls, spec: TaskSpec, times: Sequence[int]) -> Self:
        return cls(**_definition(spec), **_upcoming(spec, times))


class Standing(BaseModel):
    """How a task stands."""

    id: int
    namespace: str
    status: TaskStatus
    reason: str | None
    version: int = Field(description="One more with every change; send it back to change what you saw.")
    next_fire_at: str | None
    last_fire_at: str | None
    last_run_id: int | None
    last_status: str | None
    failures: int = Field(description="In a row.")
    created_at: str
    updated_at: str


def _standing(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "namespace": task.namespace,
        "status": task.status,
        "reason": task.reason,
        "version": task.version,
        "next_fire_at": _time(task.next_fire_at),
        "last_fire_at": _time(task.last_fire_at),
        "last_run_id": task.last_run_id,
        "last_status": task.last_status,
        "failures": task.failures,
        "created_at": _time(task.created_at),
        "updated_at": _time(task.updated_at),
    }


class TaskSummary(Standing):
    """A task in a list: without its payload and its policies."""

    name: str
    description: str
    trigger: Trigger
    cron: str | None
    every: float | None
    at: str | None
    timezone: str
    executor: str
    handler: str | None
    workflow: str | None
    queue: str
    labels: dict[str, str]

    @classmethod
    def of(cls, task: Task) -> Self:
        spec = task.spec
        return cls(
            **_standing(task),
            name=spec.name,
            description=spec.description,
            trigger=spec.trigger,
            cron=spec.cron,
            every=spec.every,
            at=_time(spec.at),
            timezone=spec.timezone,
            executor=spec.executor,
            handler=None if spec.workflow is not None or spec.batch is not None else spec.handler,
            workflow=spec.workflow,
            queue=spec.queue,
            labels=dict(spec.labels),
        )


class TaskPage(BaseModel):
    items: list[TaskSummary]
    next_cursor: str | None


class TaskOut(Standing, Definition, Upcoming):
    """A task, whole."""

    @classmethod
    def of(cls, task: Task, times: Sequence[int]) -> Self:
        return cls(**_standing(task), **_definition(task.spec), **_upcoming(task.spec, times))


class NextOut(BaseModel):
    """When a task fires next."""

    task: str
    next_fires: list[str]

    @classmethod
    def of(cls, task: Task, times: Sequence[int]) -> Self:
        return cls(task=task.name, next_fires=show_times(times))


class CronOut(BaseModel):
    """A cron expression, read."""

    expression: str
    cron: str = Field(description="The same with six fields, as it is stored.")
    timezone: str
    description_words: Words
    next_fires: list[str]

    @classmethod
    def of(cls, expression: str, cron: Cron, timezone: str, times: Sequence[int]) -> Self:
        return cls(
            expression=expression,
            cron=cron.text,
            timezone=timezone,
            description_words=Words.of(cron),
            next_fires=show_times(times),
        )


class DifferenceOut(BaseModel):
    field: str
    before: Any
    after: Any


class ChangeOut(BaseModel):
    """What applying does to one task."""

    name: str
    action: Action
    differences: list[DifferenceOut]

    @classmethod
    def of(cls, change: Change) -> Self:
        return cls(
            name=change.name,
            action=change.action,
            differences=[DifferenceOut(field=f, before=b, after=a) for f, b, a in change.differences],
        )


class ApplyOut(BaseModel):
    """What was done, or, in a dry run, what would be."""

    dry_run: bool
    changes: list[ChangeOut]
