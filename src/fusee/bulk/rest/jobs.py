"""Bulk jobs: create, list, show, start, stop, adjust, delete, undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from fusee.bulk.fields import ADJUSTABLE, BULK, FOLLOW_UP
from fusee.bulk.model.job import BulkJob, BulkStatus
from fusee.bulk.rest.shapes import (
    ADJUST,
    CREATE,
    FOLLOWING_UP,
    BulkDataIn,
    BulkExtendIn,
    BulkOut,
    BulkPage,
    BulkShown,
    BulkStartIn,
    BulkStopIn,
)
from fusee.bulk.service.jobs import BulkOperations
from fusee.bulk.store.queries import BulkFilter
from fusee.surfaces.rest.asking import Body, IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import IfMatch, version_from
from fusee.surfaces.rest.context import context_of, service_of
from fusee.surfaces.rest.paging import Page, Pager, number_at
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.reading import read_json, read_object
from fusee.values.fields import shown
from fusee.values.kinds import FLAG

__all__ = ["JobId", "Shown", "fields_of_follow_up", "followed", "following", "router", "who_asks"]

router = APIRouter(prefix="/api/v1/bulk-jobs", tags=["bulk jobs"])

JOBS = Pager("j1", number_at)
MOST_SEGMENTS = 1000

F = TypeVar("F", bound=Callable[..., Any])
Shown = dict[str, Any]

JobId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The job's id.")]
REFUSED: dict[int | str, dict[str, Any]] = {
    409: {"description": "It is in a state that does not allow this, or at another version."}
}
_EXAMPLE = {
    "name": "newsletter",
    "business": "mail",
    "source": {"kind": "url", "url": "https://crm.example/users.csv"},
    "rate": 500,
    "concurrency": 64,
    "error_budget": "2%",
    "start": True,
}
_MADE: dict[int | str, dict[str, Any]] = {
    200: {"model": BulkOut, "description": "The idempotency key had been used before."},
    409: {"description": "The key was used for another job, or its business cannot be asked."},
}


def who_asks(request: Request) -> str:
    """Returns the name of the caller, for the log of the job."""
    caller = context_of(request).caller
    assert caller is not None
    return caller.name


@router.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=body_of(CREATE, example=_EXAMPLE),
    responses=_MADE,
    response_model=BulkOut,
)
async def create_bulk_job(
    request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Create a job, after its source was examined and its business was asked; `start` starts it."""
    fields = await read_object(request, f"a bulk job is an object such as {BULK.example}")
    data, start = fields.pop("data", None), FLAG.read(fields.pop("start", False), "start")
    job, new = await service_of(request, BulkOperations).create(
        fields,
        data=data,
        idempotency_key=checked_key(idempotency_key),
        start=start,
        who=who_asks(request),
    )
    response.headers["Location"] = link(request, "bulk-jobs", job.id)
    response.status_code = 201 if new else 200
    if new:
        audit(request, "bulk job created", bulk_job_id=job.id, business=job.spec.business, started=start)
    return shown(job)


@router.get("", dependencies=[Viewer], response_model=BulkPage)
async def list_bulk_jobs(
    request: Request,
    page: Page,
    status: Annotated[list[BulkStatus] | None, Query(description="May be repeated.")] = None,
    business: str | None = None,
    name: Annotated[str | None, Query(description="The whole name.")] = None,
) -> Shown:
    """List jobs, newest first."""
    wanted = BulkFilter(
        status=status or (),
        business=business,
        name=name,
        before=JOBS.after(page.cursor),
        limit=page.asked,
    )
    found = await service_of(request, BulkOperations).list(wanted)
    return JOBS.page(page, found, lambda job: job.id, lambda job: shown(job, brief=True))


@router.get("/{job_id}", dependencies=[Viewer], response_model=BulkShown)
async def get_bulk_job(request: Request, job_id: JobId) -> Shown:
    """Show a job: its progress, its speed and its segments. Ten billion items cost as little time as one."""
    jobs = service_of(request, BulkOperations)
    job, segments = await jobs.get(job_id), await jobs.segments(job_id)
    listed = [shown(segment) for segment in segments[:MOST_SEGMENTS]]
    return shown(job, segment_count=len(segments), segments=listed)


def steering(path: str, body: type[BaseModel] | Body, *, method: str = "POST") -> Callable[[F], F]:
    return router.api_route(
        f"/{{job_id}}/{path}",
        methods=[method],
        dependencies=[Operator],
        openapi_extra=body_of(body, required=path in ("rate", "data")),
        responses=REFUSED,
        response_model=BulkOut,
    )


@steering("start", BulkStartIn)
async def start_bulk_job(request: Request, job_id: JobId) -> Shown:
    """Start it, or resume it where it was; a failed job gets a fresh error budget.

    `changed` is false when it was running already."""
    return await _start(request, job_id)


@steering("resume", BulkStartIn)
async def resume_bulk_job(request: Request, job_id: JobId) -> Shown:
    """Resume it where it was: the same as `start`."""
    return await _start(request, job_id)


async def _start(request: Request, job_id: int) -> Shown:
    wish = await read_json(request, BulkStartIn, "a start", optional=True)
    job = await service_of(request, BulkOperations).start(
        job_id,
        by_business=wish.by_business,
        force=wish.force,
        who=who_asks(request),
        version=wish.version,
    )
    audit(request, "bulk job started", bulk_job_id=job_id, by_business=wish.by_business)
    return shown(job)


@steering("stop", BulkStopIn)
async def stop_bulk_job(request: Request, job_id: JobId) -> Shown:
    """Start no further item; every worker sees it within 2 s. The job can be resumed.

    `changed` is false when it was stopped already."""
    return await _stop(request, job_id)


