"""The OpenAPI document: with the bodies that routes read themselves, and every answer they can give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from fusee.surfaces.rest.asking import REF, SCHEMAS
from fusee.surfaces.rest.problems import KINDS, MEDIA_TYPE

__all__ = ["describe"]


def describe(api: FastAPI, routers: Iterable[APIRouter]) -> dict[str, Any]:
    """Made once; FastAPI's own description knows neither our bodies nor our errors."""
    if api.openapi_schema:
        return api.openapi_schema
    document = get_openapi(title=api.title, version=api.version, summary=api.summary, routes=api.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for router in routers:
        for route in router.routes:  # the document has lost every null of them
            _add(schemas, (getattr(route, "openapi_extra", None) or {}).get(SCHEMAS, {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    components["responses"] = {kind: _problem(title) for kind, title in KINDS.values()}
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "callback": {"type": "apiKey", "in": "header", "name": "X-Fusee-Callback-Token"},
    }
    document["security"] = [{}, {"bearer": []}, {"header": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation.pop(SCHEMAS, None)
            _tell_errors(path, operation)
    api.openapi_schema = document
    return document


def _add(schemas: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Two of one name would silently describe each other's bodies."""
    for name, schema in more.items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two bodies are called {name}: rename one of the models")


def _tell_errors(path: str, operation: dict[str, Any]) -> None:
    """Those that a route declares keep their words; the others are the same everywhere."""
    responses = operation["responses"]
    responses.pop("422", None)
    for status, response in responses.items():
        if int(status) >= 400:
            response |= _problem(response["description"])
    for error in _errors(path, operation):
        responses.setdefault(str(error), {"$ref": f"#/components/responses/{KINDS[error][0]}"})
    operation["responses"] = dict(sorted(responses.items()))


def _errors(path: str, operation: dict[str, Any]) -> Iterator[int]:
    yield from (422, 431, 500, 503, 504)
    if path.startswith("/api/"):
        yield from (401, 403, 429)
    if "{" in path:
        yield 404
    if "requestBody" in operation:
        yield from (400, 413, 415)


def _problem(says: str) -> dict[str, Any]:
    schema = {"$ref": REF.format(model="Problem")}
    return {"description": says, "content": {MEDIA_TYPE: {"schema": schema}}}


_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "An error, as RFC 9457 describes it.",
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
