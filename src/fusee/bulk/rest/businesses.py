"""Businesses: register one that is called over HTTP, list all that are known, change, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from fusee.bulk.business import KnownBusiness, RegisteredBusiness
from fusee.bulk.fields import BUSINESS
from fusee.bulk.rest.shapes import BUSINESS_CHANGE, BUSINESS_NEW, BusinessOut, BusinessPage
from fusee.bulk.service.businesses import BusinessOperations
from fusee.surfaces.rest.asking import IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import ETAG, IfMatch, etag, version_from
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.paging import Page, Pager, name_at
from fusee.surfaces.rest.paths import link, named
from fusee.surfaces.rest.reading import read_object
from fusee.values.fields import shown
from fusee.values.names import NAME, check_name

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/businesses", tags=["bulk jobs"])

PATH, _ = named("business", "business")
BUSINESSES = Pager("u1", name_at)
SAYS = f"a business is an object such as {BUSINESS.example}"
_EXAMPLE = {
    "name": "mail",
    "chunk": "https://crm.example/mail",
    "chunk_size": 200,
    "before_run": "https://crm.example/prepare",
    "headers": {"Authorization": "Bearer …"},
    "defaults": {"concurrency": 16, "rate": 500},
}
_STALE: dict[int | str, dict[str, Any]] = {
    409: {"description": "It is at another version, in use, or one that workers have."}
}


async def _name(
    business: Annotated[
        str,
        Path(description="The business's name, slashes and all.", json_schema_extra={"pattern": f"^{NAME}$"}),
    ],
) -> str:
    return check_name(business, "business")


Name = Annotated[str, Depends(_name)]


def _answer(response: Response, business: RegisteredBusiness) -> dict[str, Any]:
    response.headers.update(etag(business.version))
    return shown(KnownBusiness(name=business.spec.name, kind="http", registered=business))


@router.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=body_of(BUSINESS_NEW, example=_EXAMPLE),
    response_model=BusinessOut,
    responses={
        200: {"model": BusinessOut, "description": "The idempotency key had been used before.", **ETAG},
        201: ETAG,
        409: {"description": "The name is taken, or the idempotency key was used for another request."},
    },
)
async def register_business(
    request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> dict[str, Any]:
    """Register a business that is called over HTTP; any worker that may make HTTP calls serves it.

    The business is the bulk handler with its callbacks."""
    made, new = await service_of(request, BusinessOperations).register_once(
        checked_key(idempotency_key), await read_object(request, SAYS)
    )
    response.headers["Location"] = link(request, "businesses", made.spec.name)
    response.status_code = 201 if new else 200
    if new:
        audit(request, "business registered", business=made.spec.name)
    return _answer(response, made)


@router.get("", dependencies=[Viewer], response_model=BusinessPage)
async def list_businesses(request: Request, page: Page) -> dict[str, Any]:
    """List businesses by name: registered ones, and those in Python that workers have had."""
    after = BUSINESSES.after(page.cursor)
    found = await service_of(request, BusinessOperations).list(after=after, limit=page.asked)
    return BUSINESSES.page(page, found, lambda business: business.name, shown)


@router.get(PATH, dependencies=[Viewer], response_model=BusinessOut)
async def get_business(request: Request, response: Response, name: Name) -> dict[str, Any]:
    """Show a business; of a header only the name is shown."""
    found = await service_of(request, BusinessOperations).get(name)
    if found.registered is not None:
        response.headers.update(etag(found.registered.version))
    return shown(found)


@router.patch(
    PATH,
    dependencies=[Operator],
    openapi_extra=body_of(BUSINESS_CHANGE, example={"timeout": 30, "version": 1}),
    response_model=BusinessOut,
    responses={200: ETAG, **_STALE},
)
async def change_business(
    request: Request, response: Response, name: Name, if_match: IfMatch = None
) -> dict[str, Any]:
    """Change some fields, and some members of `headers` and `defaults`; null removes one.

    Jobs use the change when they take their next segment.
    """
    fields = await read_object(request, "a change is an object with the fields to change")
    version = version_from(fields.pop("version", None), if_match)
    changed = await service_of(request, BusinessOperations).update(name, fields, version=version)
    audit(request, "business changed", business=name, version=changed.version)
    return _answer(response, changed)


@router.delete(PATH, status_code=204, dependencies=[Operator], responses=_STALE)
async def delete_business(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Delete a business; refused while an unfinished job needs it."""
    await service_of(request, BusinessOperations).delete(name, version=version_from(None, if_match))
    audit(request, "business deleted", business=name)
    return Response(status_code=204)