@steering("pause", BulkStopIn)
async def pause_bulk_job(request: Request, job_id: JobId) -> Shown:
    """The same as `stop`: a stopped job can be resumed where it was."""
    return await _stop(request, job_id)


async def _stop(request: Request, job_id: int) -> Shown:
    wish = await read_json(request, BulkStopIn, "a stop", optional=True)
    job = await service_of(request, BulkOperations).stop(
        job_id, reason=wish.reason, who=who_asks(request), version=wish.version
    )
    audit(request, "bulk job stopped", bulk_job_id=job_id, reason=wish.reason)
    return shown(job)


@steering("extend", BulkExtendIn)
async def extend_bulk_job(request: Request, job_id: JobId) -> Shown:
    """Add the items that its source has after the job's last item. The job must not run; it may be finished.

    The job is then `stopped` (or `failed` as before) until it is started. Refused with 409 when the source
    has nothing new, or when the items of the job were replaced."""
    wish = await read_json(request, BulkExtendIn, "an extension", optional=True)
    job = await service_of(request, BulkOperations).extend(
        job_id, start=wish.start, who=who_asks(request), version=wish.version
    )
    audit(request, "bulk job extended", bulk_job_id=job_id, total=job.total)
    return shown(job)


@steering("rate", ADJUST)
async def adjust_bulk_job(request: Request, job_id: JobId) -> Shown:
    """Change rate, concurrency, window, item timeout, error budget or alerts, also while it runs: workers
    follow at their next checkpoint. `item_attempts` and `item_backoff` can change only while it does not
    run."""
    fields = await read_object(request, "a rate is an object with the fields to change")
    version = version_from(fields.pop("version", None), None)
    return await _adjusted(request, job_id, BULK.named(fields, ADJUSTABLE), version)


@router.patch(
    "/{job_id}",
    dependencies=[Operator],
    openapi_extra=body_of(ADJUST),
    responses=REFUSED,
    response_model=BulkOut,
)
async def change_bulk_job(request: Request, job_id: JobId, if_match: IfMatch = None) -> Shown:
    """Change the same fields by a merge patch: null sets a field to its default, and removes the alerts."""
    fields = await read_object(request, "a change is an object with the fields to change")
    version = version_from(fields.pop("version", None), if_match)
    named = BULK.named(fields, ADJUSTABLE)
    changes = {name: _default(name) if value is None else value for name, value in named.items()}
    return await _adjusted(request, job_id, changes, version)


def _default(name: str) -> Any:
    """Returns the default of a field, as callers write it."""
    field = BULK.fields[name]
    return "none" if field.default is None else field.kind.show(field.default)


async def _adjusted(request: Request, job_id: int, changes: dict[str, Any], version: int | None) -> Shown:
    job = await service_of(request, BulkOperations).adjust(
        job_id, **changes, who=who_asks(request), version=version
    )
    if "alerts" in changes:  # an address may contain a secret
        changes["alerts"] = "changed"
    audit(request, "bulk job adjusted", bulk_job_id=job_id, **changes)
    return shown(job)


@steering("data", BulkDataIn, method="PUT")
async def set_bulk_data(request: Request, job_id: JobId) -> Shown:
    """Set the business's own data; refused while the job runs, so that all items see the same data."""
    wish = await read_json(request, BulkDataIn, "data")
    job = await service_of(request, BulkOperations).set_data(
        job_id, wish.data, who=who_asks(request), version=wish.version
    )
    audit(request, "bulk job's data changed", bulk_job_id=job_id)
    return shown(job)


@router.delete("/{job_id}", status_code=204, dependencies=[Operator], responses=REFUSED)
async def delete_bulk_job(request: Request, job_id: JobId, if_match: IfMatch = None) -> Response:
    """Delete it with its segments, its quarantine and its logs. Refused (409) while it runs, while a run
    waits for it, and while an unfinished job undoes it or reruns its quarantine."""
    await service_of(request, BulkOperations).delete(job_id, version=version_from(None, if_match))
    audit(request, "bulk job deleted", bulk_job_id=job_id)
    return Response(status_code=204)


def following(routes: APIRouter, path: str) -> Callable[[F], F]:
    """A route that creates a job over items of another one."""
    return routes.post(
        f"/{{job_id}}/{path}",
        status_code=201,
        dependencies=[Operator],
        openapi_extra=body_of(FOLLOWING_UP, required=False),
        responses=REFUSED,
        response_model=BulkOut,
    )


async def fields_of_follow_up(request: Request, idempotency_key: str | None) -> dict[str, Any]:
    """Reads what a new job over items of another one may have of its own."""
    fields = await read_object(request, "a job is an object with the fields that differ", optional=True)
    start = FLAG.read(fields.pop("start", False), "start")
    given = {name: value for name, value in BULK.named(fields, FOLLOW_UP).items() if value is not None}
    key = checked_key(idempotency_key)
    return {**given, "start": start, "who": who_asks(request), "idempotency_key": key}


def followed(request: Request, response: Response, what: str, job_id: int, job: BulkJob) -> Shown:
    response.headers["Location"] = link(request, "bulk-jobs", job.id)
    audit(request, what, bulk_job_id=job_id, by=job.id)
    return shown(job)


@following(router, "undo")
async def undo_bulk_job(
    request: Request, response: Response, job_id: JobId, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Create a job that calls the business's undo for every item that is done, the last one first."""
    fields = await fields_of_follow_up(request, idempotency_key)
    job = await service_of(request, BulkOperations).undo(job_id, **fields)
    return followed(request, response, "bulk job undone", job_id, job)
