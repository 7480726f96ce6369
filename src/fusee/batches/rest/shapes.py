"""What the API answers about batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, Field

from fusee.batches.model.batch import Batch, BatchPhase, BatchStatus, BatchTask, PlanAction, Planned
from fusee.surfaces.rest.times import show_time

__all__ = [
    "BatchOut",
    "BatchPage",
    "BatchTaskOut",
    "BatchTaskPage",
    "ChangeOut",
    "PlanPage",
    "PlannedOut",
    "RecordedOut",
    "RecordedPage",
    "RecountOut",
    "RetriedOut",
]


class BatchOut(BaseModel):
    """A batch; `counts` has how many of its targets stand where."""

    batch_id: int
    namespace: str
    batch_name: str
    batch_type: str
    target_type: str
    creator: str
    env: str
    region: str
    az: str
    cmdb_service: str
    extra_info: dict[str, Any]
    concurrency: int
    canary: int
    ramp: float
    max_errors: float | None
    on_error: str
    on_conflict: str
    queue: str
    priority: int
    phase: BatchPhase
    status: BatchStatus
    reason: str | None
    version: int
    total: int
    counts: dict[str, int]
    window: int = Field(description="Targets that may be under way at once, at this moment.")
    waits_for: int | None = Field(description="Another batch that has a target which this one wants.")
    waiting: str | None = Field(
        description="Why none of its targets runs: its queue is paused, or no live worker can take them."
    )
    left_applied: int | None = Field(
        description="After a rollback: targets that are applied, or may be, and were not undone."
    )
    kept_until: str | None = Field(
        description="Until when it can be rolled back: then it is deleted (`dispatcher.batch_retention`)."
        " Null while it is under way, for a minute or two after its end, and where batches are kept forever."
    )
    create_time: str
    update_time: str
    started_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, batch: Batch) -> Self:
        spec = batch.spec
        return cls(
            batch_id=batch.id,
            namespace=batch.namespace,
            batch_name=spec.batch_name,
            batch_type=spec.batch_type,
            target_type=spec.target_type,
            creator=spec.creator,
            env=spec.env,
            region=spec.region,
            az=spec.az,
            cmdb_service=spec.cmdb_service,
            extra_info=dict(spec.extra_info),
            concurrency=spec.concurrency,
            canary=spec.canary,
            ramp=spec.ramp,
            max_errors=spec.max_errors,
            on_error=str(spec.on_error),
            on_conflict=str(spec.on_conflict),
            queue=spec.queue,
            priority=spec.priority,
            phase=batch.phase,
            status=batch.status,
            reason=batch.reason,
            version=batch.version,
            total=batch.total,
            counts={str(status): count for status, count in batch.counts.items()},
            window=batch.window,
            waits_for=batch.waits_for,
            waiting=batch.waiting,
            left_applied=batch.left_applied,
            kept_until=show_time(batch.kept_until),
            create_time=show_time(batch.created_at) or "",
            update_time=show_time(batch.updated_at) or "",
            started_at=show_time(batch.started_at),
            finished_at=show_time(batch.finished_at),
        )


class BatchPage(BaseModel):
    items: list[BatchOut]
    next_cursor: str | None


class BatchTaskOut(BaseModel):
    """One target, and where it stands."""

    batch_id: int
    position: int
    target_id: str
    target_name: str
    target_env: str
    before: Any
    after: Any
    image: Any = Field(description="What it was just before it was touched, as its operation saw it.")
    status: BatchStatus
    effect: str | None
    info: str | None
    retry_time: int = Field(description="How often it was tried again, by request or by its retry policy.")
    run_id: int | None
    rollback_run_id: int | None

    @classmethod
    def of(cls, task: BatchTask) -> Self:
        return cls(
            batch_id=task.batch_id,
            position=task.position,
            target_id=task.target_id,
            target_name=task.target_name,
            target_env=task.target_env,
            before=task.before,
            after=task.after,
            image=task.image,
            status=task.status,
            effect=None if task.effect is None else str(task.effect),
            info=task.info,
            retry_time=task.retry_time,
            run_id=task.run_id,
            rollback_run_id=task.rollback_run_id,
        )


class BatchTaskPage(BaseModel):
    items: list[BatchTaskOut]
    next_cursor: str | None


class ChangeOut(BaseModel):
    """One value that would change."""

    name: str
    before: Any
    after: Any


class RecordedOut(BaseModel):
    """One target, and what would change by what is on record."""

    position: int
    target_id: str
    target_name: str
    status: BatchStatus
    changes: list[ChangeOut]

    @classmethod
    def of(cls, task: BatchTask, changes: Mapping[str, tuple[Any, Any]]) -> Self:
        return cls(
            position=task.position,
            target_id=task.target_id,
            target_name=task.target_name,
            status=task.status,
            changes=_changes(changes),
        )


class RecordedPage(BaseModel):
    items: Sequence[RecordedOut]
    next_cursor: str | None


class PlannedOut(BaseModel):
    """One target, and what applying its batch would do to it, as its operation says; nothing is done."""

    position: int
    target_id: str
    target_name: str
    status: BatchStatus
    action: PlanAction
    changes: list[ChangeOut]
    info: str | None = Field(description="Why, when the target is unreachable or its parameters are invalid.")

    @classmethod
    def of(cls, one: Planned) -> Self:
        return cls(
            position=one.task.position,
            target_id=one.task.target_id,
            target_name=one.task.target_name,
            status=one.task.status,
            action=one.action,
            changes=_changes(one.changes),
            info=one.info,
        )


class PlanPage(BaseModel):
    items: Sequence[PlannedOut]
    counts: dict[str, int] = Field(description="How many targets of this page have which action.")
    next_cursor: str | None


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> list[ChangeOut]:
    return [ChangeOut(name=name, before=before, after=after) for name, (before, after) in changes.items()]


class RetriedOut(BaseModel):
    batch: BatchOut
    retried: int


class RecountOut(BaseModel):
    """The counts as they are kept, and as they are when every target is looked at."""

    equal: bool
    kept: dict[str, int]
    counted: dict[str, int]
