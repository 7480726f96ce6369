"""Batches as JSON objects; the same fields as the REST API has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.batches.model.batch import Batch, BatchTask

__all__ = ["batch_object", "target_object"]


def batch_object(batch: Batch) -> dict[str, Any]:
    spec = batch.spec
    return {
        "batch_id": batch.id,
        "namespace": batch.namespace,
        "batch_name": spec.batch_name,
        "batch_type": spec.batch_type,
        "target_type": spec.target_type,
        "creator": spec.creator,
        "env": spec.env,
        "region": spec.region,
        "az": spec.az,
        "cmdb_service": spec.cmdb_service,
        "extra_info": dict(spec.extra_info),
        "concurrency": spec.concurrency,
        "canary": spec.canary,
        "ramp": spec.ramp,
        "max_errors": spec.max_errors,
        "on_error": str(spec.on_error),
        "on_conflict": str(spec.on_conflict),
        "queue": spec.queue,
        "priority": spec.priority,
        "phase": str(batch.phase),
        "status": str(batch.status),
        "reason": batch.reason,
        "version": batch.version,
        "total": batch.total,
        "counts": {str(status): count for status, count in batch.counts.items()},
        "window": batch.window,
        "waits_for": batch.waits_for,
        "waiting": batch.waiting,
        "left_applied": batch.left_applied,
        "kept_until": time_text(batch.kept_until),
        "create_time": time_text(batch.created_at),
        "update_time": time_text(batch.updated_at),
        "started_at": time_text(batch.started_at),
        "finished_at": time_text(batch.finished_at),
    }


def target_object(task: BatchTask) -> dict[str, Any]:
    return {
        "batch_id": task.batch_id,
        "position": task.position,
        "target_id": task.target_id,
        "target_name": task.target_name,
        "target_env": task.target_env,
        "before": task.before,
        "after": task.after,
        "image": task.image,
        "status": str(task.status),
        "effect": None if task.effect is None else str(task.effect),
        "info": task.info,
        "retry_time": task.retry_time,
        "run_id": task.run_id,
        "rollback_run_id": task.rollback_run_id,
    }
