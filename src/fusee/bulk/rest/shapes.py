"""What the API answers about bulk jobs and businesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from fusee.bulk.model.business import KnownBusiness
from fusee.bulk.model.job import BulkJob, BulkLog, BulkStatus, HeldBy, Quarantined, Segment, SegmentState
from fusee.bulk.model.pacing import rate_shown
from fusee.bulk.service.businesses import HIDDEN
from fusee.bulk.service.jobs import source_brief
from fusee.surfaces.rest.times import show_time

__all__ = [
    "BulkBrief",
    "BulkLogOut",
    "BulkLogPage",
    "BulkOut",
    "BulkPage",
    "BulkShown",
    "BusinessOut",
    "BusinessPage",
    "LoggedOut",
    "QuarantinePage",
    "QuarantinedOut",
    "SegmentOut",
]

MOST_SEGMENTS = 1000


class BulkBrief(BaseModel):
    """A bulk job in a list: without its data."""

    id: int
    namespace: str
    name: str
    business: str
    status: BulkStatus
    reason: str | None
    version: int
    undo_of: int | None
    source: dict[str, Any] = Field(description="Of an inline list, how many items it has.")
    first: int | None
    stop: int | None = Field(description="One past the last item, or key.")
    total: int | None = Field(
        description="Items. Null until its source was looked at, or while rows took too long to count."
    )
    ended: int = Field(description="Items that are done or quarantined.")
    done: int
    quarantined: int
    absent: int = Field(description="Places without an item that were passed over: gaps between keys.")
    retried: int = Field(description="Tries beyond the first of each item.")
    replayed: int = Field(
        description="Items that were under way at the last checkpoint of a worker that was lost, and were"
        " started again. A lower bound: what was started after that checkpoint is not on record."
    )
    progress: float | None = Field(description="From 0 to 1.")
    speed: float = Field(description="Items a second, over about the last five seconds.")
    eta_seconds: float | None
    rate: float | Literal["unlimited", "hold"] = Field(description="Items started a second.")
    concurrency: int
    window: int = Field(description="Places of each segment's window; 0: chosen by itself.")
    checking: bool = Field(description="Its business has yet to agree to it; it starts when it has.")
    held_by: HeldBy | None = Field(
        description="What keeps a running job from starting more items; `rate`: it runs at its rate."
    )
    stalled_since: str | None = Field(
        description="When the last item ended, of a running job that has ended none for a while"
        " (`dispatcher.stalled_after`) though items are under way."
    )
    item_attempts: int
    item_backoff: float
    item_timeout: float | None = Field(
        description="Seconds that a call for an item or a chunk may take; null: no limit."
    )
    error_budget: float | None
    adaptive: bool
    queue: str
    region: str
    priority: int
    creator: str
    env: str
    labels: dict[str, str]
    alerts: dict[str, Any] | None
    created_at: str
    updated_at: str
    started_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, job: BulkJob, **more: Any) -> Self:
        spec = job.spec
        return cls(
            id=job.id,
            namespace=job.namespace,
            name=spec.name,
            business=spec.business,
            status=job.status,
            reason=job.reason,
            version=job.version,
            undo_of=job.undo_of,
            source=source_brief(spec.source),
            first=job.first,
            stop=job.stop,
            total=job.total,
            ended=job.ended,
            done=job.done,
            quarantined=job.quarantined,
            absent=job.absent,
            retried=job.retried,
            replayed=job.replayed,
            progress=job.progress,
            speed=job.speed,
            eta_seconds=job.eta,
            rate=rate_shown(job.rate),
            concurrency=job.concurrency,
            window=job.window,
            checking=job.checking,
            held_by=job.held_by,
            stalled_since=show_time(job.stalled_since),
            item_attempts=spec.item_attempts,
            item_backoff=spec.item_backoff,
            item_timeout=job.item_timeout,
            error_budget=spec.error_budget,
            adaptive=spec.adaptive,
            queue=spec.queue,
            region=spec.region,
            priority=spec.priority,
            creator=spec.creator,
            env=spec.env,
            labels=dict(spec.labels),
            alerts=None if spec.alerts is None else asdict(spec.alerts),
            created_at=show_time(job.created_at) or "",
            updated_at=show_time(job.updated_at) or "",
            started_at=show_time(job.started_at),
            finished_at=show_time(job.finished_at),
            **more,
        )


class BulkOut(BulkBrief):
    """A bulk job, and how far it is."""

    data: Any
    errors_left: int | None = Field(
        description="Items that may still be quarantined before it fails; null without an error budget."
    )
    changed: bool = Field(description="False when a command found the job as it should be.")

    @classmethod
    def of(cls, job: BulkJob, **more: Any) -> Self:
        return super().of(job, data=job.data, errors_left=job.errors_left, changed=job.changed, **more)


class BulkPage(BaseModel):
    items: list[BulkBrief]
    next_cursor: str | None


class SegmentOut(BaseModel):
    """A part of a job's items, in the hands of one worker."""

    number: int
    first: int
    stop: int
    watermark: int = Field(description="Every item of it below this is done.")
    reached: int = Field(description="None at or above this had been started at the last checkpoint.")
    ended: int = Field(description="Items of it that are done or quarantined.")
    absent: int = Field(description="Places without an item that were passed over: gaps between keys.")
    quarantined: int
    retried: int
    replayed: int
    share: int = Field(description="Items or chunks that it may have under way at once.")
    state: SegmentState
    run_id: int | None
    pace: float = Field(description="Its part of the job's rate, in items a second.")
    held_by: HeldBy | None = Field(description="What keeps it from starting more items.")

    @classmethod
    def of(cls, segment: Segment) -> Self:
        return cls(**{name: getattr(segment, name) for name in cls.model_fields})


