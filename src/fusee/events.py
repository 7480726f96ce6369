"""Everything that happens, as small facts on a bus; logs, metrics and alerts subscribe.

Nothing is built when nobody listens: hot places ask `bus.wants(RunStarted)` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fusee.bulk.model.job import StalledJob

__all__ = [
    "BatchEnded",
    "BatchRollingBack",
    "BatchStopped",
    "BrokerConnection",
    "BulkJobRested",
    "BulkJobsStalled",
    "BulkProgressed",
    "BulkSegmentEnded",
    "Bus",
    "Event",
    "LoopFailed",
    "MessageDeadLettered",
    "QueuesStalled",
    "RowReadable",
    "RowSetAside",
    "RunAttemptEnded",
    "RunCancelRequested",
    "RunRefused",
    "RunStuck",
    "RunsClaimed",
    "RunsEnqueued",
    "RunsFinished",
    "RunsGranted",
    "RunsPromoted",
    "RunsPruned",
    "RunsPublished",
    "RunsRecalled",
    "SessionEnded",
    "SessionExpired",
    "SessionLost",
    "SessionStarted",
    "TaskPaused",
    "TasksFired",
    "WorkerMemory",
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True, slots=True)
class RunsEnqueued(Event):
    namespace: str
    queue: str
    handler: str
    count: int


@dataclass(frozen=True, slots=True)
class RunsClaimed(Event):
    session: int
    count: int


@dataclass(frozen=True, slots=True)
class RunsFinished(Event):
    """Runs that succeeded, written in one statement; `seconds` has one duration a run."""

    handler: str
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class RunAttemptEnded(Event):
    """An attempt ended in another way than plain success."""

    run_id: int
    attempt: int
    handler: str
    end: str
    status: str
    seconds: float
    error: str | None
    belongs: Mapping[str, Any] = field(default_factory=dict)
    """Whose run it is: its task, or its batch and target …"""


@dataclass(frozen=True, slots=True)
class RunRefused(Event):
    """A late result: the fence refused it and it was recorded as stale."""

    run_id: int
    attempt: int
    end: str


@dataclass(frozen=True, slots=True)
class RunCancelRequested(Event):
    run_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RunStuck(Event):
    """A handler ignored being told to stop and cannot be killed; its slot stays taken."""

    run_id: int
    attempt: int
    handler: str


@dataclass(frozen=True, slots=True)
class RunsAssigned(Event):
    """A dispatcher gave runs to workers by a strategy, and took back what had lost its worker."""

    placed: int
    returned: int


@dataclass(frozen=True, slots=True)
class RunsPromoted(Event):
    count: int


@dataclass(frozen=True, slots=True)
class RunsPruned(Event):
    count: int


@dataclass(frozen=True, slots=True)
class QueuesStalled(Event):
    """Queues whose oldest run has waited too long, each with its seconds; told also when there is none."""

    waiting: dict[tuple[str, str], float]
    new: tuple[tuple[str, str], ...]
    """Those that had not stalled at the last look."""


@dataclass(frozen=True, slots=True)
class TasksFired(Event):
    """One pass of the scan: fires by what decided them, and how late each came that was to run."""

    counts: dict[str, int]
    lateness: list[float]


@dataclass(frozen=True, slots=True)
class TaskPaused(Event):
    """A task was paused by its own policy."""

    namespace: str
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchStopped(Event):
    """More targets of a batch failed than it allows: no further one starts."""

    namespace: str
    batch_id: int
    name: str
    operation: str
    reason: str
    rollback: bool
    """What was applied is undone next."""


@dataclass(frozen=True, slots=True)
class BatchRollingBack(Event):
    """What a batch applied, or may have applied, is being undone."""

    namespace: str
    batch_id: int
    name: str
    operation: str
    targets: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class BatchEnded(Event):
    """Nothing is left to do for a batch."""

    namespace: str
    batch_id: int
    name: str
    operation: str
    status: str
    targets: int
    failed: int
    """Targets that failed, or could not be undone."""
    seconds: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class BulkProgressed(Event):
    """A checkpoint of a segment was written: what was added since the one before."""

    business: str
    done: int
    quarantined: int
    retried: int
    replayed: int


@dataclass(frozen=True, slots=True)
class BulkSegmentEnded(Event):
    """A worker is through with a segment, or was told to stop."""

    job_id: int
    business: str
    segment: int
    finished: bool
    items: int


@dataclass(frozen=True, slots=True)
class BulkJobRested(Event):
    """A bulk job is finished, stopped or failed."""

    job_id: int
    business: str
    status: str
    reason: str | None
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class BulkJobsStalled(Event):
    """Bulk jobs that run and end no item though items are under way; told also when there is none."""

    jobs: tuple[StalledJob, ...]


@dataclass(frozen=True, slots=True)
class RunsPublished(Event):
    """Runs that the message broker has confirmed; `again` if they were published before and never started."""

    count: int
    again: bool


@dataclass(frozen=True, slots=True)
class RunsRecalled(Event):
    """Dispatched runs that returned to the ready queue: no worker consumes their lane any more."""

    count: int


@dataclass(frozen=True, slots=True)
class RunsGranted(Event):
    """A worker asked to start dispatched runs; some may be refused (a copy, a canceled run …)."""

    granted: int
    refused: int


@dataclass(frozen=True, slots=True)
class MessageDeadLettered(Event):
    """The message broker gave a message up, and it was stored as a dead letter."""

    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerConnection(Event):
    """The connection to the message broker was made, was lost, or could not be made."""

    up: bool
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class WorkerMemory(Event):
    """A worker's process went above its memory limit, or came back below it."""

    worker: str
    used: int | None
    """Bytes; None where the system does not tell, so that the limit cannot be kept."""
    limit: int
    full: bool


