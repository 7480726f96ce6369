"""What the API answers, as models: also the source of its description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

from pydantic import BaseModel

from fusee.engine.model.queue import QueueStats
from fusee.engine.model.run import Attempt, Run
from fusee.engine.model.session import Session
from fusee.engine.owners import Retried
from fusee.engine.store.contract import Enqueued
from fusee.surfaces.rest.times import show_time

__all__ = [
    "Accepted",
    "AttemptOut",
    "CallbackOut",
    "KeyMade",
    "KeyOut",
    "KeyPage",
    "QueueOut",
    "QueuePage",
    "ReadyOut",
    "RetriedOut",
    "RunOut",
    "RunPage",
    "RunSummary",
    "StreamAccepted",
    "WorkerOut",
    "WorkerPage",
]

SHORT_ERROR = 500


class Accepted(BaseModel):
    """A run that will end in a terminal state or visibly wait; `created` is false for a repeated key."""

    id: int
    created: bool

    @classmethod
    def of(cls, run: Enqueued) -> Self:
        return cls(id=run.id, created=run.created)


class RetriedOut(Accepted):
    """The new run of a retry; `rule` is what the policies of its task decided, when it belongs to one."""

    status: str
    rule: str | None

    @classmethod
    def of_retry(cls, run: Retried) -> Self:
        return cls(id=run.id, created=run.created, status=run.status, rule=run.rule)


class StreamAccepted(BaseModel):
    """How a stream of runs ended; `accepted` also counts those a repeated key had created before."""

    accepted: int
    created: int
    first_id: int | None
    last_id: int | None


class RunSummary(BaseModel):
    """A run in a list: without payload, result and output."""

    id: int
    namespace: str
    handler: str
    executor: str
    queue: str
    region: str
    status: str
    reason: str | None
    priority: int
    attempt: int
    spent: int
    error: str | None
    effect: str | None
    idempotency_key: str | None
    origin_id: int | None
    kind: str | None
    task: str | None
    fire_time: str | None
    shard_index: int
    shard_total: int
    strategy: str | None
    requires: dict[str, str]
    target: str | None
    worker: str | None
    created_at: str
    due_at: str
    started_at: str | None
    finished_at: str | None
    cancel_requested_at: str | None

    @classmethod
    def of(cls, run: Run) -> Self:
        summary = _summary(run)
        if run.error is not None and len(run.error) > SHORT_ERROR:
            summary["error"] = run.error[:SHORT_ERROR] + "…"
        return cls(**summary)


class AttemptOut(BaseModel):
    """A try that did not end the run."""

    attempt: int
    end: str
    worker: str | None
    started_at: str | None
    finished_at: str | None
    error: str | None
    output: str | None
    effect: str | None
    late_end: str | None
    late_at: str | None

    @classmethod
    def of(cls, attempt: Attempt) -> Self:
        return cls(
            attempt=attempt.attempt,
            end=attempt.end,
            worker=attempt.worker,
            started_at=show_time(attempt.started_at),
            finished_at=show_time(attempt.finished_at),
            error=attempt.error,
            output=attempt.output,
            effect=attempt.effect,
            late_end=attempt.late_end,
            late_at=show_time(attempt.late_at),
        )


class RunOut(RunSummary):
    """A run, whole."""

    payload: Any
    result: Any
    output: str | None
    timeout: float | None
    retry: dict[str, Any] | None
    callback_deadline: str | None
    cpu: float | None
    memory: int | None
    hash_key: str | None
    attempts: list[AttemptOut]

    @classmethod
    def of(cls, run: Run, attempts: Sequence[Attempt] = ()) -> Self:
        return cls(
            **_summary(run),
            payload=run.payload,
            result=run.result,
            output=run.output,
            timeout=run.timeout,
            retry=None if run.retry is None else run.retry.to_dict(),
            callback_deadline=show_time(run.callback_deadline),
            cpu=run.cpu,
            memory=run.memory,
            hash_key=run.hash_key,
            attempts=[AttemptOut.of(attempt) for attempt in attempts],
        )


def _summary(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "namespace": run.namespace,
        "handler": run.handler,
        "executor": run.executor,
        "queue": run.queue,
        "region": run.region,
        "status": run.status,
        "reason": run.reason,
        "priority": run.priority,
        "attempt": run.attempt,
        "spent": run.spent,
        "error": run.error,
        "effect": run.effect,
        "idempotency_key": run.idempotency_key,
        "origin_id": run.origin_id,
        "kind": run.kind,
        "task": run.task,
        "fire_time": show_time(run.fire_time),
        "shard_index": run.shard_index,
        "shard_total": run.shard_total,
        "strategy": run.strategy or None,
        "requires": dict(run.requires),
        "target": run.target,
        "worker": run.worker,
        "created_at": show_time(run.created_at),
        "due_at": show_time(run.due_at),
        "started_at": show_time(run.started_at),
        "finished_at": show_time(run.finished_at),
        "cancel_requested_at": show_time(run.cancel_requested_at),
    }


class CallbackOut(BaseModel):
    """How the run stands after its service's answer."""

    id: int
    status: str


