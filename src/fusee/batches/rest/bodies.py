"""What callers send about batches."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["BATCH_SCHEMAS", "BatchIn", "BatchPlanIn", "BatchRetryIn", "RollbackIn", "SteerIn", "TargetIn"]

Version = Annotated[
    int | None,
    Field(default=None, ge=1, description="Refused with 409 when the batch is at another version."),
]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TargetIn(_In):
    """One target: what it was, and what it shall be."""

    target_id: str | int
    target_name: str = ""
    target_env: str = ""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}


class BatchIn(_In):
    """A batch with its targets."""

    model_config = ConfigDict(extra="allow", strict=False)

    batch_name: str = Field(min_length=1, max_length=200)
    batch_type: str = Field(description="The operation.", min_length=1, max_length=128)
    target_type: str = Field(min_length=1, max_length=128)
    creator: str = ""
    env: str = ""
    region: str = ""
    az: str = ""
    cmdb_service: str = ""
    extra_info: dict[str, Any] = {}
    concurrency: int = Field(default=32, ge=0, le=100_000, description="Targets at once; 0 is no cap.")
    canary: int = Field(default=0, ge=0)
    ramp: float = Field(default=2.0, ge=1, le=100)
    max_errors: float | str | None = Field(
        default=None, description="A number, or a share such as 0.02 or 2%."
    )
    on_error: str = Field(default="stop", pattern="^(stop|rollback)$")
    on_conflict: str = Field(
        default="wait",
        pattern="^(wait|refuse)$",
        description="What to do about targets that another batch is changing, or has still to change.",
    )
    queue: str = "default"
    priority: int = 0
    timeout: float | str | None = None
    retry: dict[str, Any] | None = None
    apply: bool = Field(default=False, description="Start it at once, without looking at the plan.")
    targets: list[TargetIn | str | int] = Field(min_length=1, description="Objects, or ids alone.")


class BatchPlanIn(_In):
    version: Version = None


class SteerIn(_In):
    reason: str = Field(default="canceled by request", max_length=500)
    version: Version = None


class BatchRetryIn(_In):
    canceled: bool = Field(default=False, description="Also the targets that were canceled.")
    version: Version = None


class RollbackIn(_In):
    targets: list[str | int] | None = Field(default=None, description="Only these; all when left out.")
    force: bool = Field(default=False, description="Also targets that have drifted.")
    version: Version = None


BATCH_SCHEMAS: tuple[type[BaseModel], ...] = (
    BatchIn,
    TargetIn,
    BatchPlanIn,
    SteerIn,
    BatchRetryIn,
    RollbackIn,
)
