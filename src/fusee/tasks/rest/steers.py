"""What is done with a task: trigger, pause, resume, enable, disable, clear its queue, backfill."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from fusee.surfaces.rest.asking import IdempotencyKey, Operator, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import ETAG, IfMatch, version_from
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.reading import read_json
from fusee.tasks.rest.addressing import OF_TASK, TaskRef
from fusee.tasks.rest.routes import answer
from fusee.tasks.rest.shapes import (
    BackfillIn,
    BackfillOut,
    ClearQueueIn,
    QueueClearedOut,
    TaskOut,
    TaskSteerIn,
    TriggeredOut,
    TriggerIn,
)
from fusee.tasks.service.tasks import TaskOperations
from fusee.values.fields import shown

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], dependencies=[Operator])

Shown = dict[str, Any]
_REFUSED = {"description": "It is at another version, or in a state that does not allow this."}
_STEER: dict[str, Any] = {
    "openapi_extra": body_of(TaskSteerIn, required=False),
    "responses": {200: ETAG, 409: _REFUSED},
    "response_model": TaskOut,
}
_OFF = {"description": "It is disabled, or the idempotency key was used for another request."}


@router.post(
    f"{OF_TASK}/trigger",
    status_code=201,
    openapi_extra=body_of(TriggerIn, required=False),
    response_model=TriggeredOut,
    responses={
        200: {"model": TriggeredOut, "description": "The idempotency key had been used before."},
        409: _OFF,
    },
)
async def trigger_task(
    request: Request, response: Response, ref: TaskRef, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Fire now, under the policies; `decision` and `rule` say what was decided, also for a skipped fire."""
    wish = await read_json(request, TriggerIn, "a trigger", optional=True)
    triggered = await service_of(request, TaskOperations).trigger(
        ref, payload=wish.payload, idempotency_key=checked_key(idempotency_key), reason=wish.reason
    )
    response.status_code = 201 if triggered.created else 200
    if triggered.created:
        audit(request, "task triggered", task=ref, decision=str(triggered.decision), reason=wish.reason)
    return shown(triggered)


@router.post(
    f"{OF_TASK}/restart",
    status_code=201,
    response_model=TriggeredOut,
    responses={
        200: {"model": TriggeredOut, "description": "The idempotency key had been used before."},
        409: {"description": "It is disabled, has no fire yet, or its policies would skip this one."},
    },
)
async def restart_task(
    request: Request, response: Response, ref: TaskRef, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Run its last fire again, under the policies: with the same payload, logical time and shards."""
    restarted = await service_of(request, TaskOperations).restart(
        ref, idempotency_key=checked_key(idempotency_key)
    )
    response.status_code = 201 if restarted.created else 200
    if restarted.created:
        audit(request, "task restarted", task=ref, decision=str(restarted.decision))
    return shown(restarted)


@router.post(f"{OF_TASK}/pause", **_STEER)
async def pause_task(request: Request, response: Response, ref: TaskRef, if_match: IfMatch = None) -> Shown:
    """Stop its schedule; it can still be triggered by hand. Running fires continue, and queued fires are
    held until the task is resumed."""
    return await _steer(request, response, ref, "pause", if_match)


@router.post(f"{OF_TASK}/resume", **_STEER)
async def resume_task(request: Request, response: Response, ref: TaskRef, if_match: IfMatch = None) -> Shown:
    """Let it fire again, queued fires first. Fires that were due while it was paused are not made up for."""
    return await _steer(request, response, ref, "resume", if_match)


@router.post(f"{OF_TASK}/enable", **_STEER)
async def enable_task(request: Request, response: Response, ref: TaskRef, if_match: IfMatch = None) -> Shown:
    """Let it fire from now on, whether it was paused or disabled."""
    return await _steer(request, response, ref, "enable", if_match)


@router.post(f"{OF_TASK}/disable", **_STEER)
async def disable_task(request: Request, response: Response, ref: TaskRef, if_match: IfMatch = None) -> Shown:
    """Stop it, also for fires by hand. Running fires continue; fires that wait are recorded as skipped."""
    return await _steer(request, response, ref, "disable", if_match)


@router.post(f"{OF_TASK}/clear-queue", openapi_extra=body_of(ClearQueueIn, required=False))
async def clear_task_queue(request: Request, ref: TaskRef) -> QueueClearedOut:
    """Skip every queued fire; each is recorded as skipped, with the reason. Running fires and the schedule
    continue."""
    wish = await read_json(request, ClearQueueIn, "the request", optional=True)
    cleared = await service_of(request, TaskOperations).clear_queue(ref, reason=wish.reason)
    audit(request, "task queue cleared", task=ref, fires=cleared, reason=wish.reason)
    return QueueClearedOut(cleared=cleared)


@router.post(
    f"{OF_TASK}/backfill",
    status_code=201,
    openapi_extra=body_of(BackfillIn),
    response_model=BackfillOut,
    responses={
        200: {
            "model": BackfillOut,
            "description": "Nothing was made: a dry run, no fire to make up for, or a repeated key.",
        },
        409: {"description": "It has no schedule, is disabled, or the key was used for another backfill."},
    },
)
async def backfill_task(
    request: Request, response: Response, ref: TaskRef, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Run the fires of a past range that did not run, oldest first, beside the schedule."""
    wish = await read_json(request, BackfillIn, "a backfill")
    backfilled = await service_of(request, TaskOperations).backfill(
        ref,
        wish.begin,
        wish.end,
        concurrency=wish.concurrency,
        dry_run=wish.dry_run,
        idempotency_key=checked_key(idempotency_key),
    )
    response.status_code = 201 if backfilled.created else 200
    if backfilled.created:
        audit(request, "task backfilled", task=ref, backfill_id=backfilled.id, fires=backfilled.count)
    return shown(backfilled)


async def _steer(
    request: Request, response: Response, ref: str | int, verb: str, if_match: str | None
) -> Shown:
    wish = await read_json(request, TaskSteerIn, "the request", optional=True)
    version = version_from(wish.version, if_match)
    task = await service_of(request, TaskOperations).steer(ref, verb, reason=wish.reason, version=version)
    audit(request, f"task {verb}d", task=task.name, status=str(task.status), reason=wish.reason)
    return answer(request, response, task)
