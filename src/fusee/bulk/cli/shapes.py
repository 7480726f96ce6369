"""Bulk jobs and businesses as JSON objects; the same fields as the REST API has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.bulk.model.business import KnownBusiness
    from fusee.bulk.model.job import BulkJob, BulkLog, Quarantined, Segment

__all__ = ["bulk_object", "business_object", "log_object", "quarantined_object", "segment_object"]

SPEC = ("name", "business")
SETTINGS = ("item_attempts", "item_backoff", "error_budget", "adaptive", "queue", "region",
            "priority", "creator", "env")  # fmt: skip


def bulk_object(job: BulkJob, segments: Sequence[Segment] | None = None) -> dict[str, Any]:
    from fusee.bulk.model.pacing import rate_shown
    from fusee.bulk.service.jobs import source_brief

    spec = job.spec
    shown: dict[str, Any] = {
        "id": job.id,
        "namespace": job.namespace,
        **{field: getattr(spec, field) for field in SPEC},
        "status": str(job.status),
        "reason": job.reason,
        "version": job.version,
        "undo_of": job.undo_of,
        "source": source_brief(spec.source),
        "first": job.first,
        "stop": job.stop,
        "total": job.total,
        "ended": job.ended,
        "done": job.done,
        "quarantined": job.quarantined,
        "absent": job.absent,
        "retried": job.retried,
        "replayed": job.replayed,
        "progress": job.progress,
        "speed": job.speed,
        "eta_seconds": job.eta,
        "rate": rate_shown(job.rate),
        "concurrency": job.concurrency,
        "window": job.window,
        "checking": job.checking,
        "held_by": job.held_by,
        "stalled_since": time_text(job.stalled_since),
        "item_timeout": job.item_timeout,
        **{field: getattr(spec, field) for field in SETTINGS},
        "labels": dict(spec.labels),
        "alerts": None if spec.alerts is None else asdict(spec.alerts),
        "created_at": time_text(job.created_at),
        "updated_at": time_text(job.updated_at),
        "started_at": time_text(job.started_at),
        "finished_at": time_text(job.finished_at),
        "data": job.data,
        "errors_left": job.errors_left,
        "changed": job.changed,
    }
    if segments is not None:
        shown["segment_count"] = len(segments)
        shown["segments"] = [segment_object(segment) for segment in segments]
    return shown


def segment_object(segment: Segment) -> dict[str, Any]:
    return {
        "number": segment.number,
        "first": segment.first,
        "stop": segment.stop,
        "watermark": segment.watermark,
        "reached": segment.reached,
        "ended": segment.ended,
        "absent": segment.absent,
        "quarantined": segment.quarantined,
        "retried": segment.retried,
        "replayed": segment.replayed,
        "share": segment.share,
        "pace": segment.pace,
        "held_by": segment.held_by,
        "state": str(segment.state),
        "run_id": segment.run_id,
    }


def quarantined_object(item: Quarantined) -> dict[str, Any]:
    return {
        "index": item.index,
        "position": item.place,
        "error": item.error,
        "attempts": item.attempts,
        "item": item.item,
        "at": time_text(item.at),
    }


def log_object(log: BulkLog) -> dict[str, Any]:
    return {"id": log.id, "at": time_text(log.at), "kind": log.kind, "who": log.who, "text": log.text}


def business_object(business: KnownBusiness) -> dict[str, Any]:
    from fusee.bulk.service.businesses import HIDDEN

    registered = business.registered
    spec = None if registered is None else registered.spec
    shown: dict[str, Any] = {
        "name": business.name,
        "kind": business.kind,
        "version": None if registered is None else registered.version,
    }
    for field in ("item", "chunk", "undo", "on_create", "before_run", "on_stop", "on_finish", "timeout",
                  "before_run_timeout", "with_data"):  # fmt: skip
        shown[field] = None if spec is None else getattr(spec, field)
    return {
        **shown,
        "chunk_size": spec.chunk_size if spec is not None and spec.chunk else None,
        "headers": {} if spec is None else dict.fromkeys(spec.headers, HIDDEN),
        "defaults": {} if spec is None else dict(spec.defaults),
        "description": "" if spec is None else spec.description,
        "created_at": None if registered is None else time_text(registered.created_at),
        "updated_at": None if registered is None else time_text(registered.updated_at),
    }
