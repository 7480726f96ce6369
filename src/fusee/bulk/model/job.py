"""A bulk job: one business over very many items, addressed by index; its states, and its progress.

The business is the bulk handler with its callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from fusee.bulk.model.pacing import HOLD
from fusee.bulk.model.spec import RATE, BulkSpec
from fusee.engine.model.states import IllegalTransition
from fusee.values.fields import As, Mark
from fusee.values.kinds import TIME
from fusee.values.words import Word

__all__ = [
    "AT_REST",
    "BULK",
    "HTTP_HANDLER",
    "BulkJob",
    "BulkLoad",
    "BulkLog",
    "BulkRest",
    "BulkStatus",
    "HeldBy",
    "Quarantined",
    "StalledJob",
    "handler_of_business",
    "next_bulk_status",
]

HTTP_HANDLER = "fusee.bulk_http"
"""The built-in handler that serves every business that is called over HTTP."""
UNKNOWN = -1
"""The number of rows of a query when counting them takes too long."""
LARGEST_CHUNK = 100_000


class BulkStatus(Word):
    CREATED = "created"
    """It was checked and written, and not started."""
    WAITING_BUSINESS = "waiting_business"
    """The business said that it will start the job itself."""
    RUNNING = "running"
    """Its business prepares it, or its items are processed."""
    STOPPING = "stopping"
    """No further item starts; items in progress end."""
    STOPPED = "stopped"
    """Someone stopped it, or its business did; a resume continues where it was."""
    FINISHED = "finished"
    """Every item is done or quarantined."""
    FAILED = "failed"
    """Too many items failed, or a segment could not continue; it can be resumed when the cause is gone."""


S = BulkStatus
AT_REST = (S.CREATED, S.STOPPED, S.FINISHED, S.FAILED)
"""Nothing of the job runs, and nothing waits to run."""

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
"""The transitions of a job: (state, verb) → state. Too many errors are a stop that ends as a failure."""


def next_bulk_status(status: BulkStatus, verb: str) -> BulkStatus:
    try:
        return BULK[status, verb]
    except KeyError:
        raise IllegalTransition(f"a bulk job that is {status} cannot {verb}") from None


class HeldBy(StrEnum):
    """What keeps a running job, or a segment of it, from starting more items."""

    RATE = "rate"
    """It runs at its rate; nothing else limits it."""
    HANDLER = "handler"
    """All of its concurrency is busy: items take too long for the rate, or the concurrency is too low."""
    WINDOW = "window"
    """Items that take very long, or wait for a retry, fill the window: make it larger."""
    SOURCE = "source"
    """It waits for items to be read."""
    NODE_CAP = "node_cap"
    """The worker may not start more (`worker.bulk_rate_cap`)."""
    CONCURRENCY = "concurrency"
    """The other segments of the job use all of its concurrency."""
    WORKER = "worker"
    """No worker processes it: no worker serves it, none is free, its queue is at its limit, or its business
    still prepares it."""


def handler_of_business(business: str) -> str:
    """Returns the name under which workers serve a business."""
    return f"bulk.{business}"


Absent = Annotated[int, "Places without an item that were passed: gaps between keys."]
Ended = Annotated[int, "Items that are done or quarantined."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """An item that failed all its attempts."""

    index: Annotated[
        int, "In the job that it came from: an item keeps its index when the quarantine is rerun."
    ]
    error: str
    attempts: int
    item: Annotated[str | None, "The item as JSON, truncated when it is long."] = None
    at: Annotated[int, TIME] = 0
    position: Annotated[int | None, Mark.HIDDEN] = None
    """Its place in this job, when it is another job's item."""

    @property
    def place(self) -> Annotated[int, As("position"), "Its place among the items of this job."]:
        return self.index if self.position is None else self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLog:
    """A line in the log of a job: what its business wrote (data), or what was done to the job (operator)."""

    id: int
    at: Annotated[int, TIME]
    kind: str
    who: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    """A job as people see it; its counts are stored, so reading them costs nothing."""

    id: int
    namespace: str
    spec: Annotated[BulkSpec, Mark.FLAT]
    status: BulkStatus
    reason: str | None
    version: int
    undo_of: Annotated[int | None, "The job whose items this one undoes."]
    data: Annotated[Any, Mark.DETAIL, "The business's own data."]
    first: Annotated[int | None, "The first item; null until the source was examined."]
    total: Annotated[
        int | None,
        "The number of items; null until the source was examined, and when counting the rows took too long.",
    ]
    ended: Ended
    quarantined: int
    retried: Annotated[int, "Attempts beyond the first of each item."]
    replayed: Annotated[
        int,
        "Items that were in progress at the last checkpoint of a worker that was lost, and were started"
        " again. A lower bound: there is no record of what was started after that checkpoint.",
    ]
    rate: Annotated[float, RATE, "Items started per second."]
    concurrency: int
    speed: Annotated[float, "Items per second, over about the last five seconds."]
    created_at: Annotated[int, TIME]
    updated_at: Annotated[int, TIME]
    started_at: Annotated[int | None, TIME]
    finished_at: Annotated[int | None, TIME]
    window: Annotated[int, "The size of each segment's window; 0: chosen for you."] = 0
    held_by: Annotated[
        HeldBy | None, "What keeps a running job from starting more items; `rate`: it runs at its rate."
    ] = None
    checking: Annotated[bool, "Whether its business has not agreed to it yet; it cannot start before."] = (
        False
    )
    item_timeout: Annotated[
        float | None, "Seconds that a call for an item or a chunk may take; null: no limit."
    ] = None
    stalled_since: Annotated[
        int | None,
        TIME,
        "When the last item ended, of a running job that has ended none for a while"
        " (`dispatcher.stalled_after`) although items are in progress.",
    ] = None
    errors_left: Annotated[
        int | None,
        Mark.DETAIL,
        "Items that may still be quarantined before it fails; null without an error budget.",
    ] = None
    changed: Annotated[
        bool, Mark.DETAIL, "False when a command changed nothing because the job was already so."
    ] = True
    fingerprint: Annotated[Mapping[str, Any] | None, Mark.HIDDEN] = None
    """Identifies the content of its source at its launch or its last extension."""
    stop: Annotated[int | None, "One past the last item, or key; null until the source was examined."] = None
    absent: Absent = 0

    @property
    def done(self) -> Annotated[int, "Items that succeeded."]:
        return self.ended - self.quarantined

    @property
    def progress(self) -> Annotated[float | None, "From 0 to 1; null while the number of items is unknown."]:
        if self.total is None:
            return None
        return self.ended / self.total if self.total else 1.0

    @property
    def eta(
        self,
    ) -> Annotated[float | None, As("eta_seconds"), "Seconds until the end at this speed; null on hold."]:
        if self.rate == HOLD:
            return None
        if self.total is None or self.speed <= 0 or self.status is not BulkStatus.RUNNING:
            return None
        return (self.total - self.ended) / self.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLoad:
    """The jobs of one business in one state that are not over."""

    business: str
    status: BulkStatus
    jobs: int
    left: int
    """The number of items of running jobs that have not ended."""
    speed: float
    """Items per second of running jobs."""
    held_by: HeldBy | None = None
    """What keeps running jobs from starting more items."""
    stalled: int = 0
    """How many of them have ended no item for a while, although items are in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRest:
    """A job that came to rest just now."""

    job_id: int
    namespace: str
    business: str
    status: BulkStatus
    reason: str | None


class StalledJob(NamedTuple):
    """A job that runs and has ended no item for a while, although items are in progress."""

    job_id: int
    namespace: str
    business: str
    seconds: float
    """Seconds since an item ended."""
    new: bool
    """Whether it was found for the first time."""
