"""A bulk job: one handler over very many items, addressed by index; its states, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor
from typing import Any, NamedTuple

from fusee.bulk.model.pacing import HOLD, UNLIMITED, rate_from
from fusee.bulk.model.window import LARGEST_WINDOW
from fusee.engine.model.states import IllegalTransition
from fusee.values.names import check_name
from fusee.values.words import Word

__all__ = [
    "BULK",
    "HTTP_HANDLER",
    "BulkAlerts",
    "BulkJob",
    "BulkLoad",
    "BulkLog",
    "BulkRest",
    "BulkSpec",
    "BulkStatus",
    "HeldBy",
    "Quarantined",
    "Segment",
    "SegmentState",
    "StalledJob",
    "check_budget",
    "check_item_timeout",
    "handler_of_business",
    "next_bulk_status",
]

HTTP_HANDLER = "fusee.bulk_http"
"""The built-in handler that serves every business that is reached over HTTP."""
MOST_ITEMS = 2**62
UNKNOWN = -1
"""How many rows a query has, when counting them takes too long."""
LONGEST_SPAN = 60.0
"""Seconds of waiting for which a window of automatic size makes room."""
LARGEST_CHUNK = 100_000
ITEM_TIMEOUT = 300.0
LONGEST_ITEM_TIMEOUT = 7 * 86400.0


class BulkStatus(Word):
    CREATED = "created"
    """Checked and written; not started."""
    WAITING_BUSINESS = "waiting_business"
    """The business said that it will start the job itself."""
    RUNNING = "running"
    """Being prepared by its business, or its items are being worked on."""
    STOPPING = "stopping"
    """No further item starts; what is under way ends."""
    STOPPED = "stopped"
    """Someone stopped it, or its business did; it goes on where it was when it is resumed."""
    FINISHED = "finished"
    """Every item is done or quarantined."""
    FAILED = "failed"
    """Too many items failed, or a segment could not go on; it can be resumed when the cause is gone."""


S = BulkStatus

BULK: Mapping[tuple[BulkStatus, str], BulkStatus] = {
    (S.CREATED, "start"): S.RUNNING,
    (S.CREATED, "refuse"): S.FAILED,
    (S.RUNNING, "wait_business"): S.WAITING_BUSINESS,
    (S.WAITING_BUSINESS, "business_start"): S.RUNNING,
    (S.WAITING_BUSINESS, "stop"): S.STOPPED,
    (S.RUNNING, "stop"): S.STOPPING,
    (S.RUNNING, "finish"): S.FINISHED,
    (S.STOPPING, "halt"): S.STOPPED,
    (S.STOPPING, "fail"): S.FAILED,
    (S.STOPPING, "finish"): S.FINISHED,
    (S.STOPPED, "resume"): S.RUNNING,
    (S.FAILED, "resume"): S.RUNNING,
    (S.STOPPED, "extend"): S.STOPPED,
    (S.FAILED, "extend"): S.FAILED,
    (S.FINISHED, "extend"): S.STOPPED,
}
"""A job's life: (state, verb) → state. Too many errors are a stop that ends as a failure."""


def next_bulk_status(status: BulkStatus, verb: str) -> BulkStatus:
    try:
        return BULK[status, verb]
    except KeyError:
        raise IllegalTransition(f"a bulk job that is {status} cannot {verb}") from None


class HeldBy(StrEnum):
    """What keeps a running job, or a segment of it, from starting more items."""

    RATE = "rate"
    """Nothing else: it runs at its rate."""
    HANDLER = "handler"
    """All of its concurrency is busy: items take too long for the rate, or the concurrency is too low."""
    WINDOW = "window"
    """Items that take very long, or wait to be tried again, hold the window: make it larger."""
    SOURCE = "source"
    """It waits for items to be read."""
    NODE_CAP = "node_cap"
    """The worker may not start more (`worker.bulk_rate_cap`)."""
    CONCURRENCY = "concurrency"
    """The other segments of the job hold all of its concurrency."""
    WORKER = "worker"
    """Nobody works on it: no worker serves it, none is free, its queue is at its limit, or its business still
    prepares it."""


class SegmentState(StrEnum):
    IDLE = "idle"
    """Items are left, and nobody works on it."""
    OPEN = "open"
    """It has a run."""
    DONE = "done"


def handler_of_business(business: str) -> str:
    """The name under which workers serve a business."""
    return f"bulk.{business}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAlerts:
    """Where to tell, and what of: delivered as http runs of their own, so retried and recorded."""

    webhook: str
    on_failure: bool = True
    """The job failed."""
    on_stalled: bool = True
    """The job stalled: items are under way, and none ends."""


