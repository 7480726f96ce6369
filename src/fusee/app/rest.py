"""The API as one ASGI application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from fusee.access import rest as keys
from fusee.batches.rest import routes as batches
from fusee.bulk.rest import businesses
from fusee.bulk.rest import jobs as bulk_jobs
from fusee.bulk.rest import record as bulk_record
from fusee.runs.rest import callbacks, live, queues, workers
from fusee.runs.rest import routes as runs
from fusee.surfaces.rest import platform
from fusee.surfaces.rest.asking import known_parameters
from fusee.surfaces.rest.context import context_of
from fusee.surfaces.rest.describing import describe
from fusee.surfaces.rest.edge import Edge
from fusee.surfaces.rest.explain import problem_from
from fusee.surfaces.rest.gate import Gate
from fusee.surfaces.rest.limits import BodyLimit, Deadline, HeadLimit
from fusee.surfaces.rest.paths import EscapedSlashes, Mounted
from fusee.surfaces.rest.problems import Problem, problem_of
from fusee.surfaces.rest.services import Services
from fusee.tasks.rest import fires as task_fires
from fusee.tasks.rest import routes as tasks
from fusee.tasks.rest import steers as task_steers
from fusee.tasks.rest import templates as task_templates
from fusee.workflows.rest import routes as workflows

__all__ = ["create_api", "create_status"]


# Those whose paths end in a word before those that take any name.
_PARTS = (
    runs,
    live,
    callbacks,
    task_fires,
    task_steers,
    task_templates,
    tasks,
    workflows,
    batches,
    bulk_record,
    bulk_jobs,
    businesses,
    workers,
    queues,
    keys,
    platform,
)


def create_api(services: Services) -> FastAPI:
    """All of it."""
    streamed = {**runs.STREAMED, **batches.STREAMED}
    return _assemble(services, [*(part.router for part in _PARTS), batches.alias, keys.me], streamed)


def create_status(services: Services) -> FastAPI:
    """Health and metrics only, behind the same gate and limits."""
    return _assemble(services, [platform.router], {})


def _assemble(
    services: Services, routers: Sequence[APIRouter], streamed: Mapping[str, Sequence[str]]
) -> FastAPI:
    api = FastAPI(
        title="Fusee",
        version=services.version,
        summary="Runs work on time, in bulk, and back again, on the database you already have.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(known_parameters)],
    )
    api.state.services = services
    for router in routers:
        api.include_router(router)
    api.add_exception_handler(HTTPException, _answer_http)
    api.add_exception_handler(RequestValidationError, _answer_invalid)
    # The last added is the outermost: a request passes them from the bottom up.
    api.add_middleware(BodyLimit, most=services.config.max_body, streamed=streamed)
    api.add_middleware(Gate, services=services, without_key=callbacks.is_callback)
    api.add_middleware(Deadline, seconds=services.config.request_timeout)
    api.add_middleware(HeadLimit, most=services.config.max_header)
    api.add_middleware(Edge)
    api.add_middleware(EscapedSlashes)
    api.add_middleware(Mounted)
    api.openapi = lambda: describe(api, routers)  # type: ignore[method-assign]
    return api


async def _answer_http(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    assert problem is not None
    if problem.status == 405:
        allowed = sorted(_allowed(request))
        problem = Problem(
            405,
            f"{request.method} does not fit this path; it takes {', '.join(allowed)}",
            headers={"Allow": ", ".join(allowed)},
        )
    if problem.status == 404:
        problem.detail = f"no such path: {request.scope.get('root_path', '')}/docs lists those there are"
    context = context_of(request)
    return problem.response(context.request_id, context.notes)


def _allowed(request: Request) -> set[str]:
    allowed: set[str] = set()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            allowed.add(method)
    return allowed


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    context = context_of(request)
    return problem_from(errors, "the request", {}).response(context.request_id, context.notes)
