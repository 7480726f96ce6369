"""Batches: create, plan, apply, cancel, retry, roll back."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from fusee.batches.model.batch import BatchStatus
from fusee.batches.rest.bodies import BatchPlanIn, BatchRetryIn, RollbackIn, SteerIn
from fusee.batches.rest.intake import read_batch
from fusee.batches.rest.shapes import (
    BatchOut,
    BatchPage,
    BatchTaskOut,
    BatchTaskPage,
    PlannedOut,
    PlanPage,
    RecordedOut,
    RecordedPage,
    RecountOut,
    RetriedOut,
)
from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.context import context_of, operations_of, services_of
from fusee.surfaces.rest.cursors import close_cursor, open_cursor, wrong_cursor
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.reading import read_json

__all__ = ["alias", "router"]

router = APIRouter(prefix="/api/v1/batches", tags=["batches"])
alias = APIRouter(prefix="/api/batch", tags=["batches"])
"""The older address: what is posted there starts at once."""

LONGEST_PAGE = 1000

BatchId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The batch's id.")]
Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
Header = Annotated[str | None, Query(description="Only with a CSV body: the batch as JSON.")]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/BatchIn"},
                "example": {
                    "batch_name": "stop the old ones",
                    "batch_type": "cdc_job_stop",
                    "target_type": "cdc",
                    "canary": 1,
                    "max_errors": 0.02,
                    "targets": [{"target_id": "17", "before": {}, "after": {}}],
                },
            },
            "application/x-ndjson": {
                "schema": {
                    "type": "string",
                    "description": "The batch on the first line, then a TargetIn a line.",
                }
            },
            "text/csv": {
                "schema": {"type": "string", "description": "target_id, target_name, before.x, after.y …"}
            },
        },
    }
}
_CREATED: dict[int | str, dict[str, Any]] = {
    200: {"model": BatchOut, "description": "The idempotency key had been used before."},
    409: {"description": "The key was used for another batch."},
}
Timeout = Annotated[
    float, Query(ge=0.1, le=300, description="Seconds; targets that nobody saw by then are unreachable.")
]
_UNSERVED: dict[int | str, dict[str, Any]] = {
    409: {"description": "No worker that has the operation is alive, or the batch is at another version."}
}
_REFUSED: dict[int | str, dict[str, Any]] = {
    409: {"description": "It is in a phase that does not allow this, or at another version."}
}


@router.post("", status_code=201, dependencies=[Operator], openapi_extra=_BODY, responses=_CREATED)
async def create_batch(
    request: Request, response: Response, batch: Header = None, idempotency_key: IdempotencyKey = None
) -> BatchOut:
    """Take in a batch with its targets, all or nothing; planned, not started, unless `apply` is true."""
    return await _create(request, response, idempotency_key, apply=False)


@alias.post("", status_code=201, dependencies=[Operator], openapi_extra=_BODY, responses=_CREATED)
async def create_and_apply(
    request: Request, response: Response, batch: Header = None, idempotency_key: IdempotencyKey = None
) -> BatchOut:
    """The same, and it starts at once unless `apply` is false."""
    return await _create(request, response, idempotency_key, apply=True)


async def _create(request: Request, response: Response, key: str | None, *, apply: bool) -> BatchOut:
    body = await read_batch(request)
    made, new = await operations_of(request).batches.create(
        body.fields,
        body.targets,
        idempotency_key=checked_key(key),
        apply=apply if body.apply is None else body.apply,
    )
    response.headers["Location"] = link(request, "batches", made.id)
    response.status_code = 201 if new else 200
    if new:
        audit(request, "batch created", batch_id=made.id, batch_type=made.spec.batch_type, total=made.total)
    return BatchOut.of(made)


@router.get("", dependencies=[Viewer])
async def list_batches(
    request: Request,
    status: Annotated[list[BatchStatus] | None, Query(description="May be repeated.")] = None,
    batch_type: str | None = None,
    target_type: str | None = None,
    creator: str | None = None,
    env: str | None = None,
    region: str | None = None,
    az: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> BatchPage:
    """Newest first."""
    wanted = BatchFilter(
        status=status or (),
        batch_type=batch_type,
        target_type=target_type,
        creator=creator,
        env=env,
        region=region,
        az=az,
        before=None if cursor is None else _number("b1", cursor),
        limit=min(limit + 1, LONGEST_PAGE),
    )
    found = list(await operations_of(request).batches.list(wanted))
    items = found[:limit]
    more = len(found) > limit or len(found) == LONGEST_PAGE
    return BatchPage(
        items=[BatchOut.of(one) for one in items],
        next_cursor=close_cursor("b1", str(items[-1].id)) if more else None,
    )


@router.get("/{batch_id}", dependencies=[Viewer])
async def get_batch(request: Request, batch_id: BatchId) -> BatchOut:
    """Its status and counts; as quick for a million targets as for one."""
    return BatchOut.of(await operations_of(request).batches.get(batch_id))


@router.get("/{batch_id}/tasks", dependencies=[Viewer])
async def list_targets(
    request: Request,
    batch_id: BatchId,
    status: Annotated[list[BatchStatus] | None, Query(description="May be repeated.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> BatchTaskPage:
    """Its targets in their order, each with where it stands."""
    wanted = _page(status, limit, cursor)
    found = list(await operations_of(request).batches.tasks(batch_id, wanted))
    return BatchTaskPage(
        items=[BatchTaskOut.of(task) for task in found[:limit]], next_cursor=_next(found, limit)
    )


@router.get("/{batch_id}/plan", dependencies=[Viewer])
async def recorded_plan(
    request: Request, batch_id: BatchId, limit: Limit = 50, cursor: Cursor = None
) -> RecordedPage:
    """What would change on each target by what is on record; nobody looks at the targets."""
    found = list(await operations_of(request).batches.recorded_plan(batch_id, _page(None, limit, cursor)))
    return RecordedPage(
        items=[RecordedOut.of(task, changes) for task, changes in found[:limit]],
        next_cursor=_next([task for task, _ in found], limit),
    )


@router.post(
    "/{batch_id}/plan",
    dependencies=[Operator],
    openapi_extra=body_of(BatchPlanIn, required=False),
    responses=_UNSERVED,
)
async def plan_batch(
    request: Request, batch_id: BatchId, limit: Limit = 50, cursor: Cursor = None, timeout: Timeout = 30.0
) -> PlanPage:
    """What applying it would do to each target: workers ask its operation, in parallel. Nothing is done."""
    wish = await read_json(request, BatchPlanIn, "a plan", optional=True)
    batches = operations_of(request).batches
    total = (await batches.get(batch_id)).total
    context_of(request).extend(timeout + services_of(request).config.request_timeout)
    wanted = TargetFilter(after=None if cursor is None else _number("t1", cursor), limit=limit)
    found = await batches.plan(batch_id, wanted, timeout=timeout, version=wish.version)
    last = found[-1].task.position if found else total
    return PlanPage(
        items=[PlannedOut.of(one) for one in found],
        counts=dict(Counter(str(one.action) for one in found)),
        next_cursor=close_cursor("t1", str(last)) if last + 1 < total else None,
    )


@router.get("/{batch_id}/recount", dependencies=[Viewer])
async def recount_batch(request: Request, batch_id: BatchId) -> RecountOut:
    """Look at every target and compare with the counts that are kept; slow for a large batch."""
    kept, counted = await operations_of(request).batches.recount(batch_id)
    return RecountOut(
        equal=kept == counted,
        kept={str(status): count for status, count in kept.items()},
        counted={str(status): count for status, count in counted.items()},
    )


@router.post(
    "/{batch_id}/apply",
    dependencies=[Operator],
    openapi_extra=body_of(SteerIn, required=False),
    responses=_REFUSED,
)
async def apply_batch(request: Request, batch_id: BatchId) -> BatchOut:
    """Start what was planned; asked twice, nothing changes."""
    wish = await read_json(request, SteerIn, "an apply", optional=True)
    made = await operations_of(request).batches.apply(batch_id, version=wish.version)
    audit(request, "batch applied", batch_id=batch_id)
    return BatchOut.of(made)


@router.post(
    "/{batch_id}/cancel",
    dependencies=[Operator],
    openapi_extra=body_of(SteerIn, required=False),
    responses=_REFUSED,
)
async def cancel_batch(request: Request, batch_id: BatchId) -> BatchOut:
    """No further target starts; what runs keeps its real outcome."""
    wish = await read_json(request, SteerIn, "a cancel", optional=True)
    made = await operations_of(request).batches.cancel(batch_id, reason=wish.reason, version=wish.version)
    audit(request, "batch canceled", batch_id=batch_id, reason=wish.reason)
    return BatchOut.of(made)


@router.post(
    "/{batch_id}/retry",
    dependencies=[Operator],
    openapi_extra=body_of(BatchRetryIn, required=False),
    responses=_REFUSED,
)
async def retry_batch(
    request: Request, batch_id: BatchId, idempotency_key: IdempotencyKey = None
) -> RetriedOut:
    """Try the failed targets again, and no others."""
    wish = await read_json(request, BatchRetryIn, "a retry", optional=True)
    made, retried = await operations_of(request).batches.retry(
        batch_id,
        canceled=wish.canceled,
        version=wish.version,
        idempotency_key=checked_key(idempotency_key),
    )
    audit(request, "batch retried", batch_id=batch_id, retried=retried)
    return RetriedOut(batch=BatchOut.of(made), retried=retried)


@router.post(
    "/{batch_id}/rollback",
    dependencies=[Operator],
    openapi_extra=body_of(RollbackIn, required=False),
    responses=_REFUSED,
)
async def roll_back_batch(request: Request, batch_id: BatchId) -> BatchOut:
    """Undo what was applied, or may have been; newest first."""
    wish = await read_json(request, RollbackIn, "a rollback", optional=True)
    made = await operations_of(request).batches.roll_back(
        batch_id,
        targets=None if wish.targets is None else [str(target) for target in wish.targets],
        force=wish.force,
        version=wish.version,
    )
    audit(request, "batch rolled back", batch_id=batch_id, force=wish.force)
    return BatchOut.of(made)


def _page(status: list[BatchStatus] | None, limit: int, cursor: str | None) -> TargetFilter:
    after = None if cursor is None else _number("t1", cursor)
    return TargetFilter(status=status or (), after=after, limit=min(limit + 1, LONGEST_PAGE))


def _next(found: list[Any], limit: int) -> str | None:
    more = len(found) > limit or len(found) == LONGEST_PAGE
    return close_cursor("t1", str(found[:limit][-1].position)) if more else None


def _number(kind: str, cursor: str) -> int:
    number = open_cursor(kind, cursor)
    if not number.isdecimal() or int(number) >= 2**63:
        raise wrong_cursor()
    return int(number)
