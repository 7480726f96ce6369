"""Task templates: make, list, look, replace, delete; `POST /api/v1/tasks` makes tasks of them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from fusee.surfaces.rest.addressing import ETAG, IfMatch, etag, version_from
from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.surfaces.rest.asking import Body, IdempotencyKey, Operator, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import VERSION
from fusee.surfaces.rest.context import operations_of
from fusee.surfaces.rest.paging import Page, Pager, name_at
from fusee.surfaces.rest.paths import TEMPLATE
from fusee.surfaces.rest.reading import read_object
from fusee.tasks.model.template import TEMPLATE as FORM
from fusee.tasks.model.template import TaskTemplate
from fusee.values.fields import shown
from fusee.values.names import NAME, check_name

__all__ = ["TemplateOut", "router"]

router = APIRouter(prefix="/api/v1/task-templates", tags=["tasks"])

TEMPLATES = Pager("m1", name_at)
SAYS = 'a template is an object such as {"name": "call", "params": {"url": {}}, "task": {…}}'
_EXAMPLE = {
    "name": "greeting",
    "params": {"who": {}, "hour": {"default": 9}},
    "task": {"cron": "0 {{param.hour}} * * *", "handler": "greet", "payload": {"name": "{{param.who}}"}},
}
_STALE = {"description": "It is at another version, or keeps its name."}


TemplateOut = answer_of("TemplateOut", TaskTemplate)
TemplatePage = page_of(TemplateOut)
_CREATE = Body("TemplateIn", FORM.schema("A template to make."))
_REPLACE = Body(
    "TemplateReplaceIn",
    {
        **FORM.schema(
            "A template as it shall be. What the server adds is ignored, so that an answer can be sent back;"
            " the name may be left out, since a template keeps it.",
            version=VERSION,
        ),
        "required": ["task"],
    },
)
_ADDED = set(TemplateOut.model_fields) - FORM.fields.keys() - {"version"}
"""What an answer has that is none of the caller's business; sent back, it is ignored."""
Shown = dict[str, Any]


async def _name(
    template: Annotated[
        str,
        Path(description="The template's name, slashes and all.", json_schema_extra={"pattern": f"^{NAME}$"}),
    ],
) -> str:
    return check_name(template, "template")


Name = Annotated[str, Depends(_name)]


def _answer(response: Response, template: TaskTemplate) -> Shown:
    response.headers.update(etag(template.version))
    return shown(template)


@router.post(
    "",
    status_code=201,
    dependencies=[Operator],
    openapi_extra=body_of(_CREATE, example=_EXAMPLE),
    response_model=TemplateOut,
    responses={
        200: {"model": TemplateOut, "description": "The idempotency key had been used before.", **ETAG},
        201: ETAG,
        409: {"description": "The name is taken, or the idempotency key was used for another request."},
    },
)
async def create_template(
    request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Make a template; `POST /api/v1/tasks` with `template` and `with` makes tasks of it."""
    template, new = await operations_of(request).templates.create_once(
        checked_key(idempotency_key), await read_object(request, SAYS)
    )
    response.headers["Location"] = f"/api/v1/task-templates/{template.name}"
    response.status_code = 201 if new else 200
    if new:
        audit(request, "template created", template=template.name)
    return _answer(response, template)


@router.get("", dependencies=[Viewer], response_model=TemplatePage)
async def list_templates(
    request: Request,
    page: Page,
) -> Shown:
    """By name."""
    after = TEMPLATES.after(page.cursor)
    found = await operations_of(request).templates.list(after=after, limit=page.asked)
    return TEMPLATES.page(page, found, lambda template: template.name, shown)


@router.get(TEMPLATE, dependencies=[Viewer], responses={200: ETAG}, response_model=TemplateOut)
async def get_template(request: Request, response: Response, name: Name) -> Shown:
    return _answer(response, await operations_of(request).templates.get(name))


@router.put(
    TEMPLATE,
    dependencies=[Operator],
    openapi_extra=body_of(_REPLACE, example={**_EXAMPLE, "version": 1}),
    response_model=TemplateOut,
    responses={200: ETAG, 409: _STALE},
)
async def replace_template(
    request: Request, response: Response, name: Name, if_match: IfMatch = None
) -> Shown:
    """Make it what is written, and nothing else. Tasks that were made of it stay as they are."""
    fields = await read_object(request, SAYS)
    version = version_from(fields.pop("version", None), if_match)
    fields = {key: value for key, value in fields.items() if key not in _ADDED}
    fields.setdefault("name", name)
    template = await operations_of(request).templates.replace(name, fields, version=version)
    audit(request, "template replaced", template=name, version=template.version)
    return _answer(response, template)


@router.delete(TEMPLATE, status_code=204, dependencies=[Operator], responses={409: _STALE})
async def delete_template(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Tasks that were made of it stay as they are."""
    await operations_of(request).templates.delete(name, version=version_from(None, if_match))
    audit(request, "template deleted", template=name)
    return Response(status_code=204)
