"""Conversions between rows of bulk jobs and the model."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from fusee.bulk.model.job import UNKNOWN, BulkJob, BulkLog, BulkStatus, HeldBy, Quarantined
from fusee.bulk.model.pacing import rate_shown
from fusee.bulk.model.segment import Caution, Segment, SegmentState
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.model.window import Checkpoint
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.set_aside import reading

__all__ = [
    "SPEED_HOLDS",
    "caution_of",
    "caution_text",
    "checkpoint_of",
    "counted_in",
    "definition_of",
    "done_text",
    "held_by_from",
    "items_in",
    "job_from",
    "log_from",
    "quarantined_from",
    "segment_from",
    "shown_change",
    "spec_of_bulk",
]


SPEED_HOLDS = 5_000_000
"""Microseconds for which a speed is valid after the checkpoint that measured it; there is one every
second."""


def definition_of(spec: BulkSpec) -> tuple[str, str]:
    """Returns the job without its source, and the source."""
    plain = asdict(spec)
    source = plain.pop("source")
    return encode(plain, "the bulk job"), encode(source, "source")


def spec_of_bulk(row: Any) -> BulkSpec:
    return reading("bulk job", row.id, lambda: _spec(row))


def _spec(row: Any) -> BulkSpec:
    given: Mapping[str, Any] = decode(row.definition)
    known = {key: value for key, value in given.items() if key in BulkSpec.__slots__}
    known.setdefault("item_timeout", None)  # the job is older than the field
    return BulkSpec(**known, source=decode(row.source))


def job_from(row: Any) -> BulkJob:
    return reading("bulk job", row.id, lambda: _job(row))


def _job(row: Any) -> BulkJob:
    spec = spec_of_bulk(row)
    return BulkJob(
        id=row.id,
        namespace=row.namespace,
        spec=spec,
        status=BulkStatus(row.status),
        reason=row.reason,
        version=row.version,
        undo_of=row.undo_of,
        data=decode(row.data),
        first=row.first,
        total=items_in(row),
        stop=None if row.total is None else row.first + row.total,
        ended=row.ended - row.absent,
        absent=row.absent,
        quarantined=row.quarantined,
        retried=row.retried,
        replayed=row.replayed,
        rate=row.rate,
        concurrency=row.concurrency,
        speed=_speed(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        window=spec.window if row.window is None else row.window,
        held_by=_held_by(row),
        checking=row.checking in ("wait", "start"),
        fingerprint=None if row.fingerprint is None else decode(row.fingerprint),
        stalled_since=row.progressed_at
        if row.status == BulkStatus.RUNNING and row.stalled_at is not None
        else None,
        item_timeout=spec.item_timeout if row.item_timeout is None else row.item_timeout or None,
        errors_left=None if row.allowed is None else max(0, row.allowed - row.quarantined),
    )


def items_in(row: Any) -> int | None:
    """Returns how many items a job has: its places, or the rows that were counted; exact when it is over."""
    if row.total is None:
        return None
    most, ended = row.total - row.absent, row.ended - row.absent
    if row.item_count is None or row.ended == row.total:
        return int(most)
    return None if row.item_count == UNKNOWN else int(min(most, max(row.item_count, ended)))


def counted_in(row: Any) -> int:
    """Returns the number that an error budget is a share of: the rows that were counted, else the places."""
    return int(row.total if row.item_count in (None, UNKNOWN) else row.item_count)


def held_by_from(text: str | None) -> HeldBy | None:
    """Returns None also for a word of a newer version."""
    return HeldBy(text) if text in tuple(HeldBy) else None


def _held_by(row: Any) -> HeldBy | None:
    """Returns what its last checkpoint said; when that is long ago, it waits for a worker."""
    if row.status != BulkStatus.RUNNING:
        return None
    held = held_by_from(row.held_by)
    waits = row._mapping.get("asked_at", row.speed_at) - row.speed_at > SPEED_HOLDS
    return HeldBy.WORKER if waits and held is not HeldBy.NODE_CAP else held


def _speed(row: Any) -> float:
    """Returns the speed of the last checkpoints; 0 when they are long ago: no worker processes it."""
    if row.status not in (BulkStatus.RUNNING, BulkStatus.STOPPING):
        return 0.0
    asked_at = row._mapping.get("asked_at", row.speed_at)
    return float(row.speed) if asked_at - row.speed_at <= SPEED_HOLDS else 0.0


def segment_from(row: Any) -> Segment:
    return Segment(
        job_id=row.job_id,
        number=row.number,
        first=row.first,
        stop=row.stop,
        watermark=row.watermark,
        reached=row.reached,
        ended=row.ended - row.absent,
        absent=row.absent,
        quarantined=row.quarantined,
        retried=row.retried,
        replayed=row.replayed,
        share=row.share,
        state=SegmentState(row.state),
        run_id=row.run_id,
        pace=row.pace if row.state == SegmentState.OPEN else 0.0,
        held_by=held_by_from(row.held_by) if row.state == SegmentState.OPEN else None,
    )


def checkpoint_of(row: Any) -> Checkpoint:
    return Checkpoint(row.watermark, base64.b64decode(row.done))


def done_text(done: bytes) -> str:
    return base64.b64encode(done).decode()


def caution_of(row: Any) -> Caution | None:
    return None if row.caution is None else Caution(**decode(row.caution))


def caution_text(caution: Caution | None) -> str | None:
    return None if caution is None else encode(asdict(caution), "caution")


def quarantined_from(row: Any) -> Quarantined:
    moved = row.origin is not None
    return Quarantined(
        index=row.origin if moved else row.item_index,
        error=row.error,
        attempts=row.attempts,
        item=row.item,
        at=row.at,
        position=row.item_index if moved else None,
    )


def log_from(row: Any) -> BulkLog:
    return BulkLog(id=row.id, at=row.at, kind=row.kind, who=row.who, text=row.text)


def shown_change(name: str, value: Any) -> Any:
    """Returns a field's new value as the log of the job shows it."""
    if name == "rate":
        return rate_shown(value)
    if value is None or (name == "item_timeout" and not value):
        return "none"
    if name == "alerts":  # the rest of an address may contain a secret
        return "to {0.scheme}://{0.hostname}".format(urlsplit(value.webhook))
    return value