@dataclass(frozen=True, slots=True)
class SessionStarted(Event):
    session: int
    worker: str


@dataclass(frozen=True, slots=True)
class SessionEnded(Event):
    session: int
    worker: str
    returned: int


@dataclass(frozen=True, slots=True)
class SessionExpired(Event):
    """This worker could not renew its lease in time and gave up everything it ran."""

    session: int
    worker: str
    dropped: int


@dataclass(frozen=True, slots=True)
class SessionLost(Event):
    """A dispatcher found a dead session and returned its runs: so many of this session's."""

    session: int
    worker: str
    requeued: int
    failed: int
    canceled: int = 0


@dataclass(frozen=True, slots=True)
class RowSetAside(Event):
    """This process cannot read a row (a task, a batch …): it leaves the row out and goes on."""

    kind: str
    id: int | str
    error: str


@dataclass(frozen=True, slots=True)
class RowReadable(Event):
    """A row that was set aside can be read again, or is gone."""

    kind: str
    id: int | str


@dataclass(frozen=True, slots=True)
class LoopFailed(Event):
    loop: str
    error: BaseException
    failures: int


E = TypeVar("E", bound=Event)


class Bus:
    """Delivers each event to its subscribers, at once and in order; a failing subscriber harms no one."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Event], list[Callable[[Any], None]]] = {}
        self.broken: int = 0

    def subscribe(self, kind: type[E], receive: Callable[[E], None]) -> Callable[[], None]:
        """Call `receive` for each event of that kind; the answer undoes it."""
        receivers = self._subscribers.setdefault(kind, [])
        receivers.append(receive)
        return lambda: receivers.remove(receive)

    def wants(self, kind: type[Event]) -> bool:
        return bool(self._subscribers.get(kind))

    def emit(self, event: Event) -> None:
        for receive in tuple(self._subscribers.get(type(event), ())):
            try:
                receive(event)
            except Exception:
                # A broken subscriber must not stop the engine; the count shows in health.
                self.broken += 1