class BulkShown(BulkOut):
    """The same with its segments, by their first item; of very many, the first thousand."""

    segment_count: int
    segments: list[SegmentOut]

    @classmethod
    def whole(cls, job: BulkJob, segments: Sequence[Segment]) -> Self:
        shown = [SegmentOut.of(segment) for segment in segments[:MOST_SEGMENTS]]
        return cls.of(job, segment_count=len(segments), segments=shown)


class QuarantinedOut(BaseModel):
    """An item that failed as often as it may be tried."""

    index: int = Field(description="In the job that it came from.")
    position: int = Field(description="Among the items of this job.")
    error: str
    attempts: int
    item: str | None = Field(description="As JSON, cut short when it is long.")
    at: str

    @classmethod
    def of(cls, item: Quarantined) -> Self:
        return cls(
            index=item.index,
            position=item.place,
            error=item.error,
            attempts=item.attempts,
            item=item.item,
            at=show_time(item.at) or "",
        )


class QuarantinePage(BaseModel):
    items: list[QuarantinedOut]
    next_cursor: str | None


class BulkLogOut(BaseModel):
    """What its business wrote (`data`), or what was done to it (`operator`)."""

    id: int
    at: str
    kind: str
    who: str
    text: str

    @classmethod
    def of(cls, log: BulkLog) -> Self:
        return cls(id=log.id, at=show_time(log.at) or "", kind=log.kind, who=log.who, text=log.text)


class BulkLogPage(BaseModel):
    items: list[BulkLogOut]
    next_cursor: str | None


class LoggedOut(BaseModel):
    id: int = Field(description="The line's number in the job's log.")


class BusinessOut(BaseModel):
    """A business; of one in Python only its name is known here."""

    name: str
    kind: str = Field(description="http or python")
    version: int | None
    item: str | None = None
    chunk: str | None = None
    chunk_size: int | None = None
    undo: str | None = None
    on_create: str | None = None
    before_run: str | None = None
    on_stop: str | None = None
    on_finish: str | None = None
    headers: dict[str, str] = Field(default={}, description="Names; the values are shown to nobody.")
    timeout: float | None = None
    before_run_timeout: float | None = None
    with_data: bool | None = None
    defaults: dict[str, Any] = {}
    description: str = ""
    created_at: str | None = None
    updated_at: str | None = None

    @classmethod
    def of(cls, business: KnownBusiness) -> Self:
        registered = business.registered
        if registered is None:
            return cls(name=business.name, kind=business.kind, version=None)
        spec = registered.spec
        return cls(
            name=business.name,
            kind=business.kind,
            version=registered.version,
            item=spec.item,
            chunk=spec.chunk,
            chunk_size=spec.chunk_size if spec.chunk else None,
            undo=spec.undo,
            on_create=spec.on_create,
            before_run=spec.before_run,
            on_stop=spec.on_stop,
            on_finish=spec.on_finish,
            headers=dict.fromkeys(spec.headers, HIDDEN),
            timeout=spec.timeout,
            before_run_timeout=spec.before_run_timeout,
            with_data=spec.with_data,
            defaults=dict(spec.defaults),
            description=spec.description,
            created_at=show_time(registered.created_at),
            updated_at=show_time(registered.updated_at),
        )


class BusinessPage(BaseModel):
    items: list[BusinessOut]
    next_cursor: str | None