class RunPage(BaseModel):
    items: list[RunSummary]
    next_cursor: str | None


class WorkerOut(BaseModel):
    """A worker's session: one life of its process."""

    id: int
    name: str
    host: str
    pid: int
    version: str
    state: str
    address: str
    capacity: int
    running: int
    assigned: int
    load: float
    executors: list[str]
    handlers: list[str]
    queues: list[str]
    region: str
    labels: dict[str, str]
    cpu: float | None
    cpu_free: float | None
    memory: int | None
    memory_free: int | None
    drain_asked_at: str | None
    started_at: str
    seen_at: str
    expires_at: str
    ended_at: str | None

    @classmethod
    def of(cls, session: Session) -> Self:
        info = session.info
        return cls(
            id=session.id,
            name=info.name,
            host=info.host,
            pid=info.pid,
            version=info.version,
            state=session.state,
            address=info.address,
            capacity=info.capacity,
            running=session.running,
            assigned=session.assigned,
            load=round(session.load, 3),
            executors=list(info.executors),
            handlers=list(info.handlers),
            queues=list(info.queues),
            region=info.region,
            labels=dict(info.labels),
            cpu=info.cpu,
            cpu_free=session.cpu_free,
            memory=info.memory,
            memory_free=session.memory_free,
            drain_asked_at=show_time(session.drain_asked_at),
            started_at=show_time(session.started_at) or "",
            seen_at=show_time(session.seen_at) or "",
            expires_at=show_time(session.expires_at) or "",
            ended_at=show_time(session.ended_at),
        )


class WorkerPage(BaseModel):
    items: list[WorkerOut]


class QueueOut(BaseModel):
    """A queue: what waits in it, its limits, and handlers with due runs that no live worker has."""

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    burst: int | None
    strategy: str
    blocked: int
    delayed: int
    pending: int
    running: int
    waiting: int
    oldest_pending_at: str | None
    unserved: list[str]

    @classmethod
    def of(cls, stats: QueueStats) -> Self:
        return cls(
            name=stats.name,
            paused=stats.limits.paused,
            concurrency=stats.limits.concurrency,
            rate=stats.limits.rate,
            burst=stats.limits.burst,
            strategy=stats.limits.strategy or "shared",
            blocked=stats.blocked,
            delayed=stats.delayed,
            pending=stats.pending,
            running=stats.running,
            waiting=stats.waiting,
            oldest_pending_at=show_time(stats.oldest_pending_at),
            unserved=list(stats.unserved),
        )


class QueuePage(BaseModel):
    items: list[QueueOut]


class KeyLike(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def created_at(self) -> int: ...
    @property
    def revoked_at(self) -> int | None: ...


class KeyOut(BaseModel):
    id: int
    name: str
    role: str
    created_at: str
    revoked_at: str | None

    @classmethod
    def of(cls, key: KeyLike) -> Self:
        return cls(
            id=key.id,
            name=key.name,
            role=key.role,
            created_at=show_time(key.created_at) or "",
            revoked_at=show_time(key.revoked_at),
        )


class KeyPage(BaseModel):
    items: list[KeyOut]


class KeyMade(BaseModel):
    """The key is shown this once."""

    id: int
    name: str
    role: str
    key: str


class ReadyOut(BaseModel):
    ready: bool
    reasons: list[str] = []
    warnings: list[str] = []
    """What is wrong with the work; the process is ready all the same."""
