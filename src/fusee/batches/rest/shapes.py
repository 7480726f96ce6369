"""What callers send about batches, and what they get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from fusee.batches.fields import BATCH, TARGET
from fusee.batches.model.batch import Batch, BatchStatus, BatchTask, PlanAction
from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.surfaces.rest.asking import Body, body_of
from fusee.surfaces.rest.bodies import Incoming, Version

__all__ = [
    "CREATE",
    "BatchOut",
    "BatchPage",
    "BatchPlanIn",
    "BatchRetriedOut",
    "BatchRetryIn",
    "BatchTaskOut",
    "BatchTaskPage",
    "PlanPage",
    "RecordedPage",
    "RecountOut",
    "RollbackIn",
    "SteerIn",
    "changes_shown",
]


_TARGETS = {
    "type": "array",
    "minItems": 1,
    "items": {"anyOf": [TARGET.schema("One target."), {"type": "string"}, {"type": "integer"}]},
    "description": "Objects, or ids alone.",
}
_APPLY = {
    "type": ["boolean", "null"],
    "default": False,
    "description": "Start it at once, without looking at the plan.",
}
_BATCH_IN = BATCH.schema("A batch with its targets.", targets=_TARGETS, apply=_APPLY)
_BATCH_IN["required"].append("targets")
_EXAMPLE = {
    "batch_name": "stop the old ones",
    "batch_type": "cdc_job_stop",
    "target_type": "cdc",
    "canary": 1,
    "max_errors": 0.02,
    "targets": [{"target_id": "17", "before": {}, "after": {}}],
}
_LINES = {"type": "string", "description": "The batch on the first line, then one target on each line."}
_CSV = {"type": "string", "description": "target_id, target_name, before.x, after.y …"}
CREATE = body_of(
    Body("BatchIn", _BATCH_IN),
    example=_EXAMPLE,
    kinds={"application/x-ndjson": {"schema": _LINES}, "text/csv": {"schema": _CSV}},
)


class BatchPlanIn(Incoming):
    version: Version = None


class SteerIn(Incoming):
    reason: str = Field(default="canceled by request", max_length=500)
    version: Version = None


class BatchRetryIn(Incoming):
    canceled: bool = Field(default=False, description="Also the targets that were canceled.")
    version: Version = None


class RollbackIn(Incoming):
    targets: list[str | int] | None = Field(default=None, description="Only these; all when left out.")
    force: bool = Field(default=False, description="Also targets that have drifted.")
    version: Version = None


BatchOut = answer_of("BatchOut", Batch)
BatchPage = page_of(BatchOut)
BatchTaskOut = answer_of("BatchTaskOut", BatchTask)
BatchTaskPage = page_of(BatchTaskOut)


class TargetChangeOut(BaseModel):
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
    changes: list[TargetChangeOut]


class PlannedOut(RecordedOut):
    """One target, and what applying its batch would do to it, as its operation says; nothing is done."""

    action: PlanAction
    info: str | None = Field(description="Why, when the target is unreachable or its parameters are invalid.")


RecordedPage = page_of(RecordedOut)


class PlanPage(BaseModel):
    items: list[PlannedOut]
    counts: dict[str, int] = Field(description="How many targets of this page have which action.")
    next_cursor: str | None


def changes_shown(task: BatchTask, changes: Mapping[str, tuple[Any, Any]], **more: Any) -> dict[str, Any]:
    return {
        "position": task.position,
        "target_id": task.target_id,
        "target_name": task.target_name,
        "status": task.status,
        "changes": [{"name": name, "before": old, "after": new} for name, (old, new) in changes.items()],
        **more,
    }


class BatchRetriedOut(BaseModel):
    batch: BatchOut  # type: ignore[valid-type]
    retried: int


class RecountOut(BaseModel):
    """The counts as they are kept, and as they are when every target is looked at."""

    equal: bool
    kept: dict[str, int]
    counted: dict[str, int]
