"""Runs, tasks, workers, queues and keys as JSON objects; the same fields as the REST API has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.moments import time_text

if TYPE_CHECKING:
    from fusee.tasks.model.fire import Fire
    from fusee.tasks.model.task import Task

__all__ = [
    "fire_object",
    "task_object",
    "time_text",
    "words_object",
]


def task_object(task: Task, next_fires: Sequence[int]) -> dict[str, Any]:
    from fusee.tasks.service.fields import fields_from

    spec = task.spec
    return {
        "id": task.id,
        "namespace": task.namespace,
        **fields_from(spec),
        "at": time_text(spec.at),
        "trigger": spec.trigger,
        "description_words": None if spec.cron is None else words_object(spec.cron),
        "status": str(task.status),
        "reason": task.reason,
        "version": task.version,
        "next_fire_at": time_text(task.next_fire_at),
        "next_fires": [time_text(at) for at in next_fires],
        "last_fire_at": time_text(task.last_fire_at),
        "last_run_id": task.last_run_id,
        "last_status": task.last_status,
        "failures": task.failures,
        "created_at": time_text(task.created_at),
        "updated_at": time_text(task.updated_at),
    }


def fire_object(fire: Fire) -> dict[str, Any]:
    return {
        "fire_time": time_text(fire.fire_time),
        "shard": fire.shard,
        "cause": str(fire.cause),
        "decision": str(fire.decision),
        "code": fire.code,
        "rule": fire.rule,
        "run_id": fire.run_id,
        "run_status": None if fire.run_status is None else str(fire.run_status),
        "decided_at": time_text(fire.decided_at),
        "admitted_at": time_text(fire.admitted_at),
        "lateness_seconds": fire.lateness,
        "held": None if fire.held is None else str(fire.held),
        "backfill_id": fire.backfill_id,
        "through": time_text(fire.through),
    }


def words_object(cron: str) -> dict[str, str]:
    """A cron expression in words."""
    from fusee.tasks.cron import Cron

    parsed = Cron.parse(cron)
    return {"en": parsed.describe("en"), "zh": parsed.describe("zh")}
