"""Workflows and their runs: create, list, get, replace, delete, start, draw, cancel, rerun."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from fusee.surfaces.rest.asking import (
    AllowUnknown,
    IdempotencyKey,
    Operator,
    Viewer,
    audit,
    body_of,
    checked_key,
)
from fusee.surfaces.rest.bodies import CancelIn, IfMatch, version_from
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.definitions import Definition, name_of
from fusee.surfaces.rest.paging import Cursor, Page, Pager, Wanted, name_at, number_at
from fusee.surfaces.rest.paths import link, named
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown
from fusee.values.names import PREFIX, check_prefix
from fusee.workflows.model.workflow import WORKFLOW as FORM
from fusee.workflows.model.workflow import Workflow
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.rest.shapes import (
    CREATE,
    REPLACE,
    GraphOut,
    RunGraphOut,
    StartIn,
    WorkflowOut,
    WorkflowPage,
    WorkflowRunOut,
    WorkflowRunPage,
    WorkflowStarted,
)
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.definitions import WorkflowFilter
from fusee.workflows.store.queries import WorkflowRunFilter

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["workflows"])
Shown = dict[str, Any]
LONGEST_GRAPH = 10_000

RUNS = Pager("x1", number_at)
NODES, STEPS = Pager("g1", number_at), Pager("n1", number_at)

WorkflowRunId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The workflow run's id.")]
Status = Annotated[list[WorkflowStatus] | None, Query(description="May be repeated.")]


async def _page_of_runs(
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


@router.get("/workflow-runs", dependencies=[Viewer], response_model=WorkflowRunPage)
async def list_workflow_runs(request: Request, page: Page, status: Status = None) -> Shown:
    """The runs of all workflows, also of deleted ones; newest first."""
    return await _page_of_runs(request, page, None, status)


@router.get("/workflow-runs/{workflow_run_id}", dependencies=[Viewer], response_model=WorkflowRunOut)
async def get_workflow_run(request: Request, workflow_run_id: WorkflowRunId) -> Shown:
    """Its status and counters; this takes as long for ten thousand nodes as for one."""
    return shown(await service_of(request, WorkflowOperations).run(workflow_run_id))


@router.get("/workflow-runs/{workflow_run_id}/graph", dependencies=[Viewer], response_model=RunGraphOut)
async def graph_of_workflow_run(
    request: Request,
    workflow_run_id: WorkflowRunId,
    limit: Annotated[int, Query(ge=1, le=LONGEST_GRAPH)] = 1000,
    cursor: Cursor = None,
) -> Shown:
    """Its nodes, each with the edges that lead to it, its status and its run."""
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
    "/workflow-runs/{workflow_run_id}/cancel",
    dependencies=[Operator],
    openapi_extra=body_of(CancelIn, required=False),
    responses={
        202: {"model": WorkflowRunOut, "description": "Some nodes run, and were told to stop."},
        409: {"description": "It has ended."},
    },
    response_model=WorkflowRunOut,
)
async def cancel_workflow_run(request: Request, response: Response, workflow_run_id: WorkflowRunId) -> Shown:
    """Cancel it: after the response, no node of it will start."""
    wish = await read_json(request, CancelIn, "a cancel", optional=True)
    answer = await service_of(request, WorkflowOperations).cancel(workflow_run_id, wish.reason)
    response.status_code = 200 if answer.run.over else 202
    audit(request, "workflow run canceled", workflow_run_id=workflow_run_id, reason=wish.reason)
    return shown(answer.run)


@router.post(
    "/workflow-runs/{workflow_run_id}/rerun",
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
    """Run the nodes that did not succeed again, as a new workflow run whose `origin_id` names this one."""
    started = await service_of(request, WorkflowOperations).rerun(
        workflow_run_id, idempotency_key=checked_key(idempotency_key)
    )
    response.headers["Location"] = link(request, "workflow-runs", started.id)
    response.status_code = 201 if started.created else 200
    audit(request, "workflow run done again", workflow_run_id=workflow_run_id, new_id=started.id)
    return WorkflowStarted(id=started.id, created=started.created)


WORKFLOW, OF_WORKFLOW = named("workflow", "workflow", ["runs", "graph", "start"])
WORKFLOWS = Pager("w1", name_at)
DEFINITION = Definition(
    noun="workflow",
    place="workflows",
    form=FORM,
    answer=WorkflowOut,
    create=CREATE,
    replace=REPLACE,
    example={
        "name": "nightly",
        "params": {"day": {}},
        "nodes": [
            {"name": "extract", "handler": "greet", "payload": {"name": "{{param.day}}"}},
            {"name": "load", "after": ["extract"], "handler": "greet"},
        ],
    },
)
Name = Annotated[str, name_of("workflow")]


def _answer(response: Response, workflow: Workflow) -> Shown:
    return DEFINITION.at_version(response, workflow.version, shown(workflow))


@router.post("/workflows", **DEFINITION.creating)
async def create_workflow(
    request: Request,
    response: Response,
    allow_unknown: AllowUnknown = False,
    idempotency_key: IdempotencyKey = None,
) -> Shown:
    """Create a workflow; a cycle is refused with the names of its nodes."""
    fields = await DEFINITION.fields(request)
    workflow, new = await service_of(request, WorkflowOperations).create_once(
        checked_key(idempotency_key), fields, allow_unknown=allow_unknown
    )
    DEFINITION.created(request, response, workflow.name, new, workflow=workflow.name, nodes=workflow.nodes)
    return _answer(response, workflow)


@router.get("/workflows", dependencies=[Viewer], response_model=WorkflowPage)
async def list_workflows(
    request: Request,
    page: Page,
    prefix: Annotated[
        str, Query(description="How the name begins.", json_schema_extra={"pattern": f"^{PREFIX}$"})
    ] = "",
) -> Shown:
    """By name, without their nodes."""
    check_prefix(prefix, "prefix")
    wanted = WorkflowFilter(prefix=prefix, after=WORKFLOWS.after(page.cursor), limit=page.asked)
    found = await service_of(request, WorkflowOperations).list(wanted)
    return WORKFLOWS.page(page, found, lambda workflow: workflow.name, shown)


@router.post(
    f"/workflows{OF_WORKFLOW}/start",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=body_of(StartIn, required=False),
    responses={
        200: {"model": WorkflowStarted, "description": "The idempotency key had been used before."},
        409: {"description": "The key was used for another start, or a task of a node is gone."},
    },
)
async def start_workflow(
    request: Request, response: Response, name: Name, idempotency_key: IdempotencyKey = None
) -> WorkflowStarted:
    """Start all of it or nothing: each node becomes a run, and those that wait for others are blocked."""
    wish = await read_json(request, StartIn, "a start", optional=True)
    started = await service_of(request, WorkflowOperations).start(
        name, wish.params, idempotency_key=checked_key(idempotency_key)
    )
    response.headers["Location"] = link(request, "workflow-runs", started.id)
    response.status_code = 201 if started.created else 200
    audit(request, "workflow started", workflow=name, workflow_run_id=started.id, new=started.created)
    return WorkflowStarted(id=started.id, created=started.created)


@router.get(f"/workflows{OF_WORKFLOW}/runs", dependencies=[Viewer], response_model=WorkflowRunPage)
async def list_runs_of_workflow(request: Request, page: Page, name: Name, status: Status = None) -> Shown:
    """Its workflow runs, newest first."""
    return await _page_of_runs(request, page, name, status)


@router.get(f"/workflows{OF_WORKFLOW}/graph", dependencies=[Viewer], response_model=GraphOut)
async def graph_of_workflow(
    request: Request,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=LONGEST_GRAPH)] = 1000,
    cursor: Cursor = None,
) -> Shown:
    """Its nodes, each with the edges that lead to it, for drawing."""
    begin = NODES.after(cursor) or 0
    spec = (await service_of(request, WorkflowOperations).get(name)).spec
    more = begin + limit < len(spec.nodes)
    levels = spec.levels()
    return {
        "total": len(spec.nodes),
        "nodes": [
            {
                "name": node.name,
                "level": levels[node.name],
                "after": list(node.after),
                "trigger_rule": node.trigger_rule,
            }
            for node in spec.nodes[begin : begin + limit]
        ],
        "next_cursor": NODES.cursor(begin + limit) if more else None,
    }


@router.get(f"/workflows{WORKFLOW}", **DEFINITION.getting)
async def get_workflow(request: Request, response: Response, name: Name) -> Shown:
    return _answer(response, await service_of(request, WorkflowOperations).get(name))


@router.put(f"/workflows{WORKFLOW}", **DEFINITION.replacing)
async def replace_workflow(
    request: Request,
    response: Response,
    name: Name,
    allow_unknown: AllowUnknown = False,
    if_match: IfMatch = None,
) -> Shown:
    """Replace its definition as a whole. Workflow runs that were started before continue unchanged."""
    fields, version = await DEFINITION.replacement_of(request, name, if_match)
    workflow = await service_of(request, WorkflowOperations).replace(
        name, fields, version=version, allow_unknown=allow_unknown
    )
    audit(request, "workflow replaced", workflow=name, version=workflow.version)
    return _answer(response, workflow)


@router.delete(f"/workflows{WORKFLOW}", **DEFINITION.deleting)
async def delete_workflow(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Delete it; its name is free again. Its workflow runs continue."""
    await service_of(request, WorkflowOperations).delete(name, version=version_from(None, if_match))
    audit(request, "workflow deleted", workflow=name)
    return Response(status_code=204)
