"""The API as one ASGI application."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from fusee.api.asking import known_parameters
from fusee.api.context import context_of
from fusee.api.edge import Edge
from fusee.api.explain import problem_from
from fusee.api.gate import Gate
from fusee.api.incoming import SCHEMAS
from fusee.api.keyring import Keyring
from fusee.api.limits import BodyLimit, Deadline, HeadLimit
from fusee.api.problems import MEDIA_TYPE, Problem, problem_of
from fusee.api.routes import callbacks, keys, live, platform, queues, runs
from fusee.api.services import Services

__all__ = ["create_api"]

_REFS = "#/components/schemas/{model}"


def create_api(services: Services) -> FastAPI:
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
    api.state.keyring = Keyring(services.operations(services.namespace).keys)
    for part in (runs, live, callbacks, queues, keys, platform):
        api.include_router(part.router)
    api.add_exception_handler(HTTPException, _answer_http)
    api.add_exception_handler(RequestValidationError, _answer_invalid)
    # The last added is the outermost: a request passes them from the bottom up.
    api.add_middleware(BodyLimit, most=services.config.max_body)
    api.add_middleware(Gate, services=services, keyring=api.state.keyring)
    api.add_middleware(Deadline, seconds=services.config.request_timeout)
    api.add_middleware(HeadLimit, most=services.config.max_header)
    api.add_middleware(Edge)
    api.openapi = lambda: _described(api)  # type: ignore[method-assign]
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
    context = context_of(request)
    return problem.response(context.request_id, context.notes)


def _allowed(request: Request) -> set[str]:
    allowed: set[str] = set()
    for method in ("GET", "POST", "PUT", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            allowed.add(method)
    return allowed


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    context = context_of(request)
    return problem_from(errors, "the request", {}).response(context.request_id, context.notes)


def _described(api: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: with the bodies that routes read themselves, and what every error looks like."""
    if api.openapi_schema:
        return api.openapi_schema
    document = get_openapi(title=api.title, version=api.version, summary=api.summary, routes=api.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in SCHEMAS:
        schema = model.model_json_schema(ref_template=_REFS)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "callback": {"type": "apiKey", "in": "header", "name": "X-Fusee-Callback-Token"},
    }
    document["security"] = [{}, {"bearer": []}, {"header": []}]
    error = {
        "description": "An error, as RFC 9457 describes it.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = error
    api.openapi_schema = document
    return document


_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:fusee:problem:invalid"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "request_id": {"type": "string"},
        "field": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
