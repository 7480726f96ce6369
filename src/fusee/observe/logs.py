"""The format of logs, set once, and the subscriber that logs events.

Code logs with the standard library and `extra=facts(…)`; structlog makes it a readable line or one of JSON.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import structlog

from fusee.config import LoggingConfig
from fusee.events import (
    BatchEnded,
    BatchRollingBack,
    BatchStopped,
    BrokerConnection,
    BulkJobRested,
    BulkJobsStalled,
    BulkSegmentEnded,
    Bus,
    Event,
    LoopFailed,
    MessageDeadLettered,
    QueuesStalled,
    RowReadable,
    RowSetAside,
    RunAttemptEnded,
    RunCancelRequested,
    RunRefused,
    RunsEnqueued,
    RunsFinished,
    RunsPromoted,
    RunsPruned,
    RunsPublished,
    RunsRecalled,
    RunStuck,
    SessionEnded,
    SessionExpired,
    SessionLost,
    SessionStarted,
    TaskPaused,
    TasksFired,
    WorkerMemory,
)
from fusee.facts import facts

__all__ = ["log_events", "set_up_logging"]

LINES_A_SECOND = 20
"""Lines about single attempts. When everything fails, further ones are only counted."""
SUMMARY_EVERY = 10.0

_PLAIN: Mapping[type[Event], tuple[int, str, tuple[str, ...]]] = {
    SessionStarted: (logging.INFO, "worker started", ("worker", "session")),
    SessionEnded: (logging.INFO, "worker ended", ("worker", "session")),
    SessionExpired: (
        logging.ERROR,
        "lease lost: everything that ran here was stopped",
        ("worker", "session", "dropped"),
    ),
    SessionLost: (
        logging.WARNING,
        "worker lost: its runs were returned",
        ("worker", "session", "requeued", "failed", "canceled"),
    ),
    RunStuck: (
        logging.ERROR,
        "handler ignores being told to stop: its slot stays taken until it ends",
        ("run_id", "attempt", "handler"),
    ),
    RunsPruned: (logging.DEBUG, "old runs deleted", ("count",)),
    TaskPaused: (
        logging.WARNING,
        "task paused by its policy: resume it when the cause is mended",
        ("namespace", "task", "reason"),
    ),
    MessageDeadLettered: (
        logging.ERROR,
        "a message became a dead letter: see `fusee broker dead list`",
        ("queue", "reason"),
    ),
}
"""Events that are one line each: its level, its text, and the members of the event that it names."""

_SHARED: list[Any] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


def set_up_logging(config: LoggingConfig, stream: TextIO | None = None) -> None:
    """All that is logged in this process, also by libraries, goes to `stream` (standard error), alike."""
    target = sys.stderr if stream is None else stream
    terminal = target.isatty()
    if config.format == "console" or (config.format == "auto" and terminal):
        last: list[Any] = [structlog.dev.ConsoleRenderer(colors=terminal)]
    else:
        last = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(),
        ]
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    # Libraries tell of every step; below warnings that is for their authors.
    for name in ("uvicorn", "asyncio", "alembic", "sqlalchemy", "aiohttp", "aiormq"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def log_events(
    bus: Bus, logger: logging.Logger | None = None, now: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Write down what happens; the answer undoes it. A run that simply succeeds leaves no line."""
    subscriber = _EventLog(logger or logging.getLogger("fusee"), now)
    undo = [
        *(bus.subscribe(kind, subscriber.plain) for kind in _PLAIN),
        bus.subscribe(RunAttemptEnded, subscriber.attempt_ended),
        bus.subscribe(RunRefused, subscriber.refused),
        bus.subscribe(RunCancelRequested, subscriber.cancel_requested),
        bus.subscribe(TasksFired, subscriber.fired),
        bus.subscribe(QueuesStalled, subscriber.stalled),
        bus.subscribe(BulkSegmentEnded, subscriber.segment_ended),
        bus.subscribe(BulkJobRested, subscriber.bulk_rested),
        bus.subscribe(BulkJobsStalled, subscriber.bulk_stalled),
        bus.subscribe(BatchStopped, subscriber.batch_stopped),
        bus.subscribe(BatchRollingBack, subscriber.batch_rolling_back),
        bus.subscribe(BatchEnded, subscriber.batch_ended),
        bus.subscribe(BrokerConnection, subscriber.broker_connection),
        bus.subscribe(WorkerMemory, subscriber.worker_memory),
        bus.subscribe(RunsPublished, subscriber.published),
        bus.subscribe(RunsRecalled, subscriber.recalled),
        bus.subscribe(LoopFailed, subscriber.loop_failed),
        bus.subscribe(RowSetAside, subscriber.row_set_aside),
        bus.subscribe(RowReadable, subscriber.row_readable),
    ]
    if subscriber.log.isEnabledFor(logging.DEBUG):
        # Only now: a listener makes the engine time every run.
        undo += [
            bus.subscribe(RunsFinished, subscriber.finished),
            bus.subscribe(RunsEnqueued, subscriber.enqueued),
            bus.subscribe(RunsPromoted, subscriber.promoted),
        ]

    def forget() -> None:
        for one in undo:
            one()

    return forget


