"""Workflow runs: list, look, draw, cancel, do again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import CancelIn
from fusee.surfaces.rest.context import operations_of
from fusee.surfaces.rest.cursors import close_cursor, open_cursor, wrong_cursor
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.reading import read_json
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.rest.shapes import NodeOut, RunGraphOut, WorkflowRunOut, WorkflowRunPage, WorkflowStarted
from fusee.workflows.store.queries import WorkflowRunFilter

__all__ = ["Cursor", "Limit", "Status", "page_of_runs", "router"]

router = APIRouter(prefix="/api/v1/workflow-runs", tags=["workflows"])

LONGEST_PAGE = 1000
LONGEST_GRAPH = 10_000

WorkflowRunId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The workflow run's id.")]
Status = Annotated[list[WorkflowStatus] | None, Query(description="May be repeated.")]
Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


async def page_of_runs(
    request: Request,
    workflow: str | None,
    status: list[WorkflowStatus] | None,
    limit: int,
    cursor: str | None,
) -> WorkflowRunPage:
    wanted = WorkflowRunFilter(
        workflow=workflow,
        status=status or (),
        before=None if cursor is None else _number_in("x1", cursor),
        limit=min(limit + 1, LONGEST_PAGE),
    )
    found = list(await operations_of(request).workflows.runs(wanted))
    items = found[:limit]
    more = len(found) > limit or len(found) == LONGEST_PAGE
    return WorkflowRunPage.of(items, close_cursor("x1", str(items[-1].id)) if more else None)


@router.get("", dependencies=[Viewer])
async def list_workflow_runs(
    request: Request, status: Status = None, limit: Limit = 50, cursor: Cursor = None
) -> WorkflowRunPage:
    """Of all workflows, deleted ones too; newest first."""
    return await page_of_runs(request, None, status, limit, cursor)


@router.get("/{workflow_run_id}", dependencies=[Viewer])
async def get_workflow_run(request: Request, workflow_run_id: WorkflowRunId) -> WorkflowRunOut:
    """Its status and counters; as quick for ten thousand nodes as for one."""
    return WorkflowRunOut.of(await operations_of(request).workflows.run(workflow_run_id))


@router.get("/{workflow_run_id}/graph", dependencies=[Viewer])
async def graph_of_workflow_run(
    request: Request,
    workflow_run_id: WorkflowRunId,
    limit: Annotated[int, Query(ge=1, le=LONGEST_GRAPH)] = 1000,
    cursor: Cursor = None,
) -> RunGraphOut:
    """Its nodes, each with the edges that lead to it, how it stands and which run it is."""
    after = -1 if cursor is None else _number_in("n1", cursor)
    page = await operations_of(request).workflows.graph(workflow_run_id, after=after, limit=limit)
    last = page.nodes[-1].position if page.nodes else page.total
    return RunGraphOut(
        total=page.total,
        nodes=[NodeOut.of(node) for node in page.nodes],
        next_cursor=close_cursor("n1", str(last)) if last + 1 < page.total else None,
    )


@router.post(
    "/{workflow_run_id}/cancel",
    dependencies=[Operator],
    openapi_extra=body_of(CancelIn, required=False),
    responses={
        202: {"model": WorkflowRunOut, "description": "Some nodes run, and were told to stop."},
        409: {"description": "It has ended."},
    },
)
async def cancel_workflow_run(
    request: Request, response: Response, workflow_run_id: WorkflowRunId
) -> WorkflowRunOut:
    """Once this answers, no node of it will start."""
    wish = await read_json(request, CancelIn, "a cancel", optional=True)
    answer = await operations_of(request).workflows.cancel(workflow_run_id, wish.reason)
    response.status_code = 200 if answer.run.over else 202
    audit(request, "workflow run canceled", workflow_run_id=workflow_run_id, reason=wish.reason)
    return WorkflowRunOut.of(answer.run)


@router.post(
    "/{workflow_run_id}/rerun",
    status_code=201,
    dependencies=[Operator],
    responses={
        200: {"model": WorkflowStarted, "description": "The idempotency key had been used before."},
        409: {"description": "It has not ended, or every node succeeded, or its runs are pruned."},
    },
)
async def rerun_workflow_run(
    request: Request,
    response: Response,
    workflow_run_id: WorkflowRunId,
    idempotency_key: IdempotencyKey = None,
) -> WorkflowStarted:
    """Do the nodes that did not succeed again, as a new workflow run whose `origin_id` names this one."""
    started = await operations_of(request).workflows.rerun(
        workflow_run_id, idempotency_key=checked_key(idempotency_key)
    )
    response.headers["Location"] = link(request, "workflow-runs", started.id)
    response.status_code = 201 if started.created else 200
    audit(request, "workflow run done again", workflow_run_id=workflow_run_id, new_id=started.id)
    return WorkflowStarted.of(started)


def _number_in(kind: str, cursor: str) -> int:
    number = open_cursor(kind, cursor)
    if not number.isdecimal() or int(number) >= 2**63:
        raise wrong_cursor()
    return int(number)
