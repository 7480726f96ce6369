"""Runs, tasks, workers, queues and keys as JSON objects; the same fields as the REST API has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.moments import time_text

if TYPE_CHECKING:
    from fusee.engine.model.queue import QueueStats
    from fusee.engine.model.run import Attempt, Run
    from fusee.engine.model.session import Session
    from fusee.tasks.model.fire import Fire
    from fusee.tasks.model.task import Task

__all__ = [
    "attempt_object",
    "fire_object",
    "queue_object",
    "run_object",
    "task_object",
    "time_text",
    "words_object",
    "worker_object",
]


def run_object(run: Run, attempts: Sequence[Attempt] | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": run.id,
        "namespace": run.namespace,
        "handler": run.handler,
        "executor": run.executor,
        "queue": run.queue,
        "region": run.region,
        "status": str(run.status),
        "reason": run.reason,
        "priority": run.priority,
        "attempt": run.attempt,
        "spent": run.spent,
        "payload": run.payload,
        "timeout": run.timeout,
        "retry": None if run.retry is None else run.retry.to_dict(),
        "result": run.result,
        "error": run.error,
        "output": run.output,
        "effect": None if run.effect is None else str(run.effect),
        "idempotency_key": run.idempotency_key,
        "origin_id": run.origin_id,
        "kind": run.kind,
        "task": run.task,
        "fire_time": time_text(run.fire_time),
        "strategy": run.strategy or None,
        "requires": dict(run.requires),
        "target": run.target,
        "cpu": run.cpu,
        "memory": run.memory,
        "hash_key": run.hash_key,
        "shard_index": run.shard_index,
        "shard_total": run.shard_total,
        "worker": run.worker,
        "created_at": time_text(run.created_at),
        "due_at": time_text(run.due_at),
        "started_at": time_text(run.started_at),
        "finished_at": time_text(run.finished_at),
        "cancel_requested_at": time_text(run.cancel_requested_at),
        "callback_deadline": time_text(run.callback_deadline),
    }
    if attempts is not None:
        fields["attempts"] = [attempt_object(attempt) for attempt in attempts]
    return fields


def attempt_object(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "end": str(attempt.end),
        "worker": attempt.worker,
        "started_at": time_text(attempt.started_at),
        "finished_at": time_text(attempt.finished_at),
        "error": attempt.error,
        "output": attempt.output,
        "effect": None if attempt.effect is None else str(attempt.effect),
        "late_end": attempt.late_end,
        "late_at": time_text(attempt.late_at),
    }


def worker_object(session: Session) -> dict[str, Any]:
    info = session.info
    return {
        "id": session.id,
        "namespace": session.namespace,
        "name": info.name,
        "state": str(session.state),
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "address": info.address,
        "capacity": info.capacity,
        "running": session.running,
        "assigned": session.assigned,
        "load": round(session.load, 3),
        "executors": list(info.executors),
        "handlers": list(info.handlers),
        "queues": list(info.queues),
        "region": info.region,
        "labels": dict(info.labels),
        "cpu": info.cpu,
        "cpu_free": session.cpu_free,
        "memory": info.memory,
        "memory_free": session.memory_free,
        "drain_asked_at": time_text(session.drain_asked_at),
        "started_at": time_text(session.started_at),
        "seen_at": time_text(session.seen_at),
        "expires_at": time_text(session.expires_at),
        "ended_at": time_text(session.ended_at),
    }


def queue_object(stats: QueueStats) -> dict[str, Any]:
    limits = stats.limits
    return {
        "name": stats.name,
        "paused": limits.paused,
        "concurrency": limits.concurrency,
        "rate": limits.rate,
        "burst": limits.burst,
        "strategy": limits.strategy or "shared",
        "blocked": stats.blocked,
        "delayed": stats.delayed,
        "pending": stats.pending,
        "running": stats.running,
        "waiting": stats.waiting,
        "oldest_pending_at": time_text(stats.oldest_pending_at),
        "unserved": list(stats.unserved),
    }


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