class _EventLog:
    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self.log = log
        self.now = now
        self._second = -1
        self._lines = 0
        self._left_out = 0
        self._counts: dict[str, int] = {}
        self._summed_at = now()
        self._broker_connected: bool | None = None

    def _say(self, level: int, what: str, /, **about: Any) -> None:
        self.log.log(level, what, extra=facts(about))

    def plain(self, event: Event) -> None:
        level, what, names = _PLAIN[type(event)]
        self._say(level, what, **{name: getattr(event, name) for name in names})

    def worker_memory(self, event: WorkerMemory) -> None:
        about = {"worker": event.worker, "used": event.used, "limit": event.limit}
        if event.used is None:
            self._say(logging.ERROR, "worker.max_memory cannot be kept: the system tells no memory", **about)
        elif event.full:
            self._say(logging.WARNING, "above worker.max_memory: nothing more is claimed", **about)
        else:
            self._say(logging.INFO, "below worker.max_memory again: runs are claimed", **about)

    def broker_connection(self, event: BrokerConnection) -> None:
        """Log each change once, and not every try."""
        if event.up != self._broker_connected:
            self._broker_connected = event.up
            level = logging.INFO if event.up else logging.ERROR
            what = "the message broker is connected" if event.up else "the message broker is unreachable"
            error = {} if event.error is None else {"error": f"{type(event.error).__name__}: {event.error}"}
            self._say(level, what, **error)

    def published(self, event: RunsPublished) -> None:
        if event.again:
            self._say(
                logging.WARNING,
                "runs were published again: they were dispatched and never started",
                runs=event.count,
            )

    def recalled(self, event: RunsRecalled) -> None:
        self._say(
            logging.WARNING,
            "runs returned to the ready queue: no worker consumes their lane any more",
            runs=event.count,
        )

    def attempt_ended(self, event: RunAttemptEnded) -> None:
        if not self._has_room():
            return
        level = logging.WARNING if event.status in ("failed", "timed_out") else logging.INFO
        self._say(
            level,
            f"attempt {event.end}",
            run_id=event.run_id,
            attempt=event.attempt,
            handler=event.handler,
            status=event.status,
            seconds=round(event.seconds, 6),
            error=(event.error or "")[-2000:] or None,
            **event.belongs,
        )

    def _has_room(self) -> bool:
        second = int(self.now())
        if second != self._second:
            if self._left_out:
                self._say(
                    logging.WARNING, "more attempts ended than are logged one by one", count=self._left_out
                )
            self._second, self._lines, self._left_out = second, 0, 0
        self._lines += 1
        if self._lines > LINES_A_SECOND:
            self._left_out += 1
            return False
        return True

    def refused(self, event: RunRefused) -> None:
        if self._has_room():
            self._say(
                logging.WARNING,
                "late result refused: the run belongs to someone else by now",
                run_id=event.run_id,
                attempt=event.attempt,
                end=event.end,
            )

    def cancel_requested(self, event: RunCancelRequested) -> None:
        if self._has_room():
            self._say(logging.INFO, "run told to stop", run_id=event.run_id, attempt=event.attempt)

    def stalled(self, event: QueuesStalled) -> None:
        for namespace, queue in event.new:
            waited = round(event.waiting[namespace, queue])
            self._say(
                logging.WARNING, "queue has stalled", namespace=namespace, queue=queue, oldest_seconds=waited
            )

    def bulk_stalled(self, event: BulkJobsStalled) -> None:
        for job in event.jobs:
            if job.new:
                self._say(
                    logging.WARNING,
                    "bulk job has stalled: items are under way and none ends",
                    bulk_job_id=job.job_id,
                    namespace=job.namespace,
                    business=job.business,
                    seconds=round(job.seconds),
                )

    def segment_ended(self, event: BulkSegmentEnded) -> None:
        if self._has_room():
            self._say(
                logging.INFO,
                "bulk segment done" if event.finished else "bulk segment stopped",
                bulk_job_id=event.job_id,
                business=event.business,
                segment=event.segment,
                items=event.items,
            )

    def bulk_rested(self, event: BulkJobRested) -> None:
        level = logging.WARNING if event.status == "failed" else logging.INFO
        self._say(
            level,
            f"bulk job {event.status}",
            bulk_job_id=event.job_id,
            business=event.business,
            reason=event.reason,
        )

    def batch_stopped(self, event: BatchStopped) -> None:
        what = "batch stopped: too many targets failed"
        self._say(logging.WARNING, what, **_of_batch(event), reason=event.reason, rollback=event.rollback)

    def batch_rolling_back(self, event: BatchRollingBack) -> None:
        what = "batch is rolled back"
        self._say(logging.WARNING, what, **_of_batch(event), targets=event.targets, reason=event.reason)

    def batch_ended(self, event: BatchEnded) -> None:
        good = event.status in ("success", "rollback_success", "cancel")
        self._say(
            logging.INFO if good else logging.WARNING,
            f"batch ended: {event.status}",
            **_of_batch(event),
            targets=event.targets,
            failed=event.failed,
            seconds=round(event.seconds, 3),
            reason=event.reason,
        )

    def fired(self, event: TasksFired) -> None:
        """Fires that came in time go without a line; those that were missed are worth one."""
        missed = {code: count for code, count in event.counts.items() if code in ("catch_up", "caught_up")}
        if missed:
            self._say(logging.WARNING, "fires were missed: no dispatcher was there in time", **missed)

    def loop_failed(self, event: LoopFailed) -> None:
        # 1, 2, 4, 8 …: a database that is down for an hour is not an hour of lines.
        if event.failures & (event.failures - 1) == 0:
            self._say(
                logging.WARNING,
                "loop failed; it tries again",
                loop=event.loop,
                failures=event.failures,
                error=f"{type(event.error).__name__}: {event.error}",
            )

    def row_set_aside(self, event: RowSetAside) -> None:
        self._say(
            logging.ERROR,
            "a row cannot be read: it was set aside, the others go on",
            row=f"{event.kind} {event.id}",
            error=event.error,
        )

    def row_readable(self, event: RowReadable) -> None:
        what = "a row that was set aside can be read again, or is gone"
        self._say(logging.INFO, what, row=f"{event.kind} {event.id}")

    # -- only at debug, and only in sums

    def finished(self, event: RunsFinished) -> None:
        self._count("finished", len(event.seconds))

    def enqueued(self, event: RunsEnqueued) -> None:
        self._count("enqueued", event.count)

    def promoted(self, event: RunsPromoted) -> None:
        self._count("promoted", event.count)

    def _count(self, what: str, many: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + many
        if self.now() - self._summed_at >= SUMMARY_EVERY:
            counts, self._counts, self._summed_at = self._counts, {}, self.now()
            self._say(logging.DEBUG, "runs", **counts)


def _of_batch(event: BatchStopped | BatchRollingBack | BatchEnded) -> dict[str, Any]:
    return {
        "namespace": event.namespace,
        "batch_id": event.batch_id,
        "batch": event.name,
        "operation": event.operation,
    }
