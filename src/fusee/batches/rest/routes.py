"""Batches: create, plan, apply, cancel, retry, roll back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from fusee.batches.model.batch import BatchStatus
from fusee.batches.rest.intake import LINES, read_batch
from fusee.batches.rest.shapes import (
    CREATE,
    BatchOut,
    BatchPage,
    BatchPlanIn,
    BatchRetriedOut,
    BatchRetryIn,
    BatchTaskPage,
    PlanPage,
    RecordedPage,
    RecountOut,
    RollbackIn,
    SteerIn,
    changes_shown,
)
from fusee.batches.service.batches import BatchOperations
from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.context import context_of, service_of, services_of
from fusee.surfaces.rest.paging import Page, Pager, number_at
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown
from fusee.values.kinds import plain

__all__ = ["STREAMED", "alias", "router"]

router = APIRouter(prefix="/api/v1/batches", tags=["batches"])
alias = APIRouter(prefix="/api/batch", tags=["batches"])
"""The older address: what is posted there starts at once."""

STREAMED = {router.prefix: LINES, alias.prefix: LINES}
BATCHES, TARGETS = Pager("b1", number_at), Pager("t1", number_at)

BatchId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The batch's id.")]
Header = Annotated[str | None, Query(description="Only with a CSV body: the batch as JSON.")]
Shown = dict[str, Any]
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


@router.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=CREATE,
    responses=_CREATED,
    response_model=BatchOut,
)
async def create_batch(
    request: Request, response: Response, batch: Header = None, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Take in a batch with its targets, all or nothing; planned, not started, unless `apply` is true."""
    return await _create(request, response, idempotency_key, apply=False)


@alias.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=CREATE,
    responses=_CREATED,
    response_model=BatchOut,
)
async def create_and_apply(
    request: Request, response: Response, batch: Header = None, idempotency_key: IdempotencyKey = None
) -> Shown:
    """The same, and it starts at once unless `apply` is false."""
    return await _create(request, response, idempotency_key, apply=True)


async def _create(request: Request, response: Response, key: str | None, *, apply: bool) -> Shown:
    body = await read_batch(request)
    made, new = await service_of(request, BatchOperations).create(
        body.fields,
        body.targets,
        idempotency_key=checked_key(key),
        apply=apply if body.apply is None else body.apply,
    )
    response.headers["Location"] = link(request, "batches", made.id)
    response.status_code = 201 if new else 200
    if new:
        audit(request, "batch created", batch_id=made.id, batch_type=made.spec.batch_type, total=made.total)
    return shown(made)


@router.get("", dependencies=[Viewer], response_model=BatchPage)
async def list_batches(
    request: Request,
    page: Page,
    status: Annotated[list[BatchStatus] | None, Query(description="May be repeated.")] = None,
    batch_type: str | None = None,
    target_type: str | None = None,
    creator: str | None = None,
    env: str | None = None,
    region: str | None = None,
    az: str | None = None,
) -> Shown:
    """Newest first."""
    wanted = BatchFilter(
        status=status or (),
        batch_type=batch_type,
        target_type=target_type,
        creator=creator,
        env=env,
        region=region,
        az=az,
        before=BATCHES.after(page.cursor),
        limit=page.asked,
    )
    found = await service_of(request, BatchOperations).list(wanted)
    return BATCHES.page(page, found, lambda batch: batch.id, shown)


@router.get("/{batch_id}", dependencies=[Viewer], response_model=BatchOut)
async def get_batch(request: Request, batch_id: BatchId) -> Shown:
    """Its status and counts; as quick for a million targets as for one."""
    return shown(await service_of(request, BatchOperations).get(batch_id))


@router.get("/{batch_id}/targets", dependencies=[Viewer], response_model=BatchTaskPage)
async def list_targets(
    request: Request,
    page: Page,
    batch_id: BatchId,
    status: Annotated[list[BatchStatus] | None, Query(description="May be repeated.")] = None,
) -> Shown:
    """Its targets in their order, each with its status."""
    wanted = TargetFilter(status=status or (), after=TARGETS.after(page.cursor), limit=page.asked)
    found = await service_of(request, BatchOperations).tasks(batch_id, wanted)
    return TARGETS.page(page, found, lambda task: task.position, shown)


