"""Workflows: make, list, look, replace, delete, start."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from fusee.surfaces.rest.asking import (
    AllowUnknown,
    IdempotencyKey,
    Operator,
    Viewer,
    audit,
    body_of,
    checked_key,
)
from fusee.surfaces.rest.bodies import IfMatch, version_from
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.definitions import Definition, name_of
from fusee.surfaces.rest.paging import Cursor, Page, Pager, name_at
from fusee.surfaces.rest.paths import link, named
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown
from fusee.values.names import PREFIX, check_prefix
from fusee.workflows.model.workflow import WORKFLOW as FORM
from fusee.workflows.model.workflow import Workflow
from fusee.workflows.rest.runs import NODES, Status, page_of_runs
from fusee.workflows.rest.shapes import (
    CREATE,
    REPLACE,
    GraphOut,
    StartIn,
    WorkflowOut,
    WorkflowPage,
    WorkflowRunPage,
    WorkflowStarted,
)
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.definitions import WorkflowFilter

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/workflows", tags=["workflows"])
Shown = dict[str, Any]

WORKFLOW, OF_WORKFLOW = named("workflow", "workflow", ["runs", "graph", "start"])
WORKFLOWS = Pager("w1", name_at)
LONGEST_GRAPH = 10_000
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


@router.post("", **DEFINITION.creating)
async def create_workflow(
    request: Request,
    response: Response,
    allow_unknown: AllowUnknown = False,
    idempotency_key: IdempotencyKey = None,
) -> Shown:
    """Make a workflow; a cycle is refused with the nodes that close it."""
    fields = await DEFINITION.fields(request)
    workflow, new = await service_of(request, WorkflowOperations).create_once(
        checked_key(idempotency_key), fields, allow_unknown=allow_unknown
    )
    DEFINITION.created(request, response, workflow.name, new, workflow=workflow.name, nodes=workflow.nodes)
    return _answer(response, workflow)


@router.get("", dependencies=[Viewer], response_model=WorkflowPage)
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
    f"{OF_WORKFLOW}/start",
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
    """Start all of it or nothing: every node is a run from now on, and those that wait are blocked."""
    wish = await read_json(request, StartIn, "a start", optional=True)
    started = await service_of(request, WorkflowOperations).start(
        name, wish.params, idempotency_key=checked_key(idempotency_key)
    )
    response.headers["Location"] = link(request, "workflow-runs", started.id)
    response.status_code = 201 if started.created else 200
    audit(request, "workflow started", workflow=name, workflow_run_id=started.id, new=started.created)
    return WorkflowStarted(id=started.id, created=started.created)


@router.get(f"{OF_WORKFLOW}/runs", dependencies=[Viewer], response_model=WorkflowRunPage)
async def list_runs_of_workflow(request: Request, page: Page, name: Name, status: Status = None) -> Shown:
    """Its workflow runs, newest first."""
    return await page_of_runs(request, page, name, status)


@router.get(f"{OF_WORKFLOW}/graph", dependencies=[Viewer], response_model=GraphOut)
async def graph_of_workflow(
    request: Request,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=LONGEST_GRAPH)] = 1000,
    cursor: Cursor = None,
) -> Shown:
    """Its nodes with the edges that lead to each, for drawing."""
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


@router.get(WORKFLOW, **DEFINITION.getting)
async def get_workflow(request: Request, response: Response, name: Name) -> Shown:
    return _answer(response, await service_of(request, WorkflowOperations).get(name))


@router.put(WORKFLOW, **DEFINITION.replacing)
async def replace_workflow(
    request: Request,
    response: Response,
    name: Name,
    allow_unknown: AllowUnknown = False,
    if_match: IfMatch = None,
) -> Shown:
    """Make it what is written, and nothing else. What was started before goes on as it was started."""
    fields, version = await DEFINITION.replacement_of(request, name, if_match)
    workflow = await service_of(request, WorkflowOperations).replace(
        name, fields, version=version, allow_unknown=allow_unknown
    )
    audit(request, "workflow replaced", workflow=name, version=workflow.version)
    return _answer(response, workflow)


@router.delete(WORKFLOW, **DEFINITION.deleting)
async def delete_workflow(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """It starts no more and its name is free; what was started goes on."""
    await service_of(request, WorkflowOperations).delete(name, version=version_from(None, if_match))
    audit(request, "workflow deleted", workflow=name)
    return Response(status_code=204)
