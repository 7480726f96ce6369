"""Businesses: register one that is reached over HTTP, list all that are known, change, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from fusee.bulk.model.business import KnownBusiness, RegisteredBusiness
from fusee.bulk.rest.bodies import BusinessChangeIn, BusinessIn
from fusee.bulk.rest.shapes import BusinessOut, BusinessPage
from fusee.errors import Invalid
from fusee.surfaces.rest.addressing import ETAG, IfMatch, etag, version_from
from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.context import operations_of
from fusee.surfaces.rest.paging import Page, Pager, name_at
from fusee.surfaces.rest.paths import BUSINESS, link
from fusee.surfaces.rest.reading import read_json
from fusee.values.names import NAME, check_name

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/businesses", tags=["bulk jobs"])

BUSINESSES = Pager("u1", name_at)
_EXAMPLE = {
    "name": "mail",
    "chunk": "https://crm.example/mail",
    "chunk_size": 200,
    "before_run": "https://crm.example/prepare",
    "headers": {"Authorization": "Bearer …"},
    "defaults": {"concurrency": 16, "rate": 500},
}
_STALE: dict[int | str, dict[str, Any]] = {
    409: {"description": "It is at another version, in use, or one that workers bring along."}
}


async def _name(
    business: Annotated[
        str,
        Path(description="The business's name, slashes and all.", json_schema_extra={"pattern": f"^{NAME}$"}),
    ],
) -> str:
    try:
        return check_name(business, "business")
    except ValueError as error:
        raise Invalid(str(error), field="business") from None


Name = Annotated[str, Depends(_name)]


def _described(model: Any, example: dict[str, Any]) -> dict[str, Any]:
    described = body_of(model)
    described["requestBody"]["content"]["application/json"]["example"] = example
    return described


def _answer(response: Response, business: RegisteredBusiness) -> BusinessOut:
    response.headers.update(etag(business.version))
    return BusinessOut.of(KnownBusiness(name=business.spec.name, kind="http", registered=business))


@router.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=_described(BusinessIn, _EXAMPLE),
    responses={
        200: {"model": BusinessOut, "description": "The idempotency key had been used before.", **ETAG},
        201: ETAG,
        409: {"description": "The name is taken, or the idempotency key was used for another request."},
    },
)
async def register_business(
    request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> BusinessOut:
    """Register a business that is reached over HTTP; any worker that may make HTTP calls serves it."""
    wish = await read_json(request, BusinessIn, "a business")
    made, new = await operations_of(request).businesses.register_once(
        checked_key(idempotency_key), wish.model_dump(exclude_unset=True)
    )
    response.headers["Location"] = link(request, "businesses", made.spec.name)
    response.status_code = 201 if new else 200
    if new:
        audit(request, "business registered", business=made.spec.name)
    return _answer(response, made)


@router.get("", dependencies=[Viewer])
async def list_businesses(request: Request, page: Page) -> BusinessPage:
    """By name: those of the registry, and those in Python that workers have had."""
    after = BUSINESSES.after(page.cursor)
    found = await operations_of(request).businesses.list(after=after, limit=page.asked)
    return BusinessPage(**BUSINESSES.page(page, found, lambda business: business.name, BusinessOut.of))


@router.get(BUSINESS, dependencies=[Viewer])
async def get_business(request: Request, response: Response, name: Name) -> BusinessOut:
    """Its addresses; of a header only the name is shown."""
    found = await operations_of(request).businesses.get(name)
    if found.registered is not None:
        response.headers.update(etag(found.registered.version))
    return BusinessOut.of(found)


@router.patch(
    BUSINESS,
    dependencies=[Operator],
    openapi_extra=_described(BusinessChangeIn, {"timeout": 30, "version": 1}),
    responses={200: ETAG, **_STALE},
)
async def change_business(
    request: Request, response: Response, name: Name, if_match: IfMatch = None
) -> BusinessOut:
    """Other values for some fields, and for some members of `headers` and `defaults`; null takes one away.

    Jobs follow when they take a segment next.
    """
    wish = await read_json(request, BusinessChangeIn, "a change")
    fields = wish.model_dump(exclude_unset=True)
    version = version_from(fields.pop("version", None), if_match)
    changed = await operations_of(request).businesses.update(name, fields, version=version)
    audit(request, "business changed", business=name, version=changed.version)
    return _answer(response, changed)


@router.delete(BUSINESS, status_code=204, dependencies=[Operator], responses=_STALE)
async def delete_business(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Refused while a job that is not finished needs it."""
    await operations_of(request).businesses.delete(name, version=version_from(None, if_match))
    audit(request, "business deleted", business=name)
    return Response(status_code=204)