@router.get("/{batch_id}/plan", dependencies=[Viewer], response_model=RecordedPage)
async def recorded_plan(request: Request, page: Page, batch_id: BatchId) -> Shown:
    """What would change on each target by what is on record; nobody looks at the targets."""
    wanted = TargetFilter(after=TARGETS.after(page.cursor), limit=page.asked)
    found = await service_of(request, BatchOperations).recorded_plan(batch_id, wanted)
    return TARGETS.page(page, found, lambda one: one[0].position, lambda one: changes_shown(*one))


@router.post(
    "/{batch_id}/plan",
    dependencies=[Operator],
    openapi_extra=body_of(BatchPlanIn, required=False),
    responses=_UNSERVED,
    response_model=PlanPage,
)
async def plan_batch(request: Request, page: Page, batch_id: BatchId, timeout: Timeout = 30.0) -> Shown:
    """What applying it would do to each target: workers ask its operation, in parallel. Nothing is done."""
    wish = await read_json(request, BatchPlanIn, "a plan", optional=True)
    batches = service_of(request, BatchOperations)
    total = (await batches.get(batch_id)).total
    context_of(request).extend(timeout + services_of(request).config.request_timeout)
    wanted = TargetFilter(after=TARGETS.after(page.cursor), limit=page.limit)
    found = await batches.plan(batch_id, wanted, timeout=timeout, version=wish.version)
    last = found[-1].task.position if found else total
    return {
        "items": [changes_shown(one.task, one.changes, action=one.action, info=one.info) for one in found],
        "counts": dict(Counter(str(one.action) for one in found)),
        "next_cursor": TARGETS.cursor(last) if last + 1 < total else None,
    }


@router.get("/{batch_id}/recount", dependencies=[Viewer])
async def recount_batch(request: Request, batch_id: BatchId) -> RecountOut:
    """Look at every target and compare with the counts that are kept; slow for a large batch."""
    kept, counted = await service_of(request, BatchOperations).recount(batch_id)
    return RecountOut(equal=kept == counted, kept=plain(kept), counted=plain(counted))


F = TypeVar("F", bound=Callable[..., Any])


def _steering(path: str, body: type[BaseModel], answer: type[BaseModel] = BatchOut) -> Callable[[F], F]:
    return router.post(
        f"/{{batch_id}}/{path}",
        dependencies=[Operator],
        openapi_extra=body_of(body, required=False),
        responses=_REFUSED,
        response_model=answer,
    )


@_steering("apply", SteerIn)
async def apply_batch(request: Request, batch_id: BatchId) -> Shown:
    """Start what was planned; asked twice, nothing changes."""
    wish = await read_json(request, SteerIn, "an apply", optional=True)
    made = await service_of(request, BatchOperations).apply(batch_id, version=wish.version)
    audit(request, "batch applied", batch_id=batch_id)
    return shown(made)


@_steering("cancel", SteerIn)
async def cancel_batch(request: Request, batch_id: BatchId) -> Shown:
    """No further target starts; what runs keeps its real outcome."""
    wish = await read_json(request, SteerIn, "a cancel", optional=True)
    made = await service_of(request, BatchOperations).cancel(
        batch_id, reason=wish.reason, version=wish.version
    )
    audit(request, "batch canceled", batch_id=batch_id, reason=wish.reason)
    return shown(made)


@_steering("retry", BatchRetryIn, BatchRetriedOut)
async def retry_batch(request: Request, batch_id: BatchId, idempotency_key: IdempotencyKey = None) -> Shown:
    """Try the failed targets again, and no others."""
    wish = await read_json(request, BatchRetryIn, "a retry", optional=True)
    made, retried = await service_of(request, BatchOperations).retry(
        batch_id,
        canceled=wish.canceled,
        version=wish.version,
        idempotency_key=checked_key(idempotency_key),
    )
    audit(request, "batch retried", batch_id=batch_id, retried=retried)
    return {"batch": shown(made), "retried": retried}


@_steering("rollback", RollbackIn)
async def roll_back_batch(request: Request, batch_id: BatchId) -> Shown:
    """Undo what was applied, or may have been; newest first."""
    wish = await read_json(request, RollbackIn, "a rollback", optional=True)
    made = await service_of(request, BatchOperations).roll_back(
        batch_id,
        targets=None if wish.targets is None else [str(target) for target in wish.targets],
        force=wish.force,
        version=wish.version,
    )
    audit(request, "batch rolled back", batch_id=batch_id, force=wish.force)
    return shown(made)