def alerts_from(given: Any) -> BulkAlerts | None:
    """As callers write it: an address, or an object."""
    if given is None or isinstance(given, BulkAlerts):
        return given
    fields = {"webhook": given} if isinstance(given, str) else given
    if not isinstance(fields, Mapping):
        raise ValueError('alerts must be an address, or an object such as {"webhook": "https://…"}')
    if unknown := [name for name in fields if name not in BulkAlerts.__slots__]:
        raise ValueError(f"alerts has no {unknown[0]!r:.60}; it has {', '.join(BulkAlerts.__slots__)}")
    webhook = fields.get("webhook")
    if not isinstance(webhook, str) or not webhook.startswith(("http://", "https://")):
        raise ValueError("alerts.webhook must be the http or https address to post to")
    for name in ("on_failure", "on_stalled"):
        if not isinstance(fields.get(name, True), bool):
            raise ValueError(f"alerts.{name} must be true or false")
    return BulkAlerts(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSpec:
    """What a caller asks for; checked when it is made."""

    name: str
    business: str
    source: Mapping[str, Any]
    """Where the items come from: `{"kind": "range", "stop": 1000}`; see `docs/bulk.md`."""
    concurrency: int = 32
    """Items (or chunks) under way at once, over all workers."""
    rate: float = UNLIMITED
    """Items started a second, over all workers; `UNLIMITED` or `HOLD` (see `fusee.bulk.model.pacing`)."""
    window: int = 0
    """Items between the lowest one not done and the highest one started, in a segment; 0: chosen for you."""
    segments: int = 0
    """In how many parts it starts; 0: as many as workers serve it. Idle workers split them further."""
    item_attempts: int = 3
    item_backoff: float = 0.5
    """Seconds before an item is tried again; doubled each time."""
    item_timeout: float | None = ITEM_TIMEOUT
    """Seconds that a call for an item (or a chunk) may take; None: as long as it likes."""
    error_budget: float | None = None
    """More quarantined items than this fail the job: a number from 1 (or 0), or a share of all below 1."""
    adaptive: bool = False
    """Find the concurrency by itself, up to `concurrency`."""
    queue: str = "default"
    region: str = ""
    priority: int = 0
    creator: str = ""
    env: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    alerts: BulkAlerts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alerts", alerts_from(self.alerts))
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 200 or not self.name.isprintable():
            raise ValueError("name must be 1 to 200 printable characters")
        check_name(self.business, "business")
        if len(self.business) > 120:
            raise ValueError("business must be at most 120 characters")
        check_name(self.queue, "queue")
        if self.region:
            check_name(self.region, "region")
        for what in ("creator", "env"):
            value = getattr(self, what)
            if not isinstance(value, str) or len(value) > 128 or not (value.isprintable() or not value):
                raise ValueError(f"{what} must be at most 128 printable characters")
        if not isinstance(self.source, Mapping) or not isinstance(self.source.get("kind"), str):
            raise ValueError('source must be an object such as {"kind": "range", "stop": 1000}')
        _whole("concurrency", self.concurrency, 1, 100_000)
        _whole("window", self.window, 0, LARGEST_WINDOW)
        _whole("segments", self.segments, 0, 10_000)
        _whole("item_attempts", self.item_attempts, 1, 1000)
        _whole("priority", self.priority, -1000, 1000)
        if self.rate not in (UNLIMITED, HOLD):
            rate_from(self.rate)
        if not (_is_number(self.item_backoff) and 0 <= self.item_backoff <= 3600):
            raise ValueError("item_backoff must be seconds from 0 to 3600")
        if self.item_timeout is not None:
            check_item_timeout(self.item_timeout)
        if self.error_budget is not None:
            check_budget(self.error_budget)
        if not isinstance(self.adaptive, bool):
            raise ValueError("adaptive must be true or false")
        if not isinstance(self.labels, Mapping) or not all(
            isinstance(part, str) for pair in self.labels.items() for part in pair
        ):
            raise ValueError("labels must be an object of texts")

    def errors_allowed(self, total: int) -> int | None:
        """Quarantined items that do not fail it."""
        if self.error_budget is None:
            return None
        if 0 < self.error_budget < 1:
            return floor(self.error_budget * total + 1e-6)
        return int(self.error_budget)

    @property
    def retry_span(self) -> float:
        """Seconds that an item spends waiting when each of its tries but the last fails."""
        doublings = min(self.item_attempts - 1, 20)
        return min(self.item_backoff * (2.0**doublings - 1), LONGEST_SPAN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A contiguous part of a job's items."""

    job_id: int
    number: int
    first: int
    stop: int
    watermark: int
    """Every item of it below this is done."""
    reached: int
    """No item at or above this had been started at the last checkpoint."""
    ended: int
    quarantined: int
    retried: int
    replayed: int
    share: int
    """Units that it may have under way at once."""
    state: SegmentState
    run_id: int | None
    pace: float = 0.0
    """Its part of the job's rate, in items a second."""
    held_by: HeldBy | None = None
    """What keeps it from starting more."""
    absent: int = 0
    """Places without an item that were passed over: gaps between keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """An item that failed as often as it may be tried."""

    index: int
    """In the job that it came from: an item keeps its index when its quarantine is run again."""
    error: str
    attempts: int
    item: str | None = None
    """The item as JSON, cut short when it is long."""
    at: int = 0
    position: int | None = None
    """Its place in this job, when it is another job's item."""

    @property
    def place(self) -> int:
        """Where it stands among the items of this job."""
        return self.index if self.position is None else self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLog:
    """Something that was said about a job: by its business (data), or what someone did to it (operator)."""

    id: int
    at: int
    kind: str
    who: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    """A job as people see it; its counts are kept, never counted."""

    id: int
    namespace: str
    spec: BulkSpec
    status: BulkStatus
    reason: str | None
    version: int
    undo_of: int | None
    data: Any
    first: int | None
    """The first item; null until the source was looked at."""
    total: int | None
    """Items; of rows by key as they were counted at the launch, null when that took too long."""
    ended: int
    """Items that are done or quarantined."""
    quarantined: int
    retried: int
    """Tries beyond the first of each item."""
    replayed: int
    """Items that were under way at the last checkpoint of a worker that was lost, and were started again. A
    lower bound: what was started after that checkpoint is not on record."""
    rate: float
    concurrency: int
    speed: float
    """Items a second, over about the last five seconds."""
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    window: int = 0
    """Places of each segment's window; 0: chosen by itself."""
    held_by: HeldBy | None = None
    """What keeps it from starting more items; None when it does not run, or nothing does."""
    checking: bool = False
    """Whether its business has yet to agree to it: it starts when it has."""
    item_timeout: float | None = None
    """Seconds that a call for an item or a chunk may take."""
    stalled_since: int | None = None
    """When the last item ended, of a running job that has stalled: items are under way, and none ends."""
    errors_left: int | None = None
    """Items that may still be quarantined before the job fails; None when there is no budget."""
    changed: bool = True
    """False when a command found the job as it should be, and changed nothing."""
    fingerprint: Mapping[str, Any] | None = None
    """What tells the content of its source from another, as of its launch or its last extension."""

    stop: int | None = None
    """One past the last place; null until the source was looked at."""
    absent: int = 0
    """Places without an item that were passed over: gaps between keys."""

    @property
    def done(self) -> int:
        return self.ended - self.quarantined

    @property
    def progress(self) -> float | None:
        """From 0 to 1; None while nobody knows how many items there are."""
        if self.total is None:
            return None
        return self.ended / self.total if self.total else 1.0

    @property
    def eta(self) -> float | None:
        """Seconds until the end at this speed; a job on hold has none."""
        if self.rate == HOLD:
            return None
        if self.total is None or self.speed <= 0 or self.status is not BulkStatus.RUNNING:
            return None
        return (self.total - self.ended) / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLoad:
    """Jobs of one business that are in one state and not over."""

    business: str
    status: BulkStatus
    jobs: int
    left: int
    """Items that have not ended, of those that run."""
    speed: float
    """Items a second, of those that run."""
    held_by: HeldBy | None = None
    """What keeps them from starting more, of those that run."""
    stalled: int = 0
    """How many of them have ended no item for a while, though items are under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRest:
    """A job that came to rest just now."""

    job_id: int
    namespace: str
    business: str
    status: BulkStatus
    reason: str | None


class StalledJob(NamedTuple):
    """A job that runs and has ended no item for a while, though items are under way."""

    job_id: int
    namespace: str
    business: str
    seconds: float
    """Since an item ended."""
    new: bool
    """Whether it is found for the first time."""


def check_budget(budget: float) -> None:
    if not (_is_number(budget) and 0 <= budget <= MOST_ITEMS and (budget < 1 or budget == int(budget))):
        raise ValueError("error_budget must be a whole number, or a share of the items from 0 to below 1")


def check_item_timeout(seconds: float) -> None:
    if not (_is_number(seconds) and 0.1 <= seconds <= LONGEST_ITEM_TIMEOUT):
        raise ValueError("item_timeout must be from 0.1 s to 7 days, or: none")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} must be a whole number from {least} to {most}, not {value!r:.40}")
