"""What a bulk job leaves behind: its quarantine, to be listed, downloaded and rerun, and its logs."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from msgspec.json import encode
from starlette.responses import StreamingResponse

from fusee.bulk.model.job import Quarantined
from fusee.bulk.rest.jobs import JobId, Shown, fields_of_follow_up, followed, following, who_asks
from fusee.bulk.rest.shapes import BulkLogIn, BulkLogPage, LoggedOut, QuarantinedOut, QuarantinePage
from fusee.bulk.service.jobs import BulkOperations
from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, body_of, checked_key
from fusee.surfaces.rest.context import context_of, service_of, services_of
from fusee.surfaces.rest.paging import LONGEST_PAGE, Page, Pager, number_at
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/bulk-jobs", tags=["bulk jobs"])

QUARANTINE, LOGS = Pager("q1", number_at), Pager("l1", number_at)
COLUMNS = tuple(QuarantinedOut.model_fields)
_DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One QuarantinedOut per line, or the same as CSV.",
        "content": {
            "application/x-ndjson": {"schema": {"type": "string"}},
            "text/csv": {"schema": {"type": "string"}},
        },
    }
}


@router.get("/{job_id}/quarantine", dependencies=[Viewer], response_model=QuarantinePage)
async def list_quarantine(request: Request, page: Page, job_id: JobId) -> Shown:
    """List the items that failed all their attempts, in order."""
    after = QUARANTINE.after(page.cursor)
    jobs = service_of(request, BulkOperations)
    found = await jobs.quarantine(job_id, after=-1 if after is None else after, limit=page.asked)
    return QUARANTINE.page(page, found, lambda item: item.place, shown)


@router.get(
    "/{job_id}/quarantine/download",
    dependencies=[Viewer],
    response_class=StreamingResponse,
    responses=_DOWNLOAD,
)
async def download_quarantine(
    request: Request, job_id: JobId, format: Annotated[Literal["ndjson", "csv"], Query()] = "ndjson"
) -> Response:
    """Download the whole quarantine, however large it is."""
    jobs = service_of(request, BulkOperations)
    await jobs.get(job_id)
    kind = "text/csv; charset=utf-8" if format == "csv" else "application/x-ndjson"
    return StreamingResponse(
        _download(request, jobs, job_id, format),
        media_type=kind,
        headers={"Content-Disposition": f'attachment; filename="bulk-job-{job_id}-quarantine.{format}"'},
    )


async def _download(request: Request, jobs: BulkOperations, job_id: int, format: str) -> AsyncIterator[str]:
    """Yields a page at a time; each one extends the time limit of the request."""
    context, seconds = context_of(request), services_of(request).config.request_timeout
    if format == "csv":
        yield _rows([COLUMNS])
    after = -1
    while page := await jobs.quarantine(job_id, after=after, limit=LONGEST_PAGE):
        context.extend(seconds)
        yield _lines(page) if format == "ndjson" else _rows(shown(item).values() for item in page)
        after = page[-1].place


def _lines(page: Iterable[Quarantined]) -> str:
    return "".join(f"{encode(shown(item)).decode()}\n" for item in page)


def _rows(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


@following(router, "quarantine/rerun")
async def rerun_quarantine(
    request: Request, response: Response, job_id: JobId, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Create a job over the quarantined items; each keeps its index."""
    fields = await fields_of_follow_up(request, idempotency_key)
    job = await service_of(request, BulkOperations).rerun_quarantine(job_id, **fields)
    return followed(request, response, "quarantine run again", job_id, job)


@router.get("/{job_id}/logs", dependencies=[Viewer], response_model=BulkLogPage)
async def list_bulk_logs(
    request: Request,
    page: Page,
    job_id: JobId,
    kind: Annotated[Literal["data", "operator"] | None, Query(description="Only these.")] = None,
) -> Shown:
    """List what its business wrote, and what was done to the job, oldest first."""
    jobs = service_of(request, BulkOperations)
    found = await jobs.logs(job_id, kind=kind, after=LOGS.after(page.cursor) or 0, limit=page.asked)
    return LOGS.page(page, found, lambda log: log.id, shown)


@router.post("/{job_id}/logs", status_code=201, dependencies=[Operator], openapi_extra=body_of(BulkLogIn))
async def log_bulk_data(request: Request, job_id: JobId, idempotency_key: IdempotencyKey = None) -> LoggedOut:
    """Append a line to the job's data log."""
    wish = await read_json(request, BulkLogIn, "a log line")
    key = checked_key(idempotency_key)
    jobs = service_of(request, BulkOperations)
    return LoggedOut(id=await jobs.log(job_id, wish.text, who=who_asks(request), idempotency_key=key))
