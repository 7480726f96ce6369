"""What a route asks of a request before it does anything: a role, and no parameter it does not know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator

from fusee.access.principal import Role
from fusee.facts import facts
from fusee.surfaces.rest.context import context_of
from fusee.surfaces.rest.explain import did_you_mean
from fusee.surfaces.rest.problems import Problem
from fusee.values.names import check_key

__all__ = [
    "REF",
    "SCHEMAS",
    "Admin",
    "AllowUnknown",
    "AnyCase",
    "Body",
    "IdempotencyKey",
    "Operator",
    "Viewer",
    "audit",
    "body_of",
    "checked_key",
    "known_parameters",
]

log = logging.getLogger("fusee.api")

REF = "#/components/schemas/{model}"
SCHEMAS = "x-fusee-schemas"
"""Where a route keeps the schemas of its body until the document is made."""

AllowUnknown = Annotated[bool, Query(description="Accept handlers that no worker has had.")]
AnyCase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""For a word of a fixed set, all of it in small letters: it may be asked for in any case."""
IdempotencyKey = Annotated[str | None, Header(description="Makes a repeat harmless.")]


def checked_key(key: str | None) -> str | None:
    return None if key is None else check_key(key, "Idempotency-Key")


def _needs(role: Role) -> Callable[[Request], None]:
    async def needs(request: Request) -> None:
        caller = context_of(request).caller
        assert caller is not None
        caller.needs(role)

    needs.__name__ = f"needs_{role}"
    return needs  # type: ignore[return-value]


Viewer = Depends(_needs(Role.VIEWER))
Operator = Depends(_needs(Role.OPERATOR))
Admin = Depends(_needs(Role.ADMIN))


async def known_parameters(request: Request) -> None:
    """A misspelt filter must not silently list everything."""
    if not request.query_params:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = [
        param.alias
        for param in get_flat_params(route.dependant)
        if param.field_info.in_.value == "query"  # type: ignore[attr-defined]
    ]
    for name in request.query_params:
        if name not in known:
            hint = did_you_mean(name, known) if known else "; it takes none"
            raise Problem(422, f"there is no parameter {name[:60]!r} here{hint}", field=name[:60])


def audit(request: Request, what: str, /, **about_it: Any) -> None:
    """Who changed what, in the log."""
    context = context_of(request)
    caller = context.caller
    assert caller is not None
    about = {"caller": caller.name, "namespace": caller.namespace, "request_id": context.request_id}
    log.info(what, extra=facts(about, **about_it))


class Body(NamedTuple):
    """A body that a service reads, described by its fields."""

    name: str
    schema: Mapping[str, Any]


def body_of(
    body: type[BaseModel] | Body,
    *,
    required: bool = True,
    example: object = None,
    kinds: Mapping[str, Any] | None = None,
    many: bool = False,
) -> dict[str, Any]:
    """The description of a body that the route reads itself: one, or also an array of them (`many`).

    `kinds` are other content types. `describe` takes the schemas from here."""
    if isinstance(body, Body):
        name, schemas = body.name, {body.name: body.schema}
    else:
        name, schema = body.__name__, body.model_json_schema(ref_template=REF)
        schemas = {**schema.pop("$defs", {}), name: schema}
    one: dict[str, Any] = {"$ref": REF.format(model=name)}
    content: dict[str, object] = {
        "schema": {"oneOf": [one, {"type": "array", "items": one}]} if many else one
    }
    if example is not None:
        content["example"] = example
    described = {"required": required, "content": {"application/json": content, **(kinds or {})}}
    return {"requestBody": described, SCHEMAS: schemas}
