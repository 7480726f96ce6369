"""Runs: submit, list, get, cancel, retry."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from fusee.engine.model.states import RunStatus
from fusee.engine.store.runs import RunFilter
from fusee.runs.rest.intake import Intake
from fusee.runs.rest.shapes import (
    SUBMIT,
    RunAccepted,
    RunId,
    RunOut,
    RunPage,
    RunRetriedOut,
    RunSummary,
    StreamAccepted,
    run_shown,
)
from fusee.runs.service.runs import RunOperations
from fusee.surfaces.rest.asking import (
    AllowUnknown,
    IdempotencyKey,
    Operator,
    Viewer,
    audit,
    body_of,
    checked_key,
)
from fusee.surfaces.rest.bodies import CancelIn
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.explain import did_you_mean
from fusee.surfaces.rest.limits import NDJSON, is_stream
from fusee.surfaces.rest.paging import Page, Pager, number_at
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.problems import Problem
from fusee.surfaces.rest.reading import parse_json, read_json, require_json
from fusee.values.fields import shown
from fusee.values.names import check_name

__all__ = ["STREAMED", "router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

STREAMED = {router.prefix: NDJSON}
RUNS = Pager("r1", number_at)
Shown = dict[str, Any]

_LINES = {"type": "string", "description": "One RunIn on each line."}
_SUBMIT = body_of(
    SUBMIT,
    example={"handler": "greet", "payload": {"name": "Ada"}},
    kinds={"application/x-ndjson": {"schema": _LINES}},
    many=True,
)


@router.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=_SUBMIT,
    response_model=RunAccepted | list[RunAccepted] | StreamAccepted,
    responses={
        200: {"model": RunAccepted, "description": "The idempotency key had been used before."},
        409: {"description": "The idempotency key was used for other work."},
    },
)
async def submit(
    request: Request,
    response: Response,
    allow_unknown: AllowUnknown = False,
    idempotency_key: Annotated[
        str | None, Header(description="Makes a repeat harmless; the i-th of many gets `KEY/i`.")
    ] = None,
) -> RunAccepted | list[RunAccepted] | Shown:
    """Accept one run, an array of runs (all or none), or a stream of lines (`application/x-ndjson`)."""
    intake = Intake(request, idempotency_key, allow_unknown)
    if is_stream(request.scope, NDJSON):
        done = await intake.stream()
        return shown(done)
    require_json(request, " (or application/x-ndjson for many)")
    text = await request.body()
    value = parse_json(text)
    if isinstance(value, list):
        return [RunAccepted(id=run.id, created=run.created) for run in await intake.array(value, len(text))]
    run = await intake.one(value)
    response.headers["Location"] = link(request, "runs", run.id)
    response.status_code = 201 if run.created else 200
    return RunAccepted(id=run.id, created=run.created)


@router.get("", dependencies=[Viewer], response_model=RunPage)
async def list_runs(
    request: Request,
    page: Page,
    status: Annotated[list[str] | None, Query(description="May be repeated.")] = None,
    handler: str | None = None,
    queue: str | None = None,
) -> Shown:
    """Newest first."""
    wanted = RunFilter(
        status=[_status(one) for one in status or ()],
        handler=_name(handler, "handler"),
        queue=_name(queue, "queue"),
        before=RUNS.after(page.cursor),
        limit=page.asked,
    )
    found = await service_of(request, RunOperations).list(wanted)
    return RUNS.page(page, found, lambda run: run.id, lambda run: shown(run, brief=True))


@router.get("/{run_id}", dependencies=[Viewer], response_model=RunOut)
async def get_run(request: Request, run_id: RunId) -> Shown:
    """The run with its result, output, and the attempts that did not end it."""
    return run_shown(await service_of(request, RunOperations).get(run_id))


@router.post(
    "/{run_id}/cancel",
    dependencies=[Operator],
    openapi_extra=body_of(CancelIn, required=False),
    responses={
        202: {"model": RunSummary, "description": "It runs, and was told to stop."},
        409: {"description": "It has ended."},
    },
    response_model=RunSummary,
)
async def cancel_run(request: Request, response: Response, run_id: RunId) -> Shown:
    """Cancel it: after the response, no attempt of the run will start."""
    wish = await read_json(request, CancelIn, "a cancel", optional=True)
    answer = await service_of(request, RunOperations).cancel(run_id, wish.reason)
    response.status_code = 200 if answer.run.ended else 202
    audit(request, "run canceled", run_id=run_id, reason=wish.reason)
    return shown(answer.run, brief=True)


@router.post(
    "/{run_id}/retry",
    status_code=201,
    dependencies=[Operator],
    responses={
        200: {"model": RunRetriedOut, "description": "The idempotency key had been used before."},
        409: {"description": "It has not ended, or its owner retries it: `detail` says how."},
    },
)
async def retry_run(
    request: Request, response: Response, run_id: RunId, idempotency_key: IdempotencyKey = None
) -> RunRetriedOut:
    """Run an ended run again, as a new run whose `origin_id` names it.

    A run of a task becomes a new fire under the task's policies: `status` and `rule` tell what they decided,
    and it is 409 when they would skip it. A run of a batch, a workflow or a bulk job is retried by its owner:
    409, with the command that does it.
    """
    run = await service_of(request, RunOperations).retry(run_id, idempotency_key=checked_key(idempotency_key))
    response.headers["Location"] = link(request, "runs", run.id)
    response.status_code = 201 if run.created else 200
    if run.created:
        audit(request, "run retried", run_id=run_id, new_run_id=run.id)
    return RunRetriedOut(id=run.id, created=run.created, status=run.status, rule=run.rule)


def _status(name: str) -> RunStatus:
    try:
        return RunStatus(name)
    except ValueError:
        known = [str(status) for status in RunStatus]
        raise Problem(
            422, f"there is no status {name[:60]!r}{did_you_mean(name, known)}", field="status"
        ) from None


def _name(name: str | None, what: str) -> str | None:
    return None if name is None else check_name(name, what)
