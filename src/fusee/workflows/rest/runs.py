"""Workflow runs: list, look, draw, cancel, do again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import CancelIn
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.paging import Cursor, Page, Pager, Wanted, number_at
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.rest.shapes import RunGraphOut, WorkflowRunOut, WorkflowRunPage, WorkflowStarted
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.queries import WorkflowRunFilter

__all__ = ["Status", "page_of_runs", "router"]

router = APIRouter(prefix="/api/v1/workflow-runs", tags=["workflows"])
Shown = dict[str, Any]

RUNS = Pager("x1", number_at)
NODES, STEPS = Pager("g1", number_at), Pager("n1", number_at)
LONGEST_GRAPH = 10_000

WorkflowRunId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The workflow run's id.")]
Status = Annotated[list[WorkflowStatus] | None, Query(description="May be repeated.")]


async def page_of_runs(
    request: Request, page: Wanted, workflow: str | None, status: list[WorkflowStatus] | None
) -> Shown:
    wanted = WorkflowRunFilter(
        workflow=workflow,
        status=status or (),
        before=RUNS.after(page.cursor),
        limit=page.asked,
    )
    found = await service_of(request, WorkflowOperations).runs(wanted)
    return RUNS.page(page, found, lambda run: run.id, shown)


@router.get("", dependencies=[Viewer], response_model=WorkflowRunPage)
async def list_workflow_runs(request: Request, page: Page, status: Status = None) -> Shown:
    """Of all workflows, deleted ones too; newest first."""
    return await page_of_runs(request, page, None, status)


@router.get("/{workflow_run_id}", dependencies=[Viewer], response_model=WorkflowRunOut)
async def get_workflow_run(request: Request, workflow_run_id: WorkflowRunId) -> Shown:
    """Its status and counters; as quick for ten thousand nodes as for one."""
    return shown(await service_of(request, WorkflowOperations).run(workflow_run_id))


@router.get("/{workflow_run_id}/graph", dependencies=[Viewer], response_model=RunGraphOut)
async def graph_of_workflow_run(
    request: Request,
    workflow_run_id: WorkflowRunId,
    limit: Annotated[int, Query(ge=1, le=LONGEST_GRAPH)] = 1000,
    cursor: Cursor = None,
) -> Shown:
    """Its nodes, each with the edges that lead to it, how it stands and which run it is."""
    after = STEPS.after(cursor)
    page = await service_of(request, WorkflowOperations).graph(
        workflow_run_id, after=-1 if after is None else after, limit=limit
    )
    last = page.nodes[-1].position if page.nodes else page.total
    return {
        "total": page.total,
        "nodes": [shown(node) for node in page.nodes],
        "next_cursor": STEPS.cursor(last) if last + 1 < page.total else None,
    }


@router.post(
    "/{workflow_run_id}/cancel",
    dependencies=[Operator],
    openapi_extra=body_of(CancelIn, required=False),
    responses={
        202: {"model": WorkflowRunOut, "description": "Some nodes run, and were told to stop."},
        409: {"description": "It has ended."},
    },
    response_model=WorkflowRunOut,
)
async def cancel_workflow_run(request: Request, response: Response, workflow_run_id: WorkflowRunId) -> Shown:
    """Once this answers, no node of it will start."""
    wish = await read_json(request, CancelIn, "a cancel", optional=True)
    answer = await service_of(request, WorkflowOperations).cancel(workflow_run_id, wish.reason)
    response.status_code = 200 if answer.run.over else 202
    audit(request, "workflow run canceled", workflow_run_id=workflow_run_id, reason=wish.reason)
    return shown(answer.run)


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
    started = await service_of(request, WorkflowOperations).rerun(
        workflow_run_id, idempotency_key=checked_key(idempotency_key)
    )
    response.headers["Location"] = link(request, "workflow-runs", started.id)
    response.status_code = 201 if started.created else 200
    audit(request, "workflow run done again", workflow_run_id=workflow_run_id, new_id=started.id)
    return WorkflowStarted(id=started.id, created=started.created)
